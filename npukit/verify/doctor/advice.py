# SPDX-License-Identifier: MIT
"""From a machine's facts to what its user can use, what not, why, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from npukit.devices.discover import DRIVABLE
from npukit.verify.snapshot import parse_version
from npukit.verify.subjects import SUBJECTS

from . import known
from .machine import Device, Identity, Machine, Node, Processor, firmware_of, read

_HEAP_BYTES = 64 << 20
"""amdxdna's instruction heap, which a process maps and locks before anything runs."""
_OPTIONS = (
    "DRM_ACCEL",
    "DMABUF_HEAPS",
    "DMABUF_HEAPS_SYSTEM",
    "UDMABUF",
    "IOMMU_SVA",
    "DEBUG_INFO_BTF",
    "DEBUG_INFO_BTF_MODULES",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """``what`` stands in the way and ``fix`` removes it, a command where there is one."""

    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about the machine, and what is wrong with it if something is."""

    name: str
    value: str
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Npu:
    """A kind of NPU that is there: ``subject`` is its npukit.abi module, ``places`` where it sits,
    ``nodes`` the paths to open. With no problem this user can open it; ``drivable`` says whether
    npukit has a class for it."""

    title: str
    subject: str
    places: tuple[str, ...]
    nodes: tuple[str, ...]
    versions: dict[str, str]
    drivable: bool
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    model: str
    kernel: str
    npus: tuple[Npu, ...]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def blocked(self) -> bool:
        """There is an NPU that this user cannot open yet."""
        return any(npu.problems for npu in self.npus)


def diagnose(root: Path = Path("/"), user: Identity | None = None) -> Diagnosis:
    """Look at the machine under ``root`` as ``user`` (None: this process's own) would use it."""
    return judge(read(root, user))


def judge(machine: Machine) -> Diagnosis:
    """What the facts mean."""
    kernel = " ".join(filter(None, ("Linux", machine.release or "?", machine.architecture)))
    return Diagnosis(machine.model, kernel, tuple(_npus(machine)), tuple(_findings(machine)))


# NPUs


def _npus(machine: Machine) -> Iterator[Npu]:
    seen: set[str] = set()
    for title in dict.fromkeys(device.chip.title for device in machine.devices):
        devices = [device for device in machine.devices if device.chip.title == title]
        seen.add(devices[0].chip.subject)
        yield _device_npu(machine, devices)
    for domain in dict.fromkeys(processor.domain for processor in machine.processors):
        seen.add("fastrpc")
        yield _dsp(machine, domain)
    # A node whose hardware was not recognised: a chip younger than this table.
    for subject in dict.fromkeys(node.subject for node in machine.nodes):
        if subject not in seen:
            seen.add(subject)
            nodes = [node for node in machine.nodes if node.subject == subject]
            yield _npu(machine, subject, subject, (), nodes, {}, list(_access(machine, nodes)))
    for name in machine.board:
        chip = known.SOCS.get(name)
        if chip and not seen & {"rknpu", "rocket"}:
            seen.add(chip.subject)
            yield _npu(machine, chip.title, chip.subject, (), [], {}, [_hidden(machine)])


def _npu(
    machine: Machine,
    title: str,
    subject: str,
    places: tuple[str, ...],
    nodes: list[Node],
    versions: dict[str, str],
    problems: list[Problem],
) -> Npu:
    module = SUBJECTS[subject].module
    if module in machine.module_versions:
        versions = {"driver": machine.module_versions[module], **versions}
    drivable = known.DRM_NAMES.get(subject, subject) in DRIVABLE
    paths = tuple(node.path for node in nodes)
    return Npu(title, subject, places, paths, versions, drivable, tuple(problems))


def _device_npu(machine: Machine, devices: list[Device]) -> Npu:
    chip = devices[0].chip
    nodes = [node for node in machine.nodes if node.subject == chip.subject]
    problems = list(_access(machine, nodes) if nodes else _no_node(machine, devices))
    if chip.subject == "amdxdna" and machine.memlock is not None:
        problems += _memlock(machine.memlock)
    versions = {name: text for device in devices for name, text in device.versions.items()}
    places = tuple(device.place for device in devices)
    return _npu(machine, chip.title, chip.subject, places, nodes, versions, problems)


def _no_node(machine: Machine, devices: list[Device]) -> Iterator[Problem]:
    """Why hardware that is there has no node."""
    chip = devices[0].chip
    missing = _no_driver(machine, chip.subject)
    if missing:
        yield missing
        return
    module = SUBJECTS[chip.subject].module
    log = f"sudo dmesg | grep -i -e {module} -e {devices[0].place}"
    if all(device.driver for device in devices):
        yield Problem(f"the driver {module} has the device but made no node", log)
        return
    causes = []
    pattern = firmware_of(devices[0])
    if pattern and not machine.firmware.get(pattern):
        causes.append(
            Problem(
                f"its firmware, /lib/firmware/{pattern}, is missing",
                "install the linux-firmware package of your distribution that has it, then: "
                f"sudo modprobe -r {module}; sudo modprobe {module}",
            )
        )
    if chip.subject == "amdxdna":
        causes += _amd_refusals(machine, devices)
    yield from causes or [Problem(f"the driver {module} is loaded but did not take it", log)]


def _amd_refusals(machine: Machine, devices: list[Device]) -> Iterator[Problem]:
    """What aie2_pci.c checks before it takes a device."""
    if machine.virtual:
        yield Problem("the driver refuses to run in a virtual machine", "use it on the host")
    elif not any(device.iommu for device in devices):
        fix = "enable the IOMMU (AMD-Vi) in the firmware set-up"
        if off := [word for word in machine.command_line.split() if word.endswith("iommu=off")]:
            fix = f"remove {' '.join(off)} from the kernel command line, then reboot"
        yield Problem("the driver needs an IOMMU and the device has none", fix)


def _no_driver(machine: Machine, subject: str) -> Problem | None:
    """Why the driver is not there at all; None when it is."""
    about = SUBJECTS[subject]
    if about.module in machine.modules:
        return None
    since = getattr(import_module(f"npukit.abi.{subject}"), "SINCE", {}).get(subject)
    if since and machine.release and _version(machine.release) < since:
        needed = f"{since[0]}.{since[1]}"
        return Problem(
            f"Linux {machine.release} is older than its driver, which came with {needed}",
            f"boot Linux {needed} or newer",
        )
    option = None if machine.config is None else machine.config.get(about.config, "n")
    if option == "n":
        return Problem(
            f"this kernel was built without CONFIG_{about.config}",
            f"use a kernel with CONFIG_{about.config}=m",
        )
    if option == "y":
        return None
    if about.module in machine.installed or (option is None and not machine.installed):
        return Problem(f"the module {about.module} is not loaded", f"sudo modprobe {about.module}")
    return Problem(
        f"the module {about.module} is not installed",
        f"install the package of Linux {machine.release} that has it (on Ubuntu: "
        f"linux-modules-extra-{machine.release})",
    )


def _version(release: str) -> tuple[int, int]:
    try:
        return parse_version(release)
    except ValueError:
        return (0, 0)


def _hidden(machine: Machine) -> Problem:
    return Problem(
        "the device tree does not describe the NPU, or has it disabled",
        "use a device tree with enabled nodes compatible to rockchip,rk3588-rknn-core "
        "(rocket, Linux 6.18 or newer) or rockchip,rk3588-rknpu (the vendor's kernel)",
    )


def _dsp(machine: Machine, domain: str) -> Npu:
    processors = [each for each in machine.processors if each.domain == domain]
    nodes = [node for node in machine.nodes if node.name.startswith(f"fastrpc-{domain}")]
    versions = {"firmware": processors[0].firmware} if processors[0].firmware else {}
    problems = list(_access(machine, nodes) if nodes else _no_dsp_node(machine, processors))
    places = tuple(each.place for each in processors)
    title = f"{known.HEXAGON.title} ({domain})"
    return _npu(machine, title, "fastrpc", places, nodes, versions, problems)


def _no_dsp_node(machine: Machine, processors: list[Processor]) -> Iterator[Problem]:
    for each in processors:
        if each.state != "running":
            start = f"echo start | sudo tee /sys/class/remoteproc/{each.place}/state"
            if each.firmware and not each.firmware_there:
                yield Problem(
                    f"the DSP is {each.state or 'down'}: its firmware, "
                    f"/lib/firmware/{each.firmware}, is missing",
                    f"take it from the machine's vendor (linux-firmware has some), then: {start}",
                )
            else:
                yield Problem(f"the DSP is {each.state or 'down'}", start)
            return
    yield _no_driver(machine, "fastrpc") or Problem(
        "the DSP runs and the driver is loaded, but there is no node: the device tree has no "
        "qcom,fastrpc below its remote processor",
        "sudo dmesg | grep -i fastrpc",
    )


# Permissions


def _access(machine: Machine, nodes: list[Node]) -> Iterator[Problem]:
    """Why none of an NPU's nodes can be opened; one is enough."""
    if any(node.usable for node in nodes):
        return
    yield _closed(machine, nodes[-1])


def _closed(machine: Machine, node: Node) -> Problem:
    user = machine.user.name
    seen = f"{user} may not open {node.path} ({node.group}, mode {node.mode:04o})"
    if not node.shared:
        group = "render" if "render" in machine.groups else "video"
        rule = f'SUBSYSTEM=="{node.subsystem}", KERNEL=="{_pattern(node)}", '
        rule += f'GROUP="{group}", MODE="0660"'
        return Problem(
            f"{seen}, and no group may",
            f"echo '{rule}' | sudo tee /etc/udev/rules.d/70-npukit.rules; "
            "sudo udevadm control --reload; sudo udevadm trigger; "
            f"sudo usermod -aG {group} {user}; then log in again",
        )
    if user in machine.groups.get(node.group, frozenset()):
        return Problem(
            f"{seen}: {user} is in the group {node.group}, but this session began before that",
            f"log in again, or: newgrp {node.group}",
        )
    return Problem(
        f"{seen}: not in the group {node.group}",
        f"sudo usermod -aG {node.group} {user}; then log in again",
    )


def _pattern(node: Node) -> str:
    return node.name.rstrip("0123456789") + "*" if node.name[-1].isdigit() else node.name


def _memlock(limit: int) -> list[Problem]:
    if limit >= _HEAP_BYTES or not limit:
        return []
    return [
        Problem(
            f"only {limit >> 10} KiB may be locked in memory, its instruction heap is "
            f"{_HEAP_BYTES >> 10} KiB",
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/70-npukit.conf; "
            "then log in again (in a systemd unit: LimitMEMLOCK=infinity)",
        )
    ]


# The machine


def _findings(machine: Machine) -> Iterator[Finding]:
    yield Finding("user", _user(machine))
    yield _configuration(machine)
    yield _heaps(machine)
    yield _udmabuf(machine)
    yield Finding(
        "BTF",
        "/sys/kernel/btf/vmlinux" if machine.btf else "none",
        None
        if machine.btf
        else Problem(
            "npukit abi check cannot ask this kernel for its types",
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or npukit abi check --headers DIR",
        ),
    )
    yield Finding("IOMMU", ", ".join(machine.iommus) or "none")
    if machine.memlock is None:
        yield Finding("memlock", "unlimited")
    else:
        yield Finding("memlock", f"{machine.memlock >> 10} KiB" if machine.memlock else "unknown")


def _user(machine: Machine) -> str:
    member = sorted(name for name, users in machine.groups.items() if machine.user.name in users)
    return f"{machine.user.name} (in {', '.join(member)})" if member else machine.user.name


def _configuration(machine: Machine) -> Finding:
    if machine.config is None:
        return Finding(
            "configuration",
            "not there",
            Problem(
                "what the kernel was built with is not known",
                "sudo modprobe configs, or look for /boot/config-$(uname -r)",
            ),
        )
    drivers = sorted({device.chip.subject for device in machine.devices})
    options = [*(SUBJECTS[name].config for name in drivers), *_OPTIONS]
    values = (f"{name}={machine.config.get(name, 'n')}" for name in options)
    return Finding("configuration", " ".join(values))


def _heaps(machine: Machine) -> Finding:
    names = ", ".join(node.name for node in machine.heaps)
    if not machine.heaps:
        built = (machine.config or {}).get("DMABUF_HEAPS") == "y"
        why = "this kernel has no dma-heap" if built else "this kernel was built without dma-heaps"
        if machine.config is None:
            why = "there is no /dev/dma_heap"
        fix = "use a kernel with CONFIG_DMABUF_HEAPS=y and CONFIG_DMABUF_HEAPS_SYSTEM=y"
        if machine.udmabuf:
            fix += "; until then npukit makes dma-bufs through /dev/udmabuf"
        return Finding("dma-heap", "none", Problem(why, fix))
    if not any(node.usable for node in machine.heaps):
        return Finding("dma-heap", names, _closed(machine, machine.heaps[-1]))
    return Finding("dma-heap", names)


def _udmabuf(machine: Machine) -> Finding:
    node = machine.udmabuf
    if node is None:
        option = (machine.config or {}).get("UDMABUF")
        if option == "m":
            return Finding("udmabuf", "none", Problem("not loaded", "sudo modprobe udmabuf"))
        return Finding(
            "udmabuf",
            "none",
            Problem("there is no /dev/udmabuf", "use a kernel with CONFIG_UDMABUF=y"),
        )
    return Finding("udmabuf", node.path, None if node.usable else _closed(machine, node))
