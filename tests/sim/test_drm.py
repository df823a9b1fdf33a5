# SPDX-License-Identifier: MIT
"""The rules that all DRM drivers share (drm_ioctl.c, drm_gem.c, drm_prime.c)."""

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Iterator

import pytest
from raw import Raw
from support import no_leak

from npukit.abi import drm, rknpu, rocket
from npukit.ioctl import IOC, IOR, IOW, Ioctl
from npukit.sim import SimKernel

ACCEL = "/dev/accel/accel0"
PAGE = mmap.PAGESIZE


@pytest.fixture
def kernel() -> Iterator[SimKernel]:
    with no_leak():
        yield SimKernel(["rocket", "rknpu"])


@pytest.fixture
def node(kernel: SimKernel) -> Iterator[Raw]:
    with Raw(kernel, ACCEL) as node:
        yield node


def test_numbers_that_are_not_the_drivers(node: Raw) -> None:
    for number, expected in (
        (IOC(3, "R", 0x40, 24), errno.ENOTTY),
        (IOC(3, "d", 0x44, 24), errno.EINVAL),
        (IOC(3, "d", 0x9F, 24), errno.EINVAL),
        (IOC(3, "d", 0x3E, 24), errno.EINVAL),
    ):
        assert node.kernel.ioctl(node.fd, number, bytearray(24)) == (-1, expected)


def test_a_bad_pointer_is_efault_and_a_bad_descriptor_ebadf(node: Raw) -> None:
    request = rocket.DRM_IOCTL_ROCKET_CREATE_BO
    for address in (0, 8, (1 << 64) - 8, 1 << 63):
        assert node.kernel.ioctl(node.fd, request, address) == (-1, errno.EFAULT)
    assert node.kernel.ioctl(9999, request, bytearray(24)) == (-1, errno.EBADF)


def test_a_struct_that_ends_at_an_unmapped_page_is_efault(node: Raw) -> None:
    """The kernel copies to the last byte: half a structure in readable memory is not enough."""
    from npukit import _fast

    two = _fast.mmap(-1, 2 * PAGE, flags=_fast.MAP_PRIVATE | _fast.MAP_ANONYMOUS)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    hole = two.address + PAGE
    assert libc.munmap(hole, PAGE) == 0
    request = rocket.DRM_IOCTL_ROCKET_CREATE_BO
    assert node.kernel.ioctl(node.fd, request, hole - 8) == (-1, errno.EFAULT)
    assert node.kernel.ioctl(node.fd, request, hole - 24) == (-1, errno.ENOSPC)  # size 0
    # Give the hole back before the mapping goes, which will unmap both pages.
    filler = mmap.mmap(-1, PAGE)
    filler.close()


def test_sizes_may_differ_between_caller_and_kernel(kernel: SimKernel) -> None:
    with Raw(kernel, "/dev/dri/card1") as node:
        short = node.ok(rknpu.DRM_IOCTL_RKNPU_MEM_CREATE_0_8, size=100, flags=1)
        assert (short.handle, short.size) == (1, PAGE)
        assert short.dma_addr
        number = IOC(3, "d", 0x42, 64)
        longer = bytearray(64)
        longer[8:16] = (100).to_bytes(8, "little")
        longer[48:] = b"x" * 16
        assert kernel.ioctl(node.fd, number, longer) == (0, 0)
        assert int.from_bytes(longer[0:4], "little") == 2
        assert longer[48:] == b"x" * 16


def test_direction_decides_what_is_copied(node: Raw) -> None:
    struct = rocket.drm_rocket_create_bo(size=4096)
    write_only = Ioctl("W", IOW("d", 0x40, struct.__class__), struct.__class__)
    assert write_only.call(node.kernel, node.fd, struct) == (0, 0)
    assert struct.handle == 0  # made, and not told
    read_only = Ioctl("R", IOR("d", 0x40, struct.__class__), struct.__class__)
    assert read_only.call(node.kernel, node.fd, struct) == (-1, errno.ENOSPC)  # size read as 0


def test_version_tells_lengths_and_copies_what_fits(node: Raw) -> None:
    name = ctypes.create_string_buffer(b"??????????")
    version = node.ok(drm.DRM_IOCTL_VERSION, name=ctypes.addressof(name), name_len=3, desc_len=99)
    assert (version.name_len, version.desc_len, version.date_len) == (6, 10, 1)
    assert name.raw[:4] == b"roc?"
    code, version = node.ask(drm.DRM_IOCTL_VERSION, name=8, name_len=3)
    assert code == errno.EFAULT
    assert version.name_len == 6  # copied out although it failed


def test_capabilities_and_names(node: Raw) -> None:
    values = {drm.DRM_CAP_PRIME: 3, drm.DRM_CAP_SYNCOBJ: 0, drm.DRM_CAP_TIMESTAMP_MONOTONIC: 1}
    for capability, value in values.items():
        assert node.ok(drm.DRM_IOCTL_GET_CAP, capability=capability, value=7).value == value
    code, answer = node.ask(drm.DRM_IOCTL_GET_CAP, capability=drm.DRM_CAP_DUMB_BUFFER, value=7)
    assert (code, answer.value) == (errno.EOPNOTSUPP, 0)
    assert node.ask(drm.DRM_IOCTL_SET_CLIENT_CAP)[0] == errno.EOPNOTSUPP
    for text, code in ((b"npukit", 0), (b"two words", errno.EINVAL), (b"x" * 65, errno.EINVAL)):
        name = ctypes.create_string_buffer(text)
        asked = node.ask(
            drm.DRM_IOCTL_SET_CLIENT_NAME, name=ctypes.addressof(name), name_len=len(text)
        )
        assert asked[0] == code
    assert node.ask(drm.DRM_IOCTL_SET_CLIENT_NAME, name_len=0)[0] == 0


def test_the_bus_id_of_a_card_is_empty() -> None:
    kernel = SimKernel(["rknpu"])
    with Raw(kernel, "/dev/dri/card1") as card, Raw(kernel, "/dev/dri/renderD129") as render:
        assert card.ok(drm.DRM_IOCTL_GET_UNIQUE, unique_len=16, unique=8).unique_len == 0
        assert render.ask(drm.DRM_IOCTL_GET_UNIQUE)[0] == errno.EACCES


def test_syncobjs_are_not_supported(node: Raw) -> None:
    for name, request in vars(drm).items():
        if name.startswith("DRM_IOCTL_SYNCOBJ_"):
            assert node.ask(request)[0] == errno.EOPNOTSUPP


def test_handles_are_the_lowest_free_numbers(node: Raw) -> None:
    create = rocket.DRM_IOCTL_ROCKET_CREATE_BO
    assert [node.ok(create, size=1).handle for _ in range(3)] == [1, 2, 3]
    node.ok(drm.DRM_IOCTL_GEM_CLOSE, handle=2)
    assert node.ok(create, size=1).handle == 2
    assert node.ask(drm.DRM_IOCTL_GEM_CLOSE, handle=0)[0] == errno.EINVAL
    assert node.ask(drm.DRM_IOCTL_GEM_CLOSE, handle=9)[0] == errno.EINVAL


def test_mmap_wants_an_object_of_this_file(node: Raw) -> None:
    kernel = node.kernel
    one = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=2 * PAGE)
    two = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=PAGE)
    assert (one.offset, two.offset) == (1 << 32, (1 << 32) + 2 * PAGE)
    with Raw(kernel, ACCEL) as other:
        for fd, length, offset, code in (
            (node.fd, 3 * PAGE, one.offset, errno.EINVAL),
            (node.fd, PAGE, one.offset + PAGE, errno.EINVAL),
            (node.fd, PAGE, 0, errno.EINVAL),
            (node.fd, PAGE, one.offset + 1, errno.EINVAL),
            (other.fd, PAGE, one.offset, errno.EACCES),
        ):
            with pytest.raises(OSError, match=r".") as caught:
                kernel.mmap(fd, length, offset)
            assert caught.value.errno == code
    front = kernel.mmap(node.fd, PAGE, one.offset)
    whole = kernel.mmap(node.fd, 2 * PAGE, one.offset)
    memoryview(front)[0] = 9
    assert memoryview(whole)[0] == 9
    # A mapping outlives the handle; the offset is free again only after it.
    node.ok(drm.DRM_IOCTL_GEM_CLOSE, handle=one.handle)
    kernel.munmap(front)
    assert memoryview(whole)[0] == 9
    third = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=2 * PAGE)
    assert third.offset != one.offset
    kernel.munmap(whole)
    del whole
    fourth = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=2 * PAGE)
    assert fourth.offset == one.offset
    fresh = kernel.mmap(node.fd, PAGE, fourth.offset)
    assert memoryview(fresh)[0] == 0
    kernel.munmap(fresh)


def test_prime_shares_one_dma_buf(node: Raw) -> None:
    kernel = node.kernel
    bo = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=PAGE)
    export, back = drm.DRM_IOCTL_PRIME_HANDLE_TO_FD, drm.DRM_IOCTL_PRIME_FD_TO_HANDLE
    assert node.ask(export, handle=bo.handle, flags=1)[0] == errno.EINVAL
    assert node.ask(export, handle=99, flags=2)[0] == errno.ENOENT
    one = node.ok(export, handle=bo.handle, flags=drm.DRM_RDWR | drm.DRM_CLOEXEC).fd
    two = node.ok(export, handle=bo.handle, flags=0).fd
    assert one != two
    assert kernel.file(one) is kernel.file(two)
    assert (os.get_inheritable(one), os.get_inheritable(two)) == (False, True)
    assert kernel.lseek(one, 0, os.SEEK_END) == PAGE
    assert node.ok(back, fd=one).handle == bo.handle  # known here: the same handle
    with Raw(kernel, ACCEL) as other:
        imported = other.ok(back, fd=two)
        assert imported.handle == 1
        assert other.ok(back, fd=one).handle == 1
        mine = kernel.mmap(node.fd, PAGE, bo.offset)
        theirs = kernel.mmap(other.fd, PAGE, bo.offset)
        memoryview(mine)[5] = 55
        assert memoryview(theirs)[5] == 55
        shared = kernel.mmap(one, PAGE)
        assert memoryview(shared)[5] == 55
        for mapping in (mine, theirs, shared):
            kernel.munmap(mapping)
    assert node.ask(back, fd=9999)[0] == errno.EBADF
    assert node.ask(back, fd=node.fd)[0] == errno.EINVAL
    for fd in (one, two):
        kernel.close(fd)


def test_rocket_imports_no_foreign_buffer_and_rknpu_does(kernel: SimKernel) -> None:
    export, back = drm.DRM_IOCTL_PRIME_HANDLE_TO_FD, drm.DRM_IOCTL_PRIME_FD_TO_HANDLE
    with Raw(kernel, ACCEL) as mainline, Raw(kernel, "/dev/dri/card1") as vendor:
        bo = mainline.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=PAGE)
        fd = mainline.ok(export, handle=bo.handle, flags=2).fd
        handle = vendor.ok(back, fd=fd).handle
        told = vendor.ok(rknpu.DRM_IOCTL_RKNPU_MEM_CREATE, handle=handle)
        assert (told.handle, told.size) == (handle, PAGE)
        assert told.dma_addr
        # An imported object cannot be mapped through the importer, nor synchronized.
        assert vendor.ask(rknpu.DRM_IOCTL_RKNPU_MEM_MAP, handle=handle)[0] == errno.EINVAL
        sync = {"flags": 1, "obj_addr": told.obj_addr, "size": PAGE}
        assert vendor.ask(rknpu.DRM_IOCTL_RKNPU_MEM_SYNC, **sync)[0] == errno.EINVAL
        own = vendor.ok(rknpu.DRM_IOCTL_RKNPU_MEM_CREATE, size=PAGE, flags=1)
        other = vendor.ok(export, handle=own.handle, flags=2).fd
        assert mainline.ask(back, fd=other)[0] == errno.EINVAL
        kernel.close(fd)
        kernel.close(other)


def test_descriptors_share_and_end_like_real_ones(kernel: SimKernel) -> None:
    node = Raw(kernel, ACCEL)
    copy = kernel.dup(node.fd)
    bo = node.ok(rocket.DRM_IOCTL_ROCKET_CREATE_BO, size=PAGE)
    kernel.close(node.fd)
    prep = rocket.drm_rocket_prep_bo(handle=bo.handle)
    assert rocket.DRM_IOCTL_ROCKET_PREP_BO.call(kernel, copy, prep) == (0, 0)
    view = memoryview(kernel.mmap(copy, PAGE, bo.offset))
    kernel.close(copy)
    view[0] = 1  # the mapping holds the file
    view.release()
    with pytest.raises(OSError, match="busy"):
        kernel.open(ACCEL, os.O_RDWR | os.O_EXCL)


def test_nodes_look_like_character_devices(kernel: SimKernel) -> None:
    for path, device in ((ACCEL, (261, 0)), ("/dev/dri/renderD129", (226, 129))):
        with Raw(kernel, path) as node:
            found = kernel.fstat(node.fd)
            assert stat.S_ISCHR(found.st_mode)
            assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == device
