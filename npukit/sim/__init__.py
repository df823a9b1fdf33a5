# SPDX-License-Identifier: MIT
"""A kernel and NPUs made of software, for machines that have none."""

from .core import KernelOops
from .kernel import DEVICES, NPUS, SimKernel
from .socket import SocketKernel, serve

__all__ = ["DEVICES", "NPUS", "KernelOops", "SimKernel", "SocketKernel", "serve"]
