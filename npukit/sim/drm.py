# SPDX-License-Identifier: MIT
"""The part of DRM that every simulated DRM driver shares: the ioctl frame, GEM handles, mmap
offsets, PRIME and the core requests (drivers/gpu/drm/drm_{ioctl,gem,prime}.c)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, ClassVar

from npukit.abi import drm as abi
from npukit.ioctl import IOC_READ, IOC_WRITE, Ioctl, decode
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .core import Area, Caller, Errno, Pages, Piece, SimDevice, SimFile
from .dma_buf import Backing, DmaBufSim
from .iova import BestFit
from .syncobj import HANDLERS as SYNCOBJ_HANDLERS
from .syncobj import Syncobj

_OFFSETS_START = 1 << 32
_OFFSETS_END = _OFFSETS_START + (1 << 40)


class GemObject(Backing):
    """A buffer object. It lives while a handle, a mapping, a dma-buf or a job holds it."""

    def __init__(self, device: DrmDeviceSim, size: int) -> None:
        self.device = device
        self.size = size
        """Bytes, whole pages."""
        self.writers = []
        self.offset: int | None = None
        """Where mmap finds it in the node."""
        self.export: DmaBufSim | None = None
        self._users = 1
        self._place = device.pages.take(size)
        try:
            self.pages = device.pages.map(self._place, size)
            """The memory as the driver and the NPU see it."""
        except OSError as error:
            device.pages.free(self._place, size)
            raise Errno(error.errno or errno.ENOMEM) from None

    def make_offset(self) -> int:
        if self.offset is None:
            offsets = self.device.offsets
            self.offset = self._place if offsets is None else offsets.take(self.size)
            self.device.by_offset[self.offset] = self
        return self.offset

    def pieces(self, length: int, offset: int, flags: int) -> list[Piece]:
        if offset + length > round_to_page(self.size):
            raise Errno(errno.EINVAL)
        return [Piece(self.device.pages.fd, self._place + offset, length)]

    def get(self) -> None:
        self._users += 1

    def put(self) -> None:
        self._users -= 1
        if self._users == 0:
            if self.offset is not None:
                del self.device.by_offset[self.offset]
                if self.device.offsets is not None:
                    self.device.offsets.free(self.offset)
            self.freed()
            self.pages.close()
            self.device.pages.free(self._place, self.size)

    def freed(self) -> None:
        """Give back what the driver added."""


Handler = Callable[[Any, Caller, Any], None]


class DrmDeviceSim(SimDevice):
    """A DRM device: what its open files share."""

    major = 226
    driver_name: ClassVar[str]
    driver_version: ClassVar[tuple[int, int, int]]
    driver_date: ClassVar[str]
    driver_desc: ClassVar[str]
    file_class: ClassVar[type[DrmFileSim]]
    has_syncobj: ClassVar[bool] = False
    """DRIVER_SYNCOBJ and DRIVER_SYNCOBJ_TIMELINE."""

    def __init__(self, kernel: Any, paths: tuple[str, ...]) -> None:
        super().__init__(kernel, paths)
        self.pages = Pages(self.name)
        # None: an object's mmap offset is its place in the file of the pages.
        self.offsets: BestFit | None = BestFit(_OFFSETS_START, _OFFSETS_END, PAGE_SIZE)
        self.by_offset: dict[int, GemObject] = {}

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        if flags & os.O_EXCL:
            raise Errno(errno.EBUSY)
        # A fresh open file of the memory, so that a position or a lock on it is not shared.
        fd = os.open(f"/proc/self/fd/{self.pages.fd}", os.O_RDWR)
        self.pages.hold()
        return self.file_class(self.kernel, self, path), fd


class DrmFileSim(SimFile):
    """An open file of a DRM device, with its handles."""

    requests: ClassVar[dict[int, tuple[Ioctl, Handler]]] = {}
    """Driver number (0 is DRM_COMMAND_BASE) -> request and method."""

    def __init__(self, kernel: Any, device: Any, path: str) -> None:
        super().__init__(kernel)
        self.device = device
        self.path = path
        self.handles: dict[int, Any] = {}
        self._free_handle = 1
        """No number below it is free."""
        self.imports: dict[DmaBufSim, int] = {}
        self.syncobjs: dict[int, Syncobj] = {}
        self.client_name = ""

    def stat_mode(self) -> tuple[int, int]:
        number = int(os.path.basename(self.path).lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"))
        return stat.S_IFCHR | 0o660, os.makedev(self.device.major, number)

    def released(self) -> None:
        for handle in list(self.handles):
            self.close_handle(handle)
        self.device.pages.drop()

    # Handles.

    def add_handle(self, gem: GemObject) -> int:
        """The lowest free number from 1 on, which takes over the caller's hold of ``gem``."""
        handle = self._free_handle
        while handle in self.handles:
            handle += 1
        self.handles[handle] = gem
        self._free_handle = handle + 1
        return handle

    def look_up(self, handle: int, code: int = errno.ENOENT) -> Any:
        gem = self.handles.get(handle)
        if gem is None:
            raise Errno(code)
        return gem

    def close_handle(self, handle: int) -> None:
        gem = self.handles.pop(handle)
        self._free_handle = min(self._free_handle, handle)
        for buffer, imported in list(self.imports.items()):
            if imported == handle:
                del self.imports[buffer]
        gem.put()

    # System calls.

    def lseek(self, offset: int, whence: int) -> int:
        """noop_llseek of drm_accel.h and drm_gem.h: the position, which is never moved."""
        return 0

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        if offset % PAGE_SIZE:
            raise Errno(errno.EINVAL)
        gem = self.device.by_offset.get(offset)
        if gem is None or round_to_page(length) > round_to_page(gem.size):
            raise Errno(errno.EINVAL)
        if gem not in self.handles.values():
            raise Errno(errno.EACCES)
        pieces = gem.pieces(length, 0, flags)
        gem.get()
        return Area(pieces, gem.put)

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        """The number alone decides; sizes may differ; the answer is copied out even on failure."""
        parts = decode(request)
        if parts.type != abi.DRM_IOCTL_BASE:
            raise Errno(errno.ENOTTY)
        if abi.DRM_COMMAND_BASE <= parts.nr < abi.DRM_COMMAND_END:
            entry = self.requests.get(parts.nr - abi.DRM_COMMAND_BASE)
        else:
            entry = _CORE.get(parts.nr)
        if entry is None:
            raise Errno(errno.EINVAL)
        known, handler = entry
        size = known.size
        direction = parts.direction & known.direction
        raw = b""
        if direction & IOC_WRITE:
            raw = caller.copy_from_user(address, min(parts.size, size))
        struct = known.struct.from_buffer_copy(raw.ljust(size, b"\0"))
        try:
            handler(self, caller, struct)
        finally:
            if direction & IOC_READ:
                caller.copy_to_user(address, bytes(struct)[: parts.size])
        return 0

    # Core requests.

    def get_version(self, caller: Caller, arg: abi.drm_version) -> None:
        device = self.device
        arg.version_major, arg.version_minor, arg.version_patchlevel = device.driver_version
        for field, text in (
            ("name", device.driver_name),
            ("date", device.driver_date),
            ("desc", device.driver_desc),
        ):
            room = getattr(arg, field + "_len")
            setattr(arg, field + "_len", len(text))
            if room and getattr(arg, field):
                caller.copy_to_user(getattr(arg, field), text.encode()[:room])

    def get_unique(self, caller: Caller, arg: abi.drm_unique) -> None:
        """The bus id, which a card node has only after SET_VERSION. libdrm asks for it."""
        if "renderD" in self.path:
            raise Errno(errno.EACCES)
        if "card" not in self.path:
            # drm_getunique() takes an accel node to have a master, which it has not.
            raise Errno(errno.EINVAL)
        arg.unique_len = 0

    def get_cap(self, caller: Caller, arg: abi.drm_get_cap) -> None:
        arg.value = 0
        values = {
            abi.DRM_CAP_TIMESTAMP_MONOTONIC: 1,
            abi.DRM_CAP_PRIME: abi.DRM_PRIME_CAP_IMPORT | abi.DRM_PRIME_CAP_EXPORT,
            abi.DRM_CAP_SYNCOBJ: int(self.device.has_syncobj),
            abi.DRM_CAP_SYNCOBJ_TIMELINE: int(self.device.has_syncobj),
        }
        if arg.capability not in values:
            raise Errno(errno.EOPNOTSUPP)
        arg.value = values[arg.capability]

    def set_client_cap(self, caller: Caller, arg: abi.drm_set_client_cap) -> None:
        raise Errno(errno.EACCES if "renderD" in self.path else errno.EOPNOTSUPP)

    def set_client_name(self, caller: Caller, arg: abi.drm_set_client_name) -> None:
        if arg.name_len > abi.DRM_CLIENT_NAME_MAX_LEN:
            raise Errno(errno.EINVAL)
        name = caller.copy_from_user(arg.name, arg.name_len) if arg.name_len else b""
        if any(not 0x21 <= byte <= 0x7E for byte in name):
            raise Errno(errno.EINVAL)
        self.client_name = name.decode()

    def gem_close(self, caller: Caller, arg: abi.drm_gem_close) -> None:
        self.look_up(arg.handle, errno.EINVAL)
        self.close_handle(arg.handle)

    def prime_handle_to_fd(self, caller: Caller, arg: abi.drm_prime_handle) -> None:
        if arg.flags & ~(abi.DRM_CLOEXEC | abi.DRM_RDWR):
            raise Errno(errno.EINVAL)
        gem = self.look_up(arg.handle)
        buffer = gem.export
        if buffer is None or buffer.holders == 0:
            buffer = DmaBufSim(self.kernel, gem, bool(arg.flags & abi.DRM_RDWR))
            gem.export = buffer
        self.imports.setdefault(buffer, arg.handle)
        arg.fd = buffer.install(bool(arg.flags & abi.DRM_CLOEXEC))

    def prime_fd_to_handle(self, caller: Caller, arg: abi.drm_prime_handle) -> None:
        file = self.kernel.file(arg.fd)
        if file is None:
            os.close(caller.take(arg.fd))
        if not isinstance(file, DmaBufSim):
            raise Errno(errno.EINVAL)
        if file not in self.imports:
            gem = file.backing
            if not isinstance(gem, GemObject) or gem.device is not self.device:
                gem = self.import_foreign(file)
            else:
                gem.get()
            self.imports[file] = self.add_handle(gem)
        arg.handle = self.imports[file]

    def import_foreign(self, buffer: DmaBufSim) -> GemObject:
        """A dma-buf of another device; drivers that can take one override this."""
        raise Errno(errno.EINVAL)


def _if_supported(handler: Handler) -> Handler:
    """``handler`` for a device with syncobjs; others do not support the request."""

    def checked(file: DrmFileSim, caller: Caller, arg: Any) -> None:
        if not file.device.has_syncobj:
            raise Errno(errno.EOPNOTSUPP)
        handler(file, caller, arg)

    return checked


def _core() -> dict[int, tuple[Ioctl, Handler]]:
    handlers: dict[Ioctl, Handler] = {
        abi.DRM_IOCTL_VERSION: DrmFileSim.get_version,
        abi.DRM_IOCTL_GET_UNIQUE: DrmFileSim.get_unique,
        abi.DRM_IOCTL_GET_CAP: DrmFileSim.get_cap,
        abi.DRM_IOCTL_SET_CLIENT_CAP: DrmFileSim.set_client_cap,
        abi.DRM_IOCTL_SET_CLIENT_NAME: DrmFileSim.set_client_name,
        abi.DRM_IOCTL_GEM_CLOSE: DrmFileSim.gem_close,
        abi.DRM_IOCTL_PRIME_HANDLE_TO_FD: DrmFileSim.prime_handle_to_fd,
        abi.DRM_IOCTL_PRIME_FD_TO_HANDLE: DrmFileSim.prime_fd_to_handle,
    }
    for request, handler in SYNCOBJ_HANDLERS.items():
        handlers[request] = _if_supported(handler)
    return {request.nr: (request, handler) for request, handler in handlers.items()}


_CORE = _core()
