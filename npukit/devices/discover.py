# SPDX-License-Identifier: MIT
"""Find NPUs by the driver's own name, never by a node's number: that changes from boot to boot."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.ioctl import AbiMismatch, Kernel, LinuxKernel, NpuError

from .amdxdna import AmdxdnaDevice
from .base import Device
from .drm import driver_of
from .fastrpc import FastRpcDevice
from .rknpu import RknpuDevice
from .rocket import RocketDevice

DRIVABLE: dict[str, type[Device]] = {
    "rknpu": RknpuDevice,
    "rocket": RocketDevice,
    "amdxdna_accel_driver": AmdxdnaDevice,
    "fastrpc": FastRpcDevice,
}
"""Driver name -> the class that drives it."""

DESCRIPTIONS = {
    "rknpu": "Rockchip NPU, vendor driver",
    "rocket": "Rockchip NPU, mainline driver",
    "ethosu": "Arm Ethos-U NPU",
    "amdxdna_accel_driver": "AMD XDNA NPU (Ryzen AI)",
    "intel_vpu": "Intel NPU (Core Ultra)",
    "qaic": "Qualcomm Cloud AI 100",
    "habanalabs": "Intel Gaudi",
    "fastrpc": "Qualcomm Hexagon DSP over FastRPC",
}
"""Driver name, as DRM_IOCTL_VERSION or the misc node gives it -> what it drives."""

_SYSFS_DRIVERS = {"amdxdna": "amdxdna_accel_driver", "RKNPU": "rknpu"}
"""Name under /sys where it is not the one that DRM_IOCTL_VERSION gives."""

FACADES = {"rknn": "rocket"}
"""Name of a device without a driver of its own that a node hangs on: rocket joins its cores so."""

_DRM_CLASSES = (("accel", "accel"), ("drm", "dri"))
"""(class under /sys/class, folder under /dev)."""


@dataclass(frozen=True, slots=True)
class Found:
    """An NPU node. ``problem`` is empty, or says why this process cannot open it."""

    driver: str
    path: str
    description: str
    problem: str = ""

    @property
    def drivable(self) -> bool:
        """npukit has a class for it, and this process may open it."""
        return self.driver in DRIVABLE and not self.problem


def discover(kernel: Kernel | None = None, root: str | os.PathLike[str] = "/") -> list[Found]:
    """All NPU nodes that /sys and /dev under ``root`` show, those that npukit can drive first.

    Nodes of the DRM and accel classes are asked for their driver's name (DRM_IOCTL_VERSION); where
    they cannot be opened, /sys tells it. An rknpu device appears once, by its card node, though it
    has a render node as well.
    """
    kernel = kernel or LinuxKernel()
    base = Path(root)
    found = [
        node
        for sys_class, folder in _DRM_CLASSES
        for entry in _entries(base / "sys/class" / sys_class)
        if (node := _drm_node(kernel, base, entry, folder)) is not None
    ]
    found += _misc_nodes(base)
    return sorted(found, key=lambda node: (not node.drivable, node.path))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _drm_node(kernel: Kernel, base: Path, entry: Path, folder: str) -> Found | None:
    if not entry.name.startswith(("accel", "card")) or "-" in entry.name:
        return None
    path = base / "dev" / folder / entry.name
    if not path.exists():
        return None
    problem = ""
    try:
        name = driver_of(kernel, str(path))
    except OSError as error:
        problem = error.strerror or str(error)
        name = None
    if name is None:
        name = _sysfs_driver(entry)
    if name not in DESCRIPTIONS:
        return None
    return Found(name, str(path), DESCRIPTIONS[name], problem)


def _sysfs_driver(entry: Path) -> str:
    device = (entry / "device").resolve()
    try:
        name = (device / "driver").resolve(strict=True).name
    except OSError:
        return FACADES.get(device.name, "")
    return _SYSFS_DRIVERS.get(name, name)


def driver_of_number(rdev: int, root: str | os.PathLike[str] = "/") -> tuple[str, str]:
    """(driver, node) of a character device's number, as /sys under ``root`` tells them.

    The driver goes by the name that DRM_IOCTL_VERSION gives; it is "" for a device without one,
    such as a misc device, which is known by its node. Both are "" for a number that /sys does not
    know.
    """
    entry = Path(root) / "sys/dev/char" / f"{os.major(rdev)}:{os.minor(rdev)}"
    try:
        lines = (entry / "uevent").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line[8:] for line in lines if line.startswith("DEVNAME=")), "")
    return _sysfs_driver(entry), f"/dev/{name}" if name else ""


def _misc_nodes(base: Path) -> list[Found]:
    found = []
    for entry in _entries(base / "sys/class/misc"):
        driver = "fastrpc" if entry.name.startswith("fastrpc-") else entry.name
        path = base / "dev" / entry.name
        if driver not in ("rknpu", "fastrpc") or not path.exists():
            continue
        # Not opened: that would take one of a DSP's few sessions from somebody who needs it.
        usable = os.access(path, os.R_OK | os.W_OK)
        problem = "" if usable else os.strerror(errno.EACCES)
        found.append(Found(driver, str(path), DESCRIPTIONS[driver], problem))
    return found


def open_device(path: str, kernel: Kernel | None = None, **options: Any) -> Device:
    """Open the node ``path`` with the class of the driver that serves it.

    ``options`` go to that class. AbiMismatch when npukit has no class for the driver; NpuError as
    opening gives it.
    """
    kernel = kernel or LinuxKernel()
    try:
        name = driver_of(kernel, path)
    except OSError as error:
        raise NpuError(error.errno or errno.EIO, path=path) from error
    # A misc device goes by its name: a question to a node of another kind may be a command to it.
    node = os.path.basename(path)
    if name is None and (node == "rknpu" or node.startswith("fastrpc-")):
        name = node.partition("-")[0]
    cls = DRIVABLE.get(name or "")
    if cls is None:
        what = f"the driver {name!r}" if name else "what is neither DRM nor a known misc device"
        raise AbiMismatch(
            errno.ENOTSUP,
            path=path,
            hint=f"npukit cannot drive {what}; it drives {', '.join(DRIVABLE)}",
        )
    return cls(path, kernel, **options)  # type: ignore[arg-type]
