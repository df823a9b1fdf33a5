# SPDX-License-Identifier: MIT
"""A kernel and NPUs made of software, for machines that have none."""

from .core import KernelOops
from .kernel import DEVICES, SimKernel
from .socket import SocketKernel, serve

__all__ = ["DEVICES", "KernelOops", "SimKernel", "SocketKernel", "serve"]
