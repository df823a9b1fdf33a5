# SPDX-License-Identifier: MIT
"""Machines as directories: what /sys, /proc, /dev, /etc and /lib of each would show.

The tests' own group stands for whatever group a node belongs to, because only root may give files
away: /etc/group in a tree says what it is called there.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from npukit.verify.doctor import Identity


class Link(str):
    """A symbolic link's target."""


class Mode(int):
    """A node: an empty file of these permissions."""


Tree = dict[str, str | bytes | Link | Mode]

STRANGER = Identity("alice", 54321, frozenset({54321}))
"""Owns nothing and is in no group of a node."""
MEMBER = Identity("alice", 54321, frozenset({54321, os.getgid()}))
"""Is in the group of the nodes."""


def plant(root: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content)
        elif isinstance(content, Mode):
            path.touch()
            path.chmod(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def system(release: str, arch: str, group: str, config: str = "", *, memlock: str = "") -> Tree:
    """What every machine has; its nodes are the ``group``'s, in which nobody is."""
    tree: Tree = {
        "proc/sys/kernel/osrelease": f"{release}\n",
        "proc/sys/kernel/arch": f"{arch}\n",
        "proc/cmdline": "root=/dev/nvme0n1p2 ro quiet\n",
        "proc/self/limits": "Limit   Soft Limit   Hard Limit   Units\n"
        f"Max locked memory         {memlock or '8388608'}      8388608      bytes\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nalice:x:54321:54321::/home/alice:/bin/sh\n",
        "etc/group": f"root:x:99999:\n{group}:x:{os.getgid()}:\nusers:x:100:alice\n",
        "sys/kernel/btf/vmlinux": b"",
    }
    if config:
        options = [
            f"# CONFIG_{word[:-2]} is not set" if word.endswith("=n") else f"CONFIG_{word}"
            for word in config.split()
        ]
        tree["proc/config.gz"] = gzip.compress("\n".join(options).encode())
    return tree


def node(path: str, device: str, mode: int = 0o660) -> Tree:
    """A DRM or accel node (``path`` below /dev) of a device (its path below /sys/devices)."""
    folder, name = path.split("/")
    kind = "accel" if folder == "accel" else "drm"
    place = f"devices/{device}/{kind}/{name}"
    return {
        f"dev/{path}": Mode(mode),
        f"sys/class/{kind}/{name}": Link(f"../../{place}"),
        f"sys/{place}/uevent": f"MAJOR=261\nMINOR=0\nDEVNAME={path}\n",
        f"sys/{place}/device": Link("../.."),
    }


def pci(address: str, vendor: int, device: int, driver: str = "", revision: int = 0) -> Tree:
    """A PCI device, bound to a driver or not."""
    place = f"sys/devices/pci0000:00/{address}"
    tree: Tree = {
        f"sys/bus/pci/devices/{address}": Link(f"../../../devices/pci0000:00/{address}"),
        f"{place}/vendor": f"{vendor:#06x}\n",
        f"{place}/device": f"{device:#06x}\n",
        f"{place}/revision": f"{revision:#04x}\n",
    }
    if driver:
        tree[f"{place}/driver"] = Link(f"../../../bus/pci/drivers/{driver}")
        tree[f"sys/module/{driver}/refcnt"] = "0\n"
    return tree


def platform(name: str, compatible: str, driver: str = "") -> Tree:
    """A platform device that a device tree describes."""
    place = f"sys/devices/platform/{name}"
    tree: Tree = {
        f"sys/bus/platform/devices/{name}": Link(f"../../../devices/platform/{name}"),
        f"{place}/uevent": f"OF_NAME=npu\nOF_COMPATIBLE_0={compatible}\nOF_COMPATIBLE_N=1\n",
    }
    if driver:
        tree[f"{place}/driver"] = Link(f"../../../bus/platform/drivers/{driver}")
    return tree


def board(model: str, *compatible: str) -> Tree:
    """A device tree's root."""
    return {
        "proc/device-tree/model": model.encode() + b"\0",
        "proc/device-tree/compatible": b"\0".join(map(str.encode, compatible)) + b"\0",
    }


def rk3588_vendor() -> Tree:
    """A board with Rockchip's kernel: driver built in, DRM nodes for the group render."""
    return {
        **system("6.1.115-vendor-rk35xx", "aarch64", "render", "ROCKCHIP_RKNPU=y DMABUF_HEAPS=y"),
        **board("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588"),
        **platform("fdab0000.npu", "rockchip,rk3588-rknpu", "RKNPU"),
        **node("dri/card1", "platform/fdab0000.npu"),
        **node("dri/renderD129", "platform/fdab0000.npu"),
        **node("dri/renderD128", "platform/fb000000.gpu"),
        "sys/devices/platform/fb000000.gpu/driver": Link("../../../bus/platform/drivers/panthor"),
        "sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8\n",
        "dev/dma_heap/system": Mode(0o600),
        "dev/dma_heap/cma": Mode(0o600),
    }


def rk3588_mainline(release: str = "7.3.4+deb13-arm64", config: str = "") -> Tree:
    """The same board with a mainline kernel; Debian's has neither rocket nor dma-heaps."""
    config = config or "DRM_ACCEL=y DRM_ACCEL_ROCKET=n DMABUF_HEAPS=n UDMABUF=y DEBUG_INFO_BTF=y"
    return {
        **system(release, "aarch64", "kvm", config),
        **board("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588"),
        **platform("fdab0000.npu", "rockchip,rk3588-rknn-core"),
        **platform("fdac0000.npu", "rockchip,rk3588-rknn-core"),
        **platform("fdad0000.npu", "rockchip,rk3588-rknn-core"),
        "dev/udmabuf": Mode(0o660),
    }


def rk3588_rocket() -> Tree:
    """The same board with rocket: one node for three cores, on a device without a driver."""
    return {
        **rk3588_mainline("6.18.3", "DRM_ACCEL=y DRM_ACCEL_ROCKET=m UDMABUF=y"),
        **node("accel/accel0", "platform/rknn"),
        "sys/module/rocket/refcnt": "0\n",
        "etc/group": f"root:x:99999:\nrender:x:{os.getgid()}:\n",
    }


def snapdragon_x() -> Tree:
    """A laptop whose ADSP runs and whose CDSP has no firmware."""
    place = "sys/class/remoteproc"
    return {
        **system("6.16.0-1-arm64", "aarch64", "fastrpc", "QCOM_FASTRPC=m UDMABUF=y"),
        **board("Lenovo ThinkPad T14s Gen 6", "lenovo,thinkpad-t14s", "qcom,x1e80100"),
        f"{place}/remoteproc0/name": "6800000.remoteproc\n",
        f"{place}/remoteproc0/state": "running\n",
        f"{place}/remoteproc0/firmware": "qcom/x1e80100/LENOVO/21N1/qcadsp8380.mbn\n",
        f"{place}/remoteproc1/name": "32300000.remoteproc\n",
        f"{place}/remoteproc1/state": "offline\n",
        f"{place}/remoteproc1/firmware": "qcom/x1e80100/LENOVO/21N1/qccdsp8380.mbn\n",
        f"{place}/remoteproc2/name": "modem\n",
        f"{place}/remoteproc2/firmware": "qcom/modem.mbn\n",
        "lib/firmware/qcom/x1e80100/LENOVO/21N1/qcadsp8380.mbn": "",
        "sys/class/misc/fastrpc-adsp/dev": "10:100\n",
        "sys/class/misc/udmabuf/dev": "10:101\n",
        "sys/module/fastrpc/refcnt": "0\n",
        "dev/fastrpc-adsp": Mode(0o660),
        "dev/udmabuf": Mode(0o660),
    }


def ryzen_ai() -> Tree:
    """A laptop with everything in place but the group and the limit of locked memory."""
    config = "DRM_ACCEL=y DRM_ACCEL_AMDXDNA=m DMABUF_HEAPS=y UDMABUF=y IOMMU_SVA=y"
    address = "0000:c5:00.1"
    place = f"sys/devices/pci0000:00/{address}"
    return {
        **system("7.3.4+deb13-amd64", "x86_64", "render", config, memlock="8388608"),
        "sys/class/dmi/id/sys_vendor": "ASUSTeK COMPUTER INC.\n",
        "sys/class/dmi/id/product_name": "Zenbook S 16\n",
        **pci(address, 0x1022, 0x17F0, "amdxdna", 0x10),
        f"{place}/iommu_group": Link("../../../kernel/iommu_groups/21"),
        f"{place}/fw_version": "1.5.2.380\n",
        f"{place}/vbnv": "RyzenAI-npu4\n",
        **node("accel/accel0", f"pci0000:00/{address}"),
        "sys/class/iommu/ivhd0/devices": "",
        "lib/firmware/amdnpu/17f0_10/npu.sbin.xz": "",
        "dev/dma_heap/system": Mode(0o660),
        "dev/udmabuf": Mode(0o660),
    }


def ryzen_ai_unbound(command_line: str = "", *, firmware: bool = True, iommu: bool = False) -> Tree:
    """The same laptop when the driver did not take the device."""
    address = "0000:c5:00.1"
    tree = {
        **system("7.3.4+deb13-amd64", "x86_64", "render", "DRM_ACCEL_AMDXDNA=m"),
        **pci(address, 0x1022, 0x17F0, "", 0x10),
        "sys/module/amdxdna/refcnt": "0\n",
    }
    tree["proc/cmdline"] = command_line
    if firmware:
        tree["usr/lib/firmware/amdnpu/17f0_10/npu_7.sbin.zst"] = ""
    if iommu:
        tree[f"sys/devices/pci0000:00/{address}/iommu_group"] = Link("../../../groups/1")
    return tree


def core_ultra() -> Tree:
    """A laptop whose NPU nobody but root may open; the kernel's configuration is in /boot."""
    address = "0000:00:0b.0"
    return {
        **system("6.12.117-amd64", "x86_64", "render"),
        "boot/config-6.12.117-amd64": "CONFIG_DRM_ACCEL_IVPU=m\nCONFIG_UDMABUF=y\n",
        "sys/class/dmi/id/product_name": "XPS 13 9350\n",
        **pci(address, 0x8086, 0x643E, "intel_vpu"),
        **node("accel/accel0", f"pci0000:00/{address}", 0o600),
        "sys/module/intel_vpu/version": "1.0.0 6.12.117-amd64\n",
        "lib/firmware/intel/vpu/vpu_40xx_v0.0.bin": "",
    }


def nothing() -> Tree:
    """A virtual machine without an NPU."""
    return {
        **system("6.12.117-cloud-amd64", "x86_64", "render", "DMABUF_HEAPS=n", memlock="unlimited"),
        "proc/cpuinfo": "processor : 0\nflags : fpu vme hypervisor\n",
        **pci("0000:00:02.0", 0x1234, 0x1111, "bochs-drm"),
    }
