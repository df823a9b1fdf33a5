# SPDX-License-Identifier: MIT
"""npukit: talk to any Linux NPU through its kernel driver, or to a simulated one.

    import npukit

    with npukit.open("sim:rknpu") as device:
        ...

``open`` and ``discover`` are the way in. Everything else goes by its own name
(``npukit.abi.rocket``, ``npukit.programs.rk3588.matmul``), imported or as an attribute, and nothing
is loaded before it is used.
"""

from __future__ import annotations

import errno
import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npukit.devices import Device, Found
    from npukit.ioctl import Kernel

__version__ = "0.1.0"

__all__ = ["discover", "open"]


def __getattr__(name: str) -> ModuleType:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"npukit.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"npukit.{name}":
            raise
        raise AttributeError(f"module 'npukit' has no attribute {name!r}") from None


def discover(kernel: Kernel | None = None, root: str | os.PathLike[str] = "/") -> list[Found]:
    """The NPUs of this machine, those that npukit can drive first; see npukit.devices.discover."""
    from npukit.devices import discover as find

    return find(kernel, root)


def open(  # noqa: A001
    path: str | os.PathLike[str] | None = None,
    kernel: Kernel | None = None,
    *,
    strict: bool = False,
    watch: Callable[[Kernel], Kernel] | None = None,
    check: bool = True,
) -> Device:
    """Open an NPU.

    ``path`` is a node ("/dev/accel/accel0"), a simulated device ("sim:rknpu"; with ``strict`` it
    raises what the real driver would hide), one of another process's simulated machine
    ("sim:rknpu@/path/of/its/socket"), or None for the first real NPU that npukit can drive. A
    simulated one is never chosen unasked: NoDevice says how to name it. ``watch`` is given the
    kernel, simulated or not, and gives what the device is to use in its place (a TracingKernel).

    ``check``: jobs of command streams are looked through before the driver gets them, and bad ones
    refused with what is wrong (ProgramError); ``device.checker = None`` ends that.
    """
    from npukit.devices import discover as find
    from npukit.ioctl import NoDevice

    if path is not None:
        path = os.fspath(path)
    if path is not None and path.startswith("sim:"):
        name, at, socket = path.removeprefix("sim:").partition("@")
        if at:
            from npukit.sim.socket import SocketKernel

            if strict:
                raise ValueError("the server of a simulated machine decides whether it is strict")
            kernel = SocketKernel(socket)
            try:
                node = kernel.path(name)
            except KeyError as error:
                raise NoDevice(errno.ENODEV, str(error.args[0]), path=socket) from None
            return _open(node, watch(kernel) if watch else kernel, check)
        from npukit.sim import SimKernel

        kernel = SimKernel([name], strict=strict)
        return _open(kernel.path(name), watch(kernel) if watch else kernel, check)
    if strict:
        raise ValueError("strict is for simulated devices")
    if path is None:
        from npukit.sim import NPUS

        found = find(kernel)
        usable = [node for node in found if node.drivable]
        if not usable:
            seen = "; ".join(
                f"{n.path} ({n.description}): {n.problem or 'no driver class'}" for n in found
            )
            raise NoDevice(
                errno.ENOENT,
                "no NPU that npukit can drive",
                hint=f"{seen or 'none is there'}. "
                f'npukit.open("sim:rknpu") opens a simulated one; there are {", ".join(NPUS)}',
            )
        path = usable[0].path
    if watch:
        from npukit.ioctl import LinuxKernel

        kernel = watch(kernel or LinuxKernel())
    return _open(path, kernel, check)


def _open(path: str, kernel: Kernel | None, check: bool = True) -> Device:
    from npukit.devices import RknpuDevice, RocketDevice, open_device

    device = open_device(path, kernel)
    if isinstance(device, RknpuDevice):
        from npukit.programs.rk3588.explain import explain_timeout

        device.explainer = explain_timeout
    if check and isinstance(device, RknpuDevice | RocketDevice):
        from npukit.programs.rk3588.check import checker

        device.checker = checker
    return device
