# SPDX-License-Identifier: MIT
"""The room that a program sees: /dev with the nodes of simulated devices, and /sys to match.

All here changes the calling process, which is to become the program.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from . import _seccomp
from .core import PAGES_END, SimDevice
from .drm import DrmDeviceSim

KEPT = (
    *("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "fuse", "log"),
    *("pts", "shm", "mqueue", "hugepages", "net"),
    *("fd", "stdin", "stdout", "stderr", "core"),
)
"""What the program sees of the machine's own /dev."""

_SYSFS_DRIVERS = {"rknpu": "RKNPU", "rknpu-misc": "RKNPU", "rocket": "rocket"}
_ON_PLATFORM_BUS = {
    "rknpu": "rockchip,rk3588-rknpu",
    "rknpu-misc": "rockchip,rk3588-rknpu",
    "rocket": "",
}
"""Device -> what its node of the device tree is compatible with. libdrm lists no DRM device whose
bus and identity /sys does not tell. rocket's one DRM device, for all cores, has no such node."""
_CLASSES = {"dri": "drm", "accel": "accel", "dma_heap": "dma_heap"}
"""Folder of /dev -> class of /sys; what stands in /dev itself is in class misc."""
OURS = "devices/npukit"
"""Folder of /sys where the simulated devices are."""
_HIDDEN = ("drm", "accel")
"""Classes of which the machine's own devices are not shown, as their nodes are not."""


def make_private() -> None:
    """A mount namespace of our own.

    Without the privilege for that it comes with a user namespace, in which user and group keep
    their numbers. OSError where the machine forbids both.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _seccomp.unshare(_seccomp.CLONE_NEWNS)
    except PermissionError:
        _seccomp.unshare(_seccomp.CLONE_NEWUSER | _seccomp.CLONE_NEWNS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _seccomp.mount("none", "/", "none", _seccomp.MS_REC | _seccomp.MS_PRIVATE)


def furnish(devices: Sequence[SimDevice]) -> list[int]:
    """Lay out /dev and /sys; a descriptor of each device's node, in order.

    The node of a DRM device is a sparse file as long as all mmap offsets; several nodes of a device
    are one file.
    """
    _furnish_dev()
    nodes = []
    for device in devices:
        first, *others = device.paths
        os.makedirs(os.path.dirname(first), exist_ok=True)
        node = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.fchmod(node, 0o666)
        if isinstance(device, DrmDeviceSim):
            os.ftruncate(node, PAGES_END)
        for other in others:
            os.makedirs(os.path.dirname(other), exist_ok=True)
            os.link(first, other)
        nodes.append(node)
    _furnish_sys(devices)
    return nodes


def unplaced(devices: Sequence[SimDevice]) -> list[int]:
    """The same nodes as files that stand nowhere, for programs whose open is trapped."""
    nodes = []
    for device in devices:
        node = os.memfd_create(device.name)
        if isinstance(device, DrmDeviceSim):
            os.ftruncate(node, PAGES_END)
        nodes.append(node)
    return nodes


@contextlib.contextmanager
def _replaced(folder: str) -> Iterator[str]:
    """Mount an empty tmpfs over a folder; a path to what it had."""
    old = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # No limit of its own: memory of a device is limited by the machine's.
        flags = _seccomp.MS_NOSUID | (0 if folder == "/dev" else _seccomp.MS_NOEXEC)
        _seccomp.mount("npukit", folder, "tmpfs", flags, "mode=755,size=0")
        yield f"/proc/self/fd/{old}"
    finally:
        os.close(old)


def _keep(source: str, target: str) -> None:
    """Show ``source`` as ``target``: symbolic links are copied, all else is bound."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    _seccomp.mount(source, target, "none", _seccomp.MS_BIND | _seccomp.MS_REC)


def _furnish_dev() -> None:
    with _replaced("/dev") as old:
        for name in KEPT:
            if os.path.lexists(f"{old}/{name}"):
                _keep(f"{old}/{name}", f"/dev/{name}")


def _furnish_sys(devices: Sequence[SimDevice]) -> None:
    """Rebuild the folders of /sys that get a new entry, and bind all others.

    sysfs allows no new entries, and many lists of devices are folders of symbolic links.
    """
    hidden = {OURS, *(f"class/{name}" for name in _HIDDEN)}
    rebuilt = ("", "class", "dev", "dev/char", "devices", "class/misc", "class/dma_heap")
    with _replaced("/sys") as old:
        for folder in rebuilt:
            os.makedirs(f"/sys/{folder}", exist_ok=True)
            if not os.path.isdir(f"{old}/{folder}"):
                continue
            for name in os.listdir(f"{old}/{folder}"):
                path = os.path.join(folder, name)
                if path not in rebuilt and path not in hidden:
                    _keep(f"{old}/{path}", f"/sys/{path}")
        for number, device in enumerate(devices):
            _describe(device, f"/sys/{OURS}/{device.name}.{number}")


def device_number(device: SimDevice, path: str) -> tuple[int, int]:
    """(major, minor) of a node."""
    found = re.search(r"\d+$", path)
    return device.major, int(found[0]) if found else 0


def _describe(device: SimDevice, parent: str) -> None:
    driver = _SYSFS_DRIVERS.get(device.name, device.name)
    os.makedirs(f"/sys/{OURS}/drivers/{driver}", exist_ok=True)
    os.makedirs(parent)
    os.symlink(f"../drivers/{driver}", f"{parent}/driver")
    identity = ""
    if device.name in _ON_PLATFORM_BUS:
        os.symlink("../../../bus/platform", f"{parent}/subsystem")
        identity = _identity(_ON_PLATFORM_BUS[device.name])
    _write(f"{parent}/uevent", f"DRIVER={driver}\n{identity}")
    for path in device.paths:
        name = os.path.relpath(path, "/dev")
        folder, _, base = name.rpartition("/")
        kind = _CLASSES.get(folder, "misc")
        major, minor = device_number(device, path)
        number = f"{major}:{minor}"
        entry = f"{parent}/{kind}/{base}"
        os.makedirs(entry)
        os.symlink("../..", f"{entry}/device")
        os.symlink(f"/sys/class/{kind}", f"{entry}/subsystem")
        _write(f"{entry}/dev", number + "\n")
        _write(f"{entry}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\n")
        os.makedirs(f"/sys/class/{kind}", exist_ok=True)
        target = os.path.relpath(entry, "/sys")
        for link in (f"/sys/class/{kind}/{base}", f"/sys/dev/char/{number}"):
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink(os.path.relpath(f"/sys/{target}", os.path.dirname(link)), link)


def _identity(compatible: str) -> str:
    """Lines of a platform device's uevent."""
    if not compatible:
        return "MODALIAS=platform:rknn\n"
    return (
        f"OF_NAME=npu\nOF_FULLNAME=/npu@fdab0000\nOF_COMPATIBLE_0={compatible}\n"
        f"OF_COMPATIBLE_N=1\nMODALIAS=of:NnpuT(null)C{compatible}\n"
    )


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
