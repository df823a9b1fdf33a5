# SPDX-License-Identifier: MIT
"""What a machine shows of itself under /sys, /proc, /dev, /etc and /lib: facts, no judgement.

Each reader takes the root directory. What is not there or not readable is an empty answer.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from npukit.devices.discover import FACADES
from npukit.verify.errors import FormatError
from npukit.verify.kernel_files import KernelFiles

from . import known
from .known import Chip

_MAX_TEXT = 1 << 16


def _text(path: Path) -> str:
    """The text of a small file; a device tree's NULs become spaces."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TEXT).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    """The last part of what a symbolic link points to."""
    try:
        return os.readlink(path).rsplit("/", 1)[-1]
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else -1


@dataclass(frozen=True, slots=True)
class Identity:
    """Who wants to use the NPUs. With ``current`` the system itself is asked what may be opened,
    so that access lists count."""

    name: str
    uid: int
    groups: frozenset[int]
    current: bool = False

    @classmethod
    def of_process(cls, root: Path = Path("/")) -> Identity:
        uid = os.getuid()
        names = {fields[2]: fields[0] for fields in _database(root, "passwd", 3)}
        groups = frozenset((os.getgid(), *os.getgroups()))
        return cls(names.get(str(uid), str(uid)), uid, groups, current=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. ``path`` is without the root; ``usable`` says whether the user may read and
    write it."""

    path: str
    subsystem: str
    subject: str
    mode: int
    group: str
    usable: bool

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def shared(self) -> bool:
        """Its group may read and write it, and is not root's."""
        return self.mode & 0o060 == 0o060 and self.group != "root"


@dataclass(frozen=True, slots=True)
class Device:
    """A piece of hardware. ``place`` is its name on its bus, ``driver`` what is bound to it."""

    chip: Chip
    place: str
    driver: str
    iommu: bool
    revision: int = 0
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Processor:
    """A remote processor: a DSP with firmware of its own. ``domain`` is "adsp", "cdsp", ..."""

    place: str
    domain: str
    state: str
    firmware: str
    firmware_there: bool


@dataclass(slots=True)
class Machine:
    """All facts. ``memlock`` in bytes, None for no limit; ``config`` None when it is not there."""

    user: Identity
    release: str = ""
    architecture: str = ""
    model: str = ""
    board: tuple[str, ...] = ()
    command_line: str = ""
    virtual: bool = False
    config: dict[str, str] | None = None
    modules: frozenset[str] = frozenset()
    """Modules that are loaded or built in, as far as /sys/module tells."""
    installed: frozenset[str] = frozenset()
    """Modules that there are files of."""
    module_versions: dict[str, str] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    processors: list[Processor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    heaps: list[Node] = field(default_factory=list)
    udmabuf: Node | None = None
    btf: bool = False
    iommus: tuple[str, ...] = ()
    memlock: int | None = 0
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    """Members by group name, as /etc/group has them."""
    firmware: dict[str, bool] = field(default_factory=dict)
    """Firmware pattern -> whether a file matches it."""


def read(root: Path = Path("/"), user: Identity | None = None) -> Machine:
    """Look at everything under ``root``; ``user`` None: this process's own."""
    user = user or Identity.of_process(root)
    files = KernelFiles.running(root)
    devices = [*pci_devices(root), *platform_devices(root)]
    return Machine(
        user=user,
        release=files.release or "",
        architecture=_text(root / "proc/sys/kernel/arch"),
        model=model(root),
        board=tuple(_text(root / "proc/device-tree/compatible").split()),
        command_line=_text(root / "proc/cmdline"),
        virtual=bool(re.search(r"^flags.*\bhypervisor\b", _text(root / "proc/cpuinfo"), re.M)),
        config=config(files),
        modules=frozenset(path.name for path in _entries(root / "sys/module")),
        installed=frozenset(files.modules()),
        module_versions=module_versions(root),
        devices=devices,
        processors=processors(root),
        nodes=npu_nodes(root, user),
        heaps=heaps(root, user),
        udmabuf=_node(root, "udmabuf", "misc", "udmabuf", user),
        btf=(root / "sys/kernel/btf/vmlinux").exists(),
        iommus=tuple(path.name for path in _entries(root / "sys/class/iommu")),
        memlock=memlock(root),
        groups={f[0]: frozenset(f[3].split(",")) for f in _database(root, "group", 4)},
        firmware={pattern: _has_firmware(root, pattern) for pattern in map(firmware_of, devices)},
    )


def config(files: KernelFiles) -> dict[str, str] | None:
    """The kernel's configuration; None when it is not there or corrupt."""
    try:
        return files.config
    except FormatError:
        return None


def model(root: Path) -> str:
    """What the machine calls itself: the device tree's model, or the vendor's product name."""
    product = [_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return _text(root / "proc/device-tree/model") or " ".join(filter(None, product))


def module_versions(root: Path) -> dict[str, str]:
    """Versions that loaded drivers tell, by module."""
    found = {}
    for name in ("rknpu", "rocket", "ethosu", "amdxdna", "intel_vpu", "qaic", "habanalabs"):
        text = _text(root / "sys/module" / name / "version")
        if text:
            found[name] = text
    # Rockchip's driver is built in and tells it in a file of its own.
    for path in ("sys/kernel/debug/rknpu/version", "proc/rknpu/version"):
        if version := re.search(r"v?(\d+\.\d+\.\d+)", _text(root / path)):
            found["rknpu"] = version[1]
    return found


def pci_devices(root: Path) -> list[Device]:
    """NPUs on PCI."""
    found = []
    for path in _entries(root / "sys/bus/pci/devices"):
        chip = known.PCI.get((_number(path / "vendor"), _number(path / "device")))
        if chip:
            told = {"firmware": _text(path / "fw_version"), "model": _text(path / "vbnv")}
            found.append(
                Device(
                    chip,
                    path.name,
                    _link(path / "driver"),
                    (path / "iommu_group").is_symlink(),
                    max(_number(path / "revision"), 0),
                    {name: text for name, text in told.items() if text},
                )
            )
    return found


def platform_devices(root: Path) -> list[Device]:
    """NPUs that a device tree describes and enables."""
    found = []
    for path in _entries(root / "sys/bus/platform/devices"):
        names = re.findall(r"^OF_COMPATIBLE_\d+=(\S+)$", _text(path / "uevent"), re.MULTILINE)
        chip = next((known.COMPATIBLE[name] for name in names if name in known.COMPATIBLE), None)
        if chip:
            group = (path / "iommu_group").is_symlink()
            found.append(Device(chip, path.name, _link(path / "driver"), group))
    return found


def processors(root: Path) -> list[Processor]:
    """DSPs that FastRPC may reach; modems and other remote processors are left out."""
    found = []
    for path in _entries(root / "sys/class/remoteproc"):
        firmware = _text(path / "firmware")
        domain = re.search(r"[acsg]dsp", f"{_text(path / 'name')} {firmware}")
        if domain:
            there = _has_firmware(root, glob.escape(firmware))
            state = _text(path / "state")
            found.append(Processor(path.name, domain[0], state, firmware, there))
    return found


def npu_nodes(root: Path, user: Identity) -> list[Node]:
    """The nodes through which NPUs are used, told by their driver and never by their number."""
    found = []
    for subsystem in ("accel", "drm"):
        for path in _entries(root / "sys/class" / subsystem):
            driver = _link(path / "device/driver")
            place = (path / "device").resolve().name
            subject = known.SYSFS_DRIVERS.get(driver) or FACADES.get(place)
            name = re.search(r"^DEVNAME=(\S+)$", _text(path / "uevent"), re.MULTILINE)
            if subject and name:
                found.append(_node(root, name[1], subsystem, subject, user))
    for path in _entries(root / "sys/class/misc"):
        name_ = path.name
        subject = "fastrpc" if name_.startswith("fastrpc-") else name_
        if subject in ("fastrpc", "rknpu"):
            found.append(_node(root, name_, "misc", subject, user))
    return [node for node in found if node]


def heaps(root: Path, user: Identity) -> list[Node]:
    """The dma-heaps."""
    names = [f"dma_heap/{path.name}" for path in _entries(root / "dev/dma_heap")]
    found = [_node(root, name, "dma_heap", "dma_heap", user) for name in names]
    return [node for node in found if node]


def _node(root: Path, name: str, subsystem: str, subject: str, user: Identity) -> Node | None:
    path = root / "dev" / name
    try:
        status = path.stat()
    except OSError:
        return None
    groups = {fields[2]: fields[0] for fields in _database(root, "group", 4)}
    group = groups.get(str(status.st_gid), str(status.st_gid))
    mode = stat.S_IMODE(status.st_mode)
    if user.current:
        usable = os.access(path, os.R_OK | os.W_OK)
    else:
        usable = _allows(status, user)
    return Node(f"/dev/{name}", subsystem, subject, mode, group, usable)


def _allows(status: os.stat_result, user: Identity) -> bool:
    if user.uid == 0:
        return True
    if user.uid == status.st_uid:
        return status.st_mode & 0o600 == 0o600
    if status.st_gid in user.groups:
        return status.st_mode & 0o060 == 0o060
    return status.st_mode & 0o006 == 0o006


def memlock(root: Path) -> int | None:
    """Bytes that a process may lock in memory; None for no limit, 0 when it is not told."""
    limits = _text(root / "proc/self/limits")
    found = re.search(r"^Max locked memory\s+(\d+|unlimited)", limits, re.MULTILINE)
    if found is None:
        return 0
    return None if found[1] == "unlimited" else int(found[1])


def firmware_of(device: Device) -> str:
    """The pattern of a device's firmware below /lib/firmware; "" when the driver needs none."""
    return device.chip.firmware.format(revision=f"{device.revision:02x}")


def _has_firmware(root: Path, pattern: str) -> bool:
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        return False
    places = ("lib/firmware", "lib/firmware/updates", "usr/lib/firmware")
    forms = (pattern, pattern + ".xz", pattern + ".zst")
    return any(any((root / place).glob(form)) for place in places for form in forms)


def _database(root: Path, name: str, width: int) -> list[list[str]]:
    """The lines of /etc/passwd or /etc/group with at least ``width`` fields."""
    lines = [line.split(":") for line in _text(root / "etc" / name).splitlines()]
    return [fields for fields in lines if len(fields) >= width]
