# SPDX-License-Identifier: MIT
"""Simulated DRM syncobjs, binary and timeline, through raw requests on a device that has them."""

import ctypes
import errno
import os
import select
import threading
import time
from collections.abc import Iterator

import pytest
from raw import Raw
from support import no_leak

from npukit.abi import drm, sync_file
from npukit.sim import SimKernel

CREATE = drm.DRM_IOCTL_SYNCOBJ_CREATE
DESTROY = drm.DRM_IOCTL_SYNCOBJ_DESTROY
SIGNAL = drm.DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL
FOR_SUBMIT = drm.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT
ALL = drm.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL
AVAILABLE = drm.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE


@pytest.fixture
def node() -> Iterator[Raw]:
    with no_leak():
        with Raw(SimKernel(["amdxdna"]), "/dev/accel/accel0") as node:
            yield node
        del node


def create(node: Raw, flags: int = 0) -> int:
    return int(node.ok(CREATE, flags=flags).handle)


def signal(node: Raw, handle: int, point: int) -> int:
    handles, points = ctypes.c_uint32(handle), ctypes.c_uint64(point)
    return node.ask(
        SIGNAL,
        handles=ctypes.addressof(handles),
        points=ctypes.addressof(points),
        count_handles=1,
    )[0]


def wait(
    node: Raw, *targets: tuple[int, int], flags: int = 0, seconds: float = 0.0
) -> tuple[int, int]:
    """(errno, which was first)."""
    count = len(targets)
    handles = (ctypes.c_uint32 * count)(*(handle for handle, _ in targets))
    points = (ctypes.c_uint64 * count)(*(point for _, point in targets))
    code, answer = node.ask(
        drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT,
        handles=ctypes.addressof(handles),
        points=ctypes.addressof(points),
        count_handles=count,
        flags=flags,
        timeout_nsec=time.monotonic_ns() + int(seconds * 1e9) if seconds else 0,
    )
    return code, answer.first_signaled


def query(node: Raw, handle: int, flags: int = 0) -> int:
    handles, points = ctypes.c_uint32(handle), ctypes.c_uint64(99)
    node.ok(
        drm.DRM_IOCTL_SYNCOBJ_QUERY,
        handles=ctypes.addressof(handles),
        points=ctypes.addressof(points),
        count_handles=1,
        flags=flags,
    )
    return points.value


def test_create_and_destroy(node: Raw) -> None:
    assert [create(node) for _ in range(3)] == [1, 2, 3]
    assert node.ask(CREATE, flags=2)[0] == errno.EINVAL
    assert node.ask(DESTROY, handle=2, pad=1)[0] == errno.EINVAL
    assert node.ask(DESTROY, handle=2)[0] == 0
    assert node.ask(DESTROY, handle=2)[0] == errno.EINVAL
    assert create(node) == 2


def test_a_binary_object(node: Raw) -> None:
    signalled = create(node, drm.DRM_SYNCOBJ_CREATE_SIGNALED)
    plain = create(node)
    assert wait(node, (signalled, 0)) == (0, 0)
    assert wait(node, (plain, 0))[0] == errno.EINVAL
    assert wait(node, (plain, 0), flags=FOR_SUBMIT)[0] == errno.ETIME
    handles = (ctypes.c_uint32 * 1)(plain)
    fields = {"handles": ctypes.addressof(handles), "count_handles": 1}
    node.ok(drm.DRM_IOCTL_SYNCOBJ_SIGNAL, **fields)
    assert node.ask(drm.DRM_IOCTL_SYNCOBJ_WAIT, **fields)[0] == 0
    node.ok(drm.DRM_IOCTL_SYNCOBJ_RESET, **fields)
    assert node.ask(drm.DRM_IOCTL_SYNCOBJ_WAIT, **fields)[0] == errno.EINVAL
    for request in (drm.DRM_IOCTL_SYNCOBJ_SIGNAL, drm.DRM_IOCTL_SYNCOBJ_RESET):
        assert node.ask(request, **{**fields, "count_handles": 0})[0] == errno.EINVAL
        assert node.ask(request, **fields, pad=1)[0] == errno.EINVAL


def test_points_of_a_timeline(node: Raw) -> None:
    one = create(node)
    assert query(node, one) == 0
    assert signal(node, one, 5) == 0
    assert (query(node, one), query(node, one, 1)) == (5, 5)
    for point in (1, 4, 5, 0):
        assert wait(node, (one, point)) == (0, 0)
    assert wait(node, (one, 6))[0] == errno.EINVAL
    assert wait(node, (one, 6), flags=FOR_SUBMIT, seconds=0.02)[0] == errno.ETIME
    assert wait(node, (one, 6), flags=AVAILABLE, seconds=0.02)[0] == errno.ETIME


def test_any_or_all_and_who_was_first(node: Raw) -> None:
    one, two = create(node), create(node)
    signal(node, two, 3)
    assert wait(node, (one, 1), (two, 3), flags=FOR_SUBMIT) == (0, 1)
    assert wait(node, (one, 1), (two, 3), flags=FOR_SUBMIT | ALL)[0] == errno.ETIME
    signal(node, one, 1)
    assert wait(node, (one, 1), (two, 3), flags=ALL) == (0, 0)
    assert wait(node, (one, 1), (99, 3))[0] == errno.ENOENT
    assert wait(node, (one, 1), flags=64)[0] == errno.EINVAL
    assert wait(node)[0] == 0


def test_a_point_that_comes_ends_the_wait(node: Raw) -> None:
    one = create(node)
    results: list[tuple[int, int]] = []
    thread = threading.Thread(
        target=lambda: results.append(wait(node, (one, 2), flags=FOR_SUBMIT, seconds=20))
    )
    thread.start()
    signal(node, one, 1)
    signal(node, one, 2)
    thread.join()
    assert results == [(0, 0)]


def test_transfer(node: Raw) -> None:
    one, two = create(node), create(node)
    transfer = drm.DRM_IOCTL_SYNCOBJ_TRANSFER
    assert node.ask(transfer, src_handle=one, dst_handle=two)[0] == errno.EINVAL
    signal(node, one, 4)
    node.ok(transfer, src_handle=one, src_point=3, dst_handle=two, dst_point=7)
    assert query(node, two) == 7
    node.ok(transfer, src_handle=one, dst_handle=two)
    assert (query(node, two), wait(node, (two, 0))) == (0, (0, 0))
    assert node.ask(transfer, src_handle=9, dst_handle=two)[0] == errno.ENOENT
    assert node.ask(transfer, src_handle=one, dst_handle=two, pad=1)[0] == errno.EINVAL


def test_descriptors_carry_an_object_or_a_fence(node: Raw) -> None:
    to_fd, to_handle = drm.DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, drm.DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE
    one = create(node)
    assert node.ask(to_fd, handle=one, flags=1)[0] == errno.EINVAL  # no fence yet
    assert node.ask(to_fd, handle=one, flags=8)[0] == errno.EINVAL
    assert node.ask(to_fd, handle=one, point=1)[0] == errno.EINVAL
    fd = node.ok(to_fd, handle=one).fd
    same = node.ok(to_handle, fd=fd).handle
    signal(node, same, 3)
    assert query(node, one) == 3
    assert node.ask(to_handle, fd=fd, flags=1, handle=one)[0] == errno.EINVAL  # no sync_file
    fence = node.ok(to_fd, handle=one, flags=3, point=2).fd
    assert node.kernel.poll([(fence, select.POLLIN)], 0)
    info = sync_file.SYNC_IOC_FILE_INFO(node.kernel, fence)
    assert info.status == 1
    two = create(node)
    node.ok(to_handle, fd=fence, handle=two, flags=3, point=9)
    assert query(node, two) == 9
    node.ok(to_handle, fd=fence, handle=two, flags=1)
    assert query(node, two) == 0
    for descriptor in (fd, fence):
        node.kernel.close(descriptor)


def test_an_eventfd_is_told(node: Raw) -> None:
    request = drm.DRM_IOCTL_SYNCOBJ_EVENTFD
    one = create(node)
    signal(node, one, 1)
    event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        assert node.ask(request, handle=one, point=1, fd=event, flags=1)[0] == errno.EINVAL
        assert node.ask(request, handle=7, point=1, fd=event)[0] == errno.ENOENT
        assert node.ask(request, handle=one, point=1, fd=event)[0] == 0
        assert os.eventfd_read(event) == 1
        # A point that is yet to come; and one that never does.
        assert node.ask(request, handle=one, point=2, fd=event)[0] == 0
        assert node.ask(request, handle=one, point=9, fd=event)[0] == 0
        signal(node, one, 2)
        assert os.eventfd_read(event) == 1
    finally:
        os.close(event)


def test_bad_pointers_are_faults(node: Raw) -> None:
    for request in (
        drm.DRM_IOCTL_SYNCOBJ_WAIT,
        drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT,
        drm.DRM_IOCTL_SYNCOBJ_QUERY,
        drm.DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL,
    ):
        assert node.ask(request, handles=8, count_handles=2)[0] == errno.EFAULT
        assert node.ask(request, handles=8, count_handles=2**32 - 1)[0] == errno.ENOMEM
