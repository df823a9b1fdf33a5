# SPDX-License-Identifier: MIT
"""What every DRM and accel device can do: say who it is, export buffers, close handles."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass

from npukit.abi import drm as abi
from npukit.ioctl import AbiMismatch, Ioctl, Kernel, NpuError

from .base import Buffer, Device
from .dma_buf import DmaBuf


@dataclass(frozen=True, slots=True)
class DrmVersion:
    """The answer of DRM_IOCTL_VERSION."""

    name: str
    major: int
    minor: int
    patch: int
    description: str


def drm_version(kernel: Kernel, fd: int) -> DrmVersion | None:
    """Who drives this file; None when it is not a DRM device. NpuError when it would not say."""
    name, desc = ctypes.create_string_buffer(64), ctypes.create_string_buffer(128)
    version = abi.drm_version(
        name=ctypes.addressof(name),
        name_len=len(name),
        desc=ctypes.addressof(desc),
        desc_len=len(desc),
    )
    try:
        abi.DRM_IOCTL_VERSION(kernel, fd, version)
    except NpuError as error:
        # ENOTTY is what a file of another kind says; a few drivers know every type of request.
        if error.errno in (errno.ENOTTY, errno.EINVAL):
            return None
        raise
    # The vendor's misc device takes any request of this number for its own and answers something.
    if b"\0" in name.raw[: version.name_len]:
        return None
    return DrmVersion(
        name.raw[: version.name_len].decode(errors="replace"),
        version.version_major,
        version.version_minor,
        version.version_patchlevel,
        desc.raw[: version.desc_len].decode(errors="replace"),
    )


class DrmDevice(Device):
    """A device behind DRM's core requests. Refuses a node that another driver serves."""

    def __init__(self, kernel: Kernel, path: str) -> None:
        super().__init__(kernel, path)
        try:
            version = drm_version(kernel, self._file.fd)
        except NpuError:
            self.close()
            raise
        if version is None or version.name != self.driver:
            found = f"driver {version.name!r}" if version else "not a DRM device"
            self.close()
            raise AbiMismatch(path=path, hint=f"{found}, not {self.driver!r}")
        self.version = version

    def capability(self, capability: int) -> int | None:
        """DRM_IOCTL_GET_CAP; None where the driver does not know it."""
        try:
            return int(self.call(abi.DRM_IOCTL_GET_CAP, capability=capability).value)
        except NpuError:
            return None

    def set_client_name(self, name: str) -> None:
        """Name this open file for /proc and debugfs: at most 64 printable characters, no space.

        Kernels before 6.13 refuse it with EINVAL.
        """
        text = ctypes.create_string_buffer(name.encode())
        self.call(
            abi.DRM_IOCTL_SET_CLIENT_NAME,
            name_len=len(text) - 1,
            name=ctypes.addressof(text),
        )

    def export(self, buffer: Buffer) -> DmaBuf:
        """A dma-buf of ``buffer``. Close it before the device: the file stays open until then."""
        return prime_export(self, buffer)

    def _close_handle(self, request: Ioctl, handle: int) -> None:
        request(self.kernel, self._file.fd, handle=handle)


def prime_export(device: Device, buffer: Buffer) -> DmaBuf:
    """A dma-buf of a GEM buffer."""
    device._check_buffer(buffer)
    answer = device.call(
        abi.DRM_IOCTL_PRIME_HANDLE_TO_FD,
        handle=buffer.handle,
        flags=abi.DRM_CLOEXEC | abi.DRM_RDWR,
        fd=-1,
    )
    return DmaBuf(device.kernel, answer.fd, buffer.size, exporter=device)


def driver_of(kernel: Kernel, path: str) -> str | None:
    """The driver's name behind a node; None when it is no DRM device. OSError as open(2) has it."""
    fd = kernel.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        version = drm_version(kernel, fd)
        return version.name if version else None
    finally:
        kernel.close(fd)
