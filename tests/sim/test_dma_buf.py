# SPDX-License-Identifier: MIT
"""Simulated dma-bufs, heaps, udmabuf and sync_files against drivers/dma-buf."""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest
from raw import Raw
from support import no_leak

from npukit.abi import dma_buf, dma_heap, sync_file, udmabuf
from npukit.sim import SimKernel
from npukit.sim.fence import Fence, SyncFileSim

HEAP, UDMABUF = "/dev/dma_heap/system", "/dev/udmabuf"
PAGE = mmap.PAGESIZE
ALLOC = dma_heap.DMA_HEAP_IOCTL_ALLOC


@pytest.fixture
def kernel() -> Iterator[SimKernel]:
    with no_leak():
        yield SimKernel(["dma_heap", "udmabuf"])


def heap_buffer(kernel: SimKernel, size: int = PAGE, flags: int = os.O_RDWR) -> int:
    with Raw(kernel, HEAP) as heap:
        return int(heap.ok(ALLOC, len=size, fd_flags=flags).fd)


def test_heap_checks(kernel: SimKernel) -> None:
    with Raw(kernel, HEAP) as heap:
        for fields in (
            {"len": 0},
            {"len": (1 << 64) - 1},
            {"len": 1, "fd": 3},
            {"len": 1, "fd_flags": os.O_APPEND},
            {"len": 1, "heap_flags": 1},
        ):
            assert heap.ask(ALLOC, **fields)[0] == errno.EINVAL
        # More than any machine has.
        assert heap.ask(ALLOC, len=1 << 62)[0] == errno.ENOMEM
        assert kernel.ioctl(heap.fd, ALLOC + 1, bytearray(24)) == (-1, errno.EINVAL)
        assert kernel.ioctl(heap.fd, ALLOC, 8) == (-1, errno.EFAULT)
        fd = heap.ok(ALLOC, len=100, fd_flags=os.O_CLOEXEC | os.O_RDWR).fd
        assert kernel.lseek(fd, 0, os.SEEK_END) == PAGE
        assert not os.get_inheritable(fd)
        kernel.close(fd)


def test_a_read_only_buffer_cannot_be_mapped_for_writing(kernel: SimKernel) -> None:
    fd = heap_buffer(kernel, flags=os.O_RDONLY)
    with pytest.raises(PermissionError):
        kernel.mmap(fd, PAGE)
    mapping = kernel.mmap(fd, PAGE, prot=mmap.PROT_READ)
    assert memoryview(mapping)[0] == 0
    kernel.munmap(mapping)
    kernel.close(fd)


def test_a_dma_buf_is_no_ordinary_file(kernel: SimKernel) -> None:
    fd = heap_buffer(kernel, 2 * PAGE)
    assert kernel.lseek(fd, 0, os.SEEK_SET) == 0
    for offset, whence in ((1, os.SEEK_SET), (0, os.SEEK_CUR), (-1, os.SEEK_END)):
        with pytest.raises(OSError, match="Invalid"):
            kernel.lseek(fd, offset, whence)
    for length, offset in ((3 * PAGE, 0), (2 * PAGE, PAGE)):
        with pytest.raises(OSError, match="Invalid"):
            kernel.mmap(fd, length, offset)
    back = kernel.mmap(fd, PAGE, PAGE)
    whole = kernel.mmap(fd, 2 * PAGE)
    memoryview(back)[3] = 7
    assert memoryview(whole)[PAGE + 3] == 7
    kernel.close(fd)
    assert memoryview(whole)[PAGE + 3] == 7
    kernel.munmap(back)
    kernel.munmap(whole)


def test_sync_and_name(kernel: SimKernel) -> None:
    fd = heap_buffer(kernel)
    sync = dma_buf.DMA_BUF_IOCTL_SYNC
    for flags, code in ((0, 22), (4, 22), (8 | 1, 22), (1, 0), (2, 0), (3, 0), (7, 0), (5, 0)):
        answer = sync.call(kernel, fd, dma_buf.dma_buf_sync(flags=flags))
        assert answer == ((0, 0) if code == 0 else (-1, errno.EINVAL))
    name = dma_buf.DMA_BUF_SET_NAME_B
    assert name.call(kernel, fd, b"x" * 31 + b"\0") == (0, 0)
    assert name.call(kernel, fd, b"x" * 32 + b"\0") == (-1, errno.EINVAL)
    assert name.call(kernel, fd, 8) == (-1, errno.EFAULT)
    assert dma_buf.DMA_BUF_SET_NAME_A.call(kernel, fd, b"\0") == (0, 0)
    assert kernel.ioctl(fd, 0x40086244, bytearray(8)) == (-1, errno.ENOTTY)
    kernel.close(fd)


def test_fences_go_in_and_out_of_a_dma_buf(kernel: SimKernel) -> None:
    fd = heap_buffer(kernel)
    export = dma_buf.DMA_BUF_IOCTL_EXPORT_SYNC_FILE
    for flags in (0, 4):
        asked = export.call(kernel, fd, dma_buf.dma_buf_export_sync_file(flags=flags))
        assert asked == (-1, errno.EINVAL)
    idle = export(kernel, fd, flags=dma_buf.DMA_BUF_SYNC_READ).fd
    assert sync_file.SYNC_IOC_FILE_INFO(kernel, idle).status == 1
    with kernel.lock:
        fence = Fence(kernel, "test", "line", object())
        waiting = SyncFileSim(kernel, [fence]).install()
    load = dma_buf.DMA_BUF_IOCTL_IMPORT_SYNC_FILE
    wrong = dma_buf.dma_buf_import_sync_file(flags=2, fd=fd)
    assert load.call(kernel, fd, wrong) == (-1, errno.EINVAL)
    load(kernel, fd, flags=dma_buf.DMA_BUF_SYNC_WRITE, fd=waiting)
    busy = export(kernel, fd, flags=dma_buf.DMA_BUF_SYNC_READ).fd
    assert sync_file.SYNC_IOC_FILE_INFO(kernel, busy).status == 0
    assert kernel.poll([(busy, 1)], 0) == []
    with kernel.lock:
        fence.signal()
    assert kernel.poll([(busy, 1)], 1) == [(busy, 1)]
    for each in (fd, idle, waiting, busy):
        kernel.close(each)


def test_sync_file_requests(kernel: SimKernel) -> None:
    with kernel.lock:
        fences = [Fence(kernel, "driver", f"line{n}", object()) for n in range(2)]
        one, two = (SyncFileSim(kernel, [fence]).install() for fence in fences)
    merge, info = sync_file.SYNC_IOC_MERGE, sync_file.SYNC_IOC_FILE_INFO
    assert merge.call(kernel, one, sync_file.sync_merge_data(fd2=two, flags=1))[1] == errno.EINVAL
    assert merge.call(kernel, one, sync_file.sync_merge_data(fd2=9999))[1] == errno.ENOENT
    both = merge(kernel, one, name=b"both", fd2=two).fence
    asked = info(kernel, both)
    assert (asked.num_fences, asked.status, asked.name) == (2, 0, b"both")
    rows = (sync_file.sync_fence_info * 2)()
    few = sync_file.sync_file_info(num_fences=1, sync_fence_info=ctypes.addressof(rows))
    assert info.call(kernel, both, few)[1] == errno.EINVAL
    assert info.call(kernel, both, sync_file.sync_file_info(num_fences=2, sync_fence_info=8))[
        1
    ] == (errno.EFAULT)
    with kernel.lock:
        fences[1].signal(errno.EIO)
    full = info(
        kernel, both, sync_file.sync_file_info(num_fences=2, sync_fence_info=few.sync_fence_info)
    )
    assert [row.obj_name for row in rows] == [b"line0", b"line1"]
    assert [row.status for row in rows] == [0, -errno.EIO]
    assert full.status == 0
    with kernel.lock:
        fences[0].signal()
    assert info(kernel, both).status == -errno.EIO
    assert sync_file.SYNC_IOC_SET_DEADLINE.call(
        kernel, both, sync_file.sync_set_deadline(pad=1)
    ) == (-1, errno.EINVAL)
    assert kernel.ioctl(both, 0x3E09, bytearray(8)) == (-1, errno.ENOTTY)
    for fd in (one, two, both):
        kernel.close(fd)


def memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_udmabuf_checks(kernel: SimKernel) -> None:
    good, unsealed = memfd(4 * PAGE), memfd(PAGE, 0)
    frozen = memfd(PAGE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    reader, writer = os.pipe()
    create = udmabuf.UDMABUF_CREATE
    with Raw(kernel, UDMABUF) as node:
        for fields, code in (
            ({"memfd": good, "size": PAGE, "offset": 1}, errno.EINVAL),
            ({"memfd": good, "size": 1}, errno.EINVAL),
            ({"memfd": good, "size": 0}, errno.EINVAL),
            ({"memfd": good, "size": 65 << 20}, errno.EINVAL),
            ({"memfd": good, "size": 5 * PAGE}, errno.EINVAL),
            ({"memfd": unsealed, "size": PAGE}, errno.EINVAL),
            ({"memfd": frozen, "size": PAGE}, errno.EINVAL),
            ({"memfd": reader, "size": PAGE}, errno.EBADFD),
            ({"memfd": 9999, "size": PAGE}, errno.EBADFD),
            ({"memfd": node.fd, "size": PAGE}, errno.EBADFD),
        ):
            assert create.call(kernel, node.fd, udmabuf.udmabuf_create(**fields)) == (-1, code)
        many = udmabuf.udmabuf_create_list(count=1025)
        assert udmabuf.UDMABUF_CREATE_LIST.call(kernel, node.fd, many) == (-1, errno.EINVAL)
        assert kernel.ioctl(node.fd, 0x7544, bytearray(8)) == (-1, errno.ENOTTY)
        fd = create(kernel, node.fd, memfd=good, offset=PAGE, size=2 * PAGE)
        assert os.get_inheritable(fd)
    os.pwrite(good, b"!", PAGE)
    mapping = kernel.mmap(fd, 2 * PAGE)
    assert memoryview(mapping)[0] == ord("!")
    with pytest.raises(OSError, match="Invalid"):
        kernel.mmap(fd, PAGE, flags=mmap.MAP_PRIVATE)
    kernel.munmap(mapping)
    for each in (good, unsealed, frozen, reader, writer):
        os.close(each)
    kernel.close(fd)


def test_plain_descriptors_keep_their_meaning(kernel: SimKernel) -> None:
    fd = kernel.memfd_create("plain")
    kernel.ftruncate(fd, PAGE)
    assert kernel.fstat(fd).st_size == PAGE
    assert kernel.lseek(fd, 0, os.SEEK_END) == PAGE
    copy = kernel.dup(fd)
    mapping = kernel.mmap(copy, PAGE)
    memoryview(mapping)[0] = 1
    kernel.munmap(mapping)
    assert os.pread(fd, 1, 0) == b"\1"
    assert kernel.ioctl(fd, ALLOC, bytearray(24)) == (-1, errno.ENOTTY)
    kernel.close(fd)
    kernel.close(copy)
