# SPDX-License-Identifier: MIT
"""Simulated DRM synchronization objects, binary and timeline (drivers/gpu/drm/drm_syncobj.c).

A timeline is a list of points, each with a fence; a point counts as reached once it and all points
before it have signalled. Point 0 of a question means the newest one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npukit.abi import drm as abi
from npukit.ioctl import Ioctl

from .core import Caller, Errno, SimFile
from .fence import Fence, SyncFileSim

if TYPE_CHECKING:
    from .kernel import SimKernel

_WAIT_FLAGS = (
    abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL
    | abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT
    | abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_DEADLINE
)
_MAX_HANDLES = 1 << 16
"""More than memory would let the kernel take in one call."""


class Syncobj:
    """One object. Handles, descriptors and a driver may hold it."""

    def __init__(self, kernel: SimKernel) -> None:
        self.kernel = kernel
        self.points: list[tuple[int, Fence]] = []
        """(number, fence) in order; a binary object has one point, of number 0."""
        self.timeline = False
        self.watchers: list[Callable[[], bool]] = []
        """Asked after each change, until they say that they have seen what they wait for."""

    def _changed(self) -> None:
        self.watchers = [watcher for watcher in self.watchers if not watcher()]
        self.kernel.changed.notify_all()

    def replace(self, fence: Fence | None) -> None:
        """Make it binary, with this fence."""
        self.timeline = False
        self.points = [] if fence is None else [(0, fence)]
        self._changed()

    def add_point(self, number: int, fence: Fence) -> None:
        """A further point; a number that is not above the last takes the last's place in order."""
        if not self.timeline:
            self.points = []
        self.timeline = True
        # What all wait for anyway need not be kept.
        while len(self.points) > 1 and self.points[0][1].signalled:
            del self.points[0]
        last = self.points[-1][0] if self.points else 0
        self.points.append((max(number, last), fence))
        self._changed()

    def find(self, number: int) -> list[Fence] | None:
        """The fences behind a point: its own and all before. None when it does not exist yet."""
        if not self.points:
            return None
        if number == 0:
            return [fence for _, fence in self.points]
        if not self.timeline or self.points[-1][0] < number:
            return None
        fences = []
        for point, fence in self.points:
            fences.append(fence)
            if point >= number:
                break
        return fences

    def reached(self) -> int:
        """The highest point that has been reached."""
        highest = 0
        for number, fence in self.points if self.timeline else ():
            if not fence.signalled:
                break
            highest = number
        return highest

    def submitted(self) -> int:
        return self.points[-1][0] if self.timeline and self.points else 0


class SyncobjFile(SimFile):
    """A descriptor of a syncobj, to give it to another process."""

    def __init__(self, kernel: SimKernel, syncobj: Syncobj) -> None:
        super().__init__(kernel)
        self.syncobj = syncobj


def _signalled(kernel: SimKernel) -> Fence:
    fence = Fence(kernel, "drm_stub", "stub", object())
    fence.signal()
    return fence


def _find(file: Any, handle: int, code: int = errno.ENOENT) -> Syncobj:
    found = file.syncobjs.get(handle)
    if found is None:
        raise Errno(code)
    return found  # type: ignore[no-any-return]


def add(file: Any, syncobj: Syncobj) -> int:
    """A handle for ``syncobj`` in an open file: the lowest free number from 1 on."""
    handle = 1
    while handle in file.syncobjs:
        handle += 1
    file.syncobjs[handle] = syncobj
    return handle


def create(file: Any, caller: Caller, arg: abi.drm_syncobj_create) -> None:
    if arg.flags & ~abi.DRM_SYNCOBJ_CREATE_SIGNALED:
        raise Errno(errno.EINVAL)
    syncobj = Syncobj(file.kernel)
    if arg.flags:
        syncobj.replace(_signalled(file.kernel))
    arg.handle = add(file, syncobj)


def destroy(file: Any, caller: Caller, arg: abi.drm_syncobj_destroy) -> None:
    if arg.pad:
        raise Errno(errno.EINVAL)
    _find(file, arg.handle, errno.EINVAL)
    del file.syncobjs[arg.handle]


def handle_to_fd(file: Any, caller: Caller, arg: abi.drm_syncobj_handle) -> None:
    sync_file = abi.DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE
    timeline = abi.DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE
    if arg.pad or arg.flags not in (0, sync_file, sync_file | timeline):
        raise Errno(errno.EINVAL)
    point = arg.point if arg.flags & timeline else 0
    if arg.flags & sync_file:
        fences = _find(file, arg.handle).find(point)
        if fences is None:
            raise Errno(errno.EINVAL)
        arg.fd = SyncFileSim(file.kernel, fences).install()
        return
    if arg.point:
        raise Errno(errno.EINVAL)
    syncobj = _find(file, arg.handle, errno.EINVAL)
    fd = os.memfd_create("syncobj_file", os.MFD_CLOEXEC)
    arg.fd = file.kernel.install(fd, SyncobjFile(file.kernel, syncobj))


def fd_to_handle(file: Any, caller: Caller, arg: abi.drm_syncobj_handle) -> None:
    sync_file = abi.DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE
    timeline = abi.DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_TIMELINE
    if arg.pad or arg.flags not in (0, sync_file, sync_file | timeline):
        raise Errno(errno.EINVAL)
    found = file.kernel.file(arg.fd)
    if arg.flags & sync_file:
        if not isinstance(found, SyncFileSim):
            raise Errno(errno.EINVAL)
        syncobj = _find(file, arg.handle)
        fence = _all_of(file.kernel, found.fences)
        if arg.flags & timeline:
            syncobj.add_point(arg.point, fence)
        else:
            syncobj.replace(fence)
        return
    if arg.point or not isinstance(found, SyncobjFile):
        raise Errno(errno.EINVAL)
    arg.handle = add(file, found.syncobj)


def _all_of(kernel: SimKernel, fences: list[Fence]) -> Fence:
    """One fence that signals with the last of several."""
    if len(fences) == 1:
        return fences[0]
    whole = Fence(kernel, "dma_fence_array", "unbound", object())

    def look() -> None:
        if all(fence.signalled for fence in fences):
            whole.signal()

    for fence in fences:
        fence.then(look)
    return whole


def transfer(file: Any, caller: Caller, arg: abi.drm_syncobj_transfer) -> None:
    if arg.pad or arg.flags & ~abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT:
        raise Errno(errno.EINVAL)
    source, target = _find(file, arg.src_handle), _find(file, arg.dst_handle)
    if arg.flags:
        # The kernel waits five seconds for the point to come.
        file.kernel.wait_for(lambda: source.find(arg.src_point) is not None, 5.0)
    fences = source.find(arg.src_point)
    if fences is None:
        raise Errno(errno.ETIME if arg.flags else errno.EINVAL)
    fence = _all_of(file.kernel, fences)
    if arg.dst_point:
        target.add_point(arg.dst_point, fence)
    else:
        target.replace(fence)


def _array(caller: Caller, address: int, count: int, ctype: Any) -> list[int]:
    if count > _MAX_HANDLES:
        raise Errno(errno.ENOMEM)
    raw = caller.copy_from_user(address, count * ctypes.sizeof(ctype))
    return list((ctype * count).from_buffer_copy(raw))


def _objects(file: Any, caller: Caller, arg: Any) -> list[Syncobj]:
    handles = _array(caller, arg.handles, arg.count_handles, ctypes.c_uint32)
    return [_find(file, handle) for handle in handles]


def wait(file: Any, caller: Caller, arg: abi.drm_syncobj_wait) -> None:
    if arg.flags & ~_WAIT_FLAGS:
        raise Errno(errno.EINVAL)
    if arg.count_handles == 0:
        return
    objects = _objects(file, caller, arg)
    _wait(file.kernel, arg, objects, [0] * len(objects), arg.flags)


def timeline_wait(file: Any, caller: Caller, arg: abi.drm_syncobj_timeline_wait) -> None:
    if arg.flags & ~(_WAIT_FLAGS | abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE):
        raise Errno(errno.EINVAL)
    if arg.count_handles == 0:
        return
    objects = _objects(file, caller, arg)
    points = [0] * len(objects)
    if arg.points:
        points = _array(caller, arg.points, arg.count_handles, ctypes.c_uint64)
    _wait(file.kernel, arg, objects, points, arg.flags)


def _wait(
    kernel: SimKernel, arg: Any, objects: list[Syncobj], points: list[int], flags: int
) -> None:
    for_submit = flags & (
        abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT | abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE
    )
    available = bool(flags & abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE)
    # A point that is there at the start keeps its fences; one that comes later is looked up anew.
    known: list[list[Fence] | None] = []
    for syncobj, point in zip(objects, points, strict=True):
        fences = syncobj.find(point)
        if fences is None and not for_submit:
            raise Errno(errno.EINVAL)
        known.append(fences)

    def done(index: int) -> bool:
        fences = known[index]
        if fences is None:
            fences = known[index] = objects[index].find(points[index])
        return fences is not None and (available or all(fence.signalled for fence in fences))

    def enough() -> bool:
        states = [done(index) for index in range(len(objects))]
        if True in states:
            arg.first_signaled = states.index(True)
        everything = flags & abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL
        return all(states) if everything else any(states)

    left = (arg.timeout_nsec - time.monotonic_ns()) / 1e9 if arg.timeout_nsec > 0 else 0
    if not kernel.wait_for(enough, min(max(left, 0), 1 << 20), interruptible=True):
        raise Errno(errno.ETIME)


def eventfd(file: Any, caller: Caller, arg: abi.drm_syncobj_eventfd) -> None:
    available = abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE
    if arg.flags & ~available or arg.pad:
        raise Errno(errno.EINVAL)
    syncobj = _find(file, arg.handle)
    point, kernel = arg.point, file.kernel
    event = _Event(caller.take(arg.fd))

    def look() -> bool:
        fences = syncobj.find(point)
        if fences is None:
            return False
        fence = _signalled(kernel) if arg.flags & available else _all_of(kernel, fences)
        fence.then(event.tell)
        return True

    if not look():
        syncobj.watchers.append(look)


class _Event:
    """An eventfd of our own, closed once it was told, or with the last who knows of it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def tell(self) -> None:
        os.eventfd_write(self.fd, 1)
        self.__del__()

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def reset(file: Any, caller: Caller, arg: abi.drm_syncobj_array) -> None:
    for syncobj in _some(file, caller, arg):
        syncobj.replace(None)


def signal(file: Any, caller: Caller, arg: abi.drm_syncobj_array) -> None:
    for syncobj in _some(file, caller, arg):
        syncobj.replace(_signalled(file.kernel))


def _some(file: Any, caller: Caller, arg: abi.drm_syncobj_array) -> list[Syncobj]:
    if arg.pad or arg.count_handles == 0:
        raise Errno(errno.EINVAL)
    return _objects(file, caller, arg)


def timeline_signal(file: Any, caller: Caller, arg: abi.drm_syncobj_timeline_array) -> None:
    if arg.flags or arg.count_handles == 0:
        raise Errno(errno.EINVAL)
    objects = _objects(file, caller, arg)
    points = [0] * len(objects)
    if arg.points:
        points = _array(caller, arg.points, arg.count_handles, ctypes.c_uint64)
    for syncobj, point in zip(objects, points, strict=True):
        syncobj.add_point(point, _signalled(file.kernel))


def query(file: Any, caller: Caller, arg: abi.drm_syncobj_timeline_array) -> None:
    last = abi.DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED
    if arg.flags & ~last or arg.count_handles == 0:
        raise Errno(errno.EINVAL)
    objects = _objects(file, caller, arg)
    values = [o.submitted() if arg.flags & last else o.reached() for o in objects]
    caller.copy_to_user(arg.points, bytes((ctypes.c_uint64 * len(values))(*values)))


HANDLERS: dict[Ioctl, Callable[[Any, Caller, Any], None]] = {
    abi.DRM_IOCTL_SYNCOBJ_CREATE: create,
    abi.DRM_IOCTL_SYNCOBJ_DESTROY: destroy,
    abi.DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD: handle_to_fd,
    abi.DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE: fd_to_handle,
    abi.DRM_IOCTL_SYNCOBJ_TRANSFER: transfer,
    abi.DRM_IOCTL_SYNCOBJ_WAIT: wait,
    abi.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT: timeline_wait,
    abi.DRM_IOCTL_SYNCOBJ_EVENTFD: eventfd,
    abi.DRM_IOCTL_SYNCOBJ_RESET: reset,
    abi.DRM_IOCTL_SYNCOBJ_SIGNAL: signal,
    abi.DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL: timeline_signal,
    abi.DRM_IOCTL_SYNCOBJ_QUERY: query,
}
"""Request -> what an open file of a device with syncobjs does."""
