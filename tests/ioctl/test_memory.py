# SPDX-License-Identifier: MIT
import ctypes
import os

import pytest
from support import no_leak

from npukit import _fast
from npukit.ioctl.memory import OwnMemory


def test_memory_is_read_and_written() -> None:
    with no_leak():
        memory = OwnMemory()
        buffer = ctypes.create_string_buffer(b"abcdef", 6)
        address = ctypes.addressof(buffer)
        assert memory.read(address + 1, 3) == b"bcd"
        assert memory.write(address + 2, b"XY")
        assert buffer.raw == b"abXYef"
        memory.close()
        assert memory.read(address, 0) == b""
        assert memory.write(0, b"")


@pytest.mark.parametrize("address", [0, 8, (1 << 64) - 4, -1, 1 << 70])
def test_a_bad_pointer_is_no_crash(address: int) -> None:
    memory = OwnMemory()
    assert memory.read(address, 8) is None
    assert not memory.write(address, b"12345678")
    memory.close()


def test_what_ends_early_is_not_read() -> None:
    memory = OwnMemory()
    flags = _fast.MAP_SHARED | _fast.MAP_ANONYMOUS
    mapping = _fast.mmap(-1, 2 * _fast.PAGE_SIZE, flags=flags)
    end = mapping.address + 2 * _fast.PAGE_SIZE
    assert memory.read(end - 8, 8) == bytes(8)
    mapping.close()
    assert memory.read(end - 8, 16) is None
    memory.close()


def test_a_child_of_fork_has_a_file_of_its_own() -> None:
    memory = OwnMemory()
    buffer = ctypes.create_string_buffer(b"parent", 6)
    assert memory.read(ctypes.addressof(buffer), 6) == b"parent"
    before = os.fstat(memory._file()).st_ino
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(os.fstat(memory._file()).st_ino).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reader, 32)) != before
    assert os.fstat(memory._file()).st_ino == before
    for fd in (reader, writer):
        os.close(fd)
    memory.close()
