# SPDX-License-Identifier: MIT
"""usage: python_client.py NODE JOB: a matrix product with nothing but os, fcntl and mmap."""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import time

JOB_BYTES, OUTPUT, RESULT_BYTES = 0x4000, 0x2000, 512


def main(node: str, job_path: str) -> None:
    with open(job_path, "rb") as file:
        regcmd, count, _, _, _, _, address = struct.unpack("<6IQ", file.read(32))
        image, result = file.read(JOB_BYTES), file.read(RESULT_BYTES)
    fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    answer = fcntl.ioctl(fd, 0xC0186440, struct.pack("<IIQQ", JOB_BYTES, 0, 0, 0))
    _, handle, dma_address, offset = struct.unpack("<IIQQ", answer)
    assert dma_address == address
    memory = mmap.mmap(fd, JOB_BYTES, offset=offset)
    memory[:] = image
    task = ctypes.create_string_buffer(struct.pack("<II", dma_address + regcmd, count))
    writes = ctypes.create_string_buffer(struct.pack("<I", handle))
    job = ctypes.create_string_buffer(
        struct.pack("<QQQIIII", ctypes.addressof(task), 0, ctypes.addressof(writes), 1, 8, 0, 1)
    )
    fcntl.ioctl(fd, 0x40186441, struct.pack("<QIIQ", ctypes.addressof(job), 1, 40, 0))
    deadline = time.monotonic_ns() + 20 * 10**9
    fcntl.ioctl(fd, 0x40106442, struct.pack("<IIq", handle, 0, deadline))
    assert memory[OUTPUT : OUTPUT + RESULT_BYTES] == result
    memory.close()
    os.close(fd)
    print("equal")


main(*sys.argv[1:])
