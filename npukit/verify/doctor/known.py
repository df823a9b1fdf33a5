# SPDX-License-Identifier: MIT
"""The NPUs that Linux has drivers for, and how the hardware is told.

PCI numbers, device tree names and firmware paths are those of the drivers' own tables (modinfo of
Linux 7.3.4, drivers/accel and drivers/misc/fastrpc.c); rknpu's of Rockchip's vendor kernel.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of NPU. ``subject`` is the npukit.abi module of its driver, ``firmware`` a pattern
    below /lib/firmware that the driver loads, in which {revision} is the PCI revision."""

    subject: str
    title: str
    firmware: str = ""


_PHOENIX = Chip("amdxdna", "AMD XDNA (Phoenix, Hawk Point)", "amdnpu/1502_{revision}/npu*.sbin")
_STRIX = Chip("amdxdna", "AMD XDNA 2 (Strix, Krackan)", "amdnpu/17f0_{revision}/npu*.sbin")
_AIE4 = Chip("amdxdna", "AMD XDNA (AIE4)")
_GAUDI = Chip("habanalabs", "Intel Gaudi", "habanalabs/gaudi/gaudi-fit.itb")


def _intel(name: str, generation: int) -> Chip:
    return Chip("ivpu", f"Intel NPU ({name})", f"intel/vpu/vpu_{generation}xx_v*.bin")


PCI = {
    (0x1022, 0x1502): _PHOENIX,
    (0x1022, 0x17F0): _STRIX,
    (0x1022, 0x17F2): _AIE4,
    (0x1022, 0x17F3): _AIE4,
    (0x1022, 0x1B0B): _AIE4,
    (0x1022, 0x1B0C): _AIE4,
    (0x8086, 0x7D1D): _intel("Meteor Lake", 37),
    (0x8086, 0xAD1D): _intel("Arrow Lake", 37),
    (0x8086, 0x643E): _intel("Lunar Lake", 40),
    (0x8086, 0xB03E): _intel("Panther Lake", 50),
    (0x8086, 0xFD3E): _intel("Wildcat Lake", 50),
    (0x8086, 0xD71D): _intel("Nova Lake", 60),
    (0x17CB, 0xA080): Chip("qaic", "Qualcomm Cloud AI 080", "qcom/aic100/*"),
    (0x17CB, 0xA100): Chip("qaic", "Qualcomm Cloud AI 100", "qcom/aic100/*"),
    (0x1DA3, 0x1000): _GAUDI,
    (0x1DA3, 0x1010): _GAUDI,
    (0x1DA3, 0x1020): Chip("habanalabs", "Intel Gaudi 2"),
}
"""(vendor, device) -> chip."""

_RK3588_VENDOR = Chip("rknpu", "Rockchip RK3588 NPU, vendor driver")
_RK3588 = Chip("rocket", "Rockchip RK3588 NPU")

COMPATIBLE = {
    "rockchip,rk3588-rknpu": _RK3588_VENDOR,
    "rockchip,rk3588-rknn-core": _RK3588,
    "arm,ethos-u65": Chip("ethosu", "Arm Ethos-U65"),
    "arm,ethos-u85": Chip("ethosu", "Arm Ethos-U85"),
}
"""A platform device's compatible string -> chip."""

HEXAGON = Chip("fastrpc", "Qualcomm Hexagon DSP")

SOCS = {"rockchip,rk3588": _RK3588, "rockchip,rk3588s": _RK3588}
"""A board's compatible string -> the chip inside, for boards whose device tree hides it."""

SYSFS_DRIVERS = {
    "RKNPU": "rknpu",
    "rocket": "rocket",
    "ethosu": "ethosu",
    "amdxdna": "amdxdna",
    "intel_vpu": "ivpu",
    "qaic": "qaic",
    "habanalabs": "habanalabs",
}
"""A driver's name under /sys -> npukit.abi module."""

DRM_NAMES = {"amdxdna": "amdxdna_accel_driver", "ivpu": "intel_vpu"}
"""The name that DRM_IOCTL_VERSION answers, where it is not that of the module."""
