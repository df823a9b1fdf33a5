# SPDX-License-Identifier: MIT
"""A dma-buf: memory shared between devices by file descriptor."""

from __future__ import annotations

import os
import weakref

from npukit._fast import Mapping
from npukit.abi import dma_buf as abi
from npukit.ioctl import Kernel

from .base import Device, Memory, OpenFile

_SYNC = {"r": abi.DMA_BUF_SYNC_READ, "w": abi.DMA_BUF_SYNC_WRITE, "rw": abi.DMA_BUF_SYNC_RW}
# Made once: a turn is taken often, and the kernel only reads them.
_START = {m: abi.dma_buf_sync(flags=abi.DMA_BUF_SYNC_START | bits) for m, bits in _SYNC.items()}
_END = {m: abi.dma_buf_sync(flags=abi.DMA_BUF_SYNC_END | bits) for m, bits in _SYNC.items()}


class DmaBuf(Memory):
    """An open dma-buf file descriptor, owned by this object.

    ``size`` in bytes is asked from the kernel when it is not given.
    """

    def __init__(
        self, kernel: Kernel, fd: int, size: int | None = None, *, exporter: Device | None = None
    ) -> None:
        super().__init__(
            kernel.lseek(fd, 0, os.SEEK_END) if size is None else size, OpenFile(kernel, fd)
        )
        self.fd = fd
        # The exporter's file must outlive the dma-buf: some drivers free through the file.
        if exporter is not None:
            exporter._file.retain()
            exporter._exports.add(self)
            self._let_go = weakref.finalize(self, exporter._file.release)

    def __repr__(self) -> str:
        return f"<DmaBuf fd {self.fd} of {self.size} bytes>"

    def _make_mapping(self) -> Mapping:
        return self._file.kernel.mmap(self.fd, self.size)

    def _begin(self, mode: str, timeout: float) -> None:
        abi.DMA_BUF_IOCTL_SYNC(self._file.kernel, self.fd, _START[mode])

    def _end(self, mode: str) -> None:
        abi.DMA_BUF_IOCTL_SYNC(self._file.kernel, self.fd, _END[mode])

    def set_name(self, name: str) -> None:
        """Name it for debugging, 31 bytes at most."""
        self._check_open()
        encoded = name.encode()
        if len(encoded) >= abi.DMA_BUF_NAME_LEN:
            raise ValueError(f"{name!r} is longer than {abi.DMA_BUF_NAME_LEN - 1} bytes")
        abi.DMA_BUF_SET_NAME_B(self._file.kernel, self.fd, encoded + b"\0")

    def close(self) -> None:
        """Close the file descriptor. Idempotent. Arrays on it stay valid until they are gone."""
        if self._closed:
            return
        self._closed = True
        self._unmap()
        self._file.release()
        if hasattr(self, "_let_go"):
            self._let_go()
