# SPDX-License-Identifier: MIT
"""npukit._fast.mmap: what is mapped, for how long, and that nothing is left behind."""

import contextlib
import errno
import gc
import os
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from npukit import _fast

NAME = "npukit-test-mapping"
PAGE = _fast.PAGE_SIZE
ANONYMOUS = _fast.MAP_PRIVATE | _fast.MAP_ANONYMOUS


def mapped() -> int:
    """How many times our memfd is mapped into this process."""
    with open("/proc/self/maps") as maps:
        return sum(NAME in line for line in maps)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def memfd() -> Iterator[int]:
    """A file of 100 bytes, 0 to 99; the test must leave no mapping of it and no other file."""
    files = open_files()
    fd = os.memfd_create(NAME)
    os.write(fd, bytes(range(100)))
    yield fd
    os.close(fd)
    gc.collect()
    assert mapped() == 0
    assert open_files() == files


def test_shares_memory_with_the_file(memfd):
    with _fast.mmap(memfd, 100) as mapping:
        view = memoryview(mapping)
        assert (view.format, view.nbytes, view.readonly) == ("B", 100, False)
        assert bytes(view) == bytes(range(100))
        view[7] = 255
        assert os.pread(memfd, 1, 7) == b"\xff"
        view.release()


def test_does_not_duplicate_the_fd(memfd):
    files = open_files()
    fd = os.dup(memfd)
    mapping = _fast.mmap(fd, 100)
    os.close(fd)
    assert open_files() == files
    assert bytes(mapping) == bytes(range(100))


def test_length_is_as_asked_and_the_rest_of_the_page_is_mapped(memfd):
    mapping = _fast.mmap(memfd, PAGE + 1)
    assert mapping.length == PAGE + 1
    with open("/proc/self/maps") as maps:
        line = next(line for line in maps if NAME in line)
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    assert (begin, end - begin) == (mapping.address, 2 * PAGE)


def test_length_may_pass_the_end_of_the_file(memfd):
    view = memoryview(_fast.mmap(memfd, 3 * PAGE))
    assert bytes(view[:PAGE]) == bytes(range(100)) + bytes(PAGE - 100)
    os.ftruncate(memfd, 3 * PAGE)  # then the pages beyond exist as well
    view[3 * PAGE - 1] = 1
    assert os.pread(memfd, 1, 3 * PAGE - 1) == b"\x01"


def test_offset(memfd):
    os.pwrite(memfd, b"second page", PAGE)
    assert bytes(_fast.mmap(memfd, 6, PAGE)) == b"second"


def test_anonymous():
    mapping = _fast.mmap(-1, 10, flags=ANONYMOUS)
    memoryview(mapping)[:] = bytes(range(10))
    assert bytes(mapping) == bytes(range(10))


def test_read_only(memfd):
    mapping = _fast.mmap(memfd, 100, prot=_fast.PROT_READ)
    assert memoryview(mapping).readonly
    with pytest.raises(BufferError):
        _fast.copy(mapping, bytes(100))


def test_neither_readable_nor_writable(memfd):
    mapping = _fast.mmap(memfd, 100, prot=_fast.PROT_NONE)
    with pytest.raises(BufferError, match="neither readable"):
        memoryview(mapping)
    assert mapping.views == 0


def test_close_without_views_unmaps_at_once(memfd):
    mapping = _fast.mmap(memfd, 100)
    assert mapped() == 1
    mapping.close()
    assert mapped() == 0
    assert (mapping.closed, mapping.address, mapping.length) == (True, 0, 100)
    mapping.close()
    _fast.munmap(mapping)
    with pytest.raises(BufferError, match="closed"):
        memoryview(mapping)


def test_close_waits_for_the_last_view(memfd):
    mapping = _fast.mmap(memfd, 100)
    view = memoryview(mapping)
    array = np.frombuffer(mapping, np.uint8)
    part = array[10:20].view(np.uint16)
    assert mapping.views == 2

    mapping.close()
    assert mapping.closed
    assert mapping.address != 0
    with pytest.raises(BufferError):
        memoryview(mapping)
    assert bytes(view) == array.tobytes()

    view.release()
    del array
    gc.collect()
    assert mapping.views == 1
    assert part.tobytes() == bytes(range(10, 20))
    assert mapped() == 1
    del part
    gc.collect()
    assert (mapping.views, mapping.address, mapped()) == (0, 0, 0)


def test_views_keep_a_forgotten_mapping(memfd):
    mapping = _fast.mmap(memfd, 100)
    gone = weakref.ref(mapping)
    array = np.asarray(memoryview(mapping))[5:]
    del mapping
    gc.collect()
    assert gone() is not None
    assert array[0] == 5
    del array
    gc.collect()
    assert gone() is None
    assert mapped() == 0


def test_the_end_of_its_life_unmaps(memfd):
    mapping = _fast.mmap(memfd, 100)
    assert mapped() == 1
    del mapping
    gc.collect()
    assert mapped() == 0


def test_leaving_the_context_closes(memfd):
    with pytest.raises(KeyError), _fast.mmap(memfd, 100) as mapping:
        raise KeyError
    assert mapping.closed
    assert "closed" in repr(mapping)


def test_a_thousand_mappings_leave_nothing(memfd):
    for i in range(1000):
        mapping = _fast.mmap(memfd, PAGE)
        if i % 2:
            mapping.close()
    del mapping
    gc.collect()
    assert mapped() == 0


@pytest.mark.parametrize(
    ("length", "offset", "number"),
    [
        (0, 0, errno.EINVAL),
        (2**62, 0, errno.ENOMEM),
        (2**64 - 1, 0, errno.ENOMEM),
        (PAGE, 1, errno.EINVAL),
        (PAGE, PAGE // 2, errno.EINVAL),
        (PAGE, 2**64 - PAGE, errno.EOVERFLOW),
    ],
)
def test_what_the_kernel_refuses(memfd, length, offset, number):
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        _fast.mmap(memfd, length, offset)
    assert caught.value.errno == number


@pytest.mark.parametrize(("length", "offset"), [(-1, 0), (2**64, 0), (1, -1), (1, 2**64)])
def test_numbers_that_are_none_of_the_kernels(memfd, length, offset):
    with pytest.raises(OverflowError):
        _fast.mmap(memfd, length, offset)


def test_a_bad_fd():
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        _fast.mmap(-1, PAGE)


def test_protection_beyond_the_files(memfd):
    fd = os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EACCES)):
            _fast.mmap(fd, 100)
        assert bytes(_fast.mmap(fd, 100, prot=_fast.PROT_READ)) == bytes(range(100))
    finally:
        os.close(fd)


def test_no_other_way_to_make_one():
    with pytest.raises(TypeError):
        _fast.Mapping()
    with pytest.raises(TypeError):
        _fast.munmap(None)
    with pytest.raises(TypeError):
        type("Sub", (_fast.Mapping,), {})


def test_threads_share_and_close(memfd):
    """Views come and go in several threads while one closes: the last of them unmaps."""
    mapping = _fast.mmap(memfd, 100)
    wrong: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(BufferError):  # closed meanwhile
            for _ in range(2000):
                with memoryview(mapping) as view:
                    if bytes(view[:4]) != bytes(range(4)):
                        wrong.append(bytes(view))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    mapping.close()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (mapping.views, mapping.address) == (0, 0)
