# SPDX-License-Identifier: MIT
"""Raw system calls on a simulated kernel: what a driver answers, errno included."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from npukit.ioctl import Ioctl
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.program import Program
from npukit.sim import SimKernel


class Raw:
    """An open node; ``ask`` gives (errno, structure) and never raises."""

    def __init__(self, kernel: SimKernel, path: str, flags: int = os.O_RDWR | os.O_CLOEXEC) -> None:
        self.kernel = kernel
        self.fd = kernel.open(path, flags)

    def ask(self, request: Ioctl, arg: Any = None, /, **fields: Any) -> tuple[int, Any]:
        struct = request.struct(**fields) if arg is None else arg
        _value, code = request.call(self.kernel, self.fd, struct)
        return code, struct

    def ok(self, request: Ioctl, arg: Any = None, /, **fields: Any) -> Any:
        code, struct = self.ask(request, arg, **fields)
        assert code == 0, os.strerror(code)
        return struct

    def close(self) -> None:
        self.kernel.close(self.fd)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


A = np.arange(4 * 32, dtype=np.int8).reshape(4, 32)
B = (np.arange(32 * 32) % 7 - 3).astype(np.int8).reshape(32, 32)
PRODUCT = A.astype(np.int32) @ B.astype(np.int32)
"""A job of one task that every driver test can run: 4x32x32, int8."""

INPUT, WEIGHTS, OUTPUT, CODE, JOB_BYTES = 0, 0x1000, 0x2000, 0x3000, 0x4000
"""Where its parts stand in a buffer of JOB_BYTES."""


def job_image(address: int) -> tuple[np.ndarray[Any, Any], Program]:
    """The bytes of such a buffer when it stands at DMA ``address``, and its program."""
    from npukit import _fast

    image = np.zeros(JOB_BYTES, np.uint8)
    program = matmul_program(
        4, 32, 32, np.int8, np.int32, address + INPUT, address + WEIGHTS, address + OUTPUT
    ).chained(address + CODE)
    _fast.pack_nhwc(A, out=image[INPUT : INPUT + A.nbytes])
    weights = np.ascontiguousarray(B.T)
    _fast.pack_weights(weights, out=image[WEIGHTS : WEIGHTS + weights.nbytes])
    words = program.words.view(np.uint8)
    image[CODE : CODE + len(words)] = words
    return image, program


def job_result(memory: Any) -> np.ndarray[Any, Any]:
    """The product that the job left in its buffer."""
    from npukit import _fast

    packed = np.frombuffer(memory, np.int32, 4 * 32, OUTPUT).reshape(8, 4, 1, 4)
    return _fast.unpack_nhwc(packed, 32).reshape(4, 32)
