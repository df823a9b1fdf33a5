# SPDX-License-Identifier: MIT
"""The whole path of an XDNA device: container, context, packet, timeline fence; checked by numpy.

The designs are npukit's own, which only the simulated NPU knows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from npukit.devices.amdxdna import AmdxdnaDevice

from . import designs
from .program import NpuProgram

Check = Callable[[AmdxdnaDevice], tuple[bool, str]]

_COPY_BYTES = 1 << 18
_ADD_LENGTH = 1 << 14
_TRANSPOSE = (96, 160)
_MATMUL = (64, 128, 96)


def run_example(
    device: AmdxdnaDevice, example: designs.Example, *inputs: npt.NDArray[np.generic]
) -> npt.NDArray[np.generic]:
    """Load the example, run it once on ``inputs``, and give its one output as an array."""
    with (
        NpuProgram.load(device, example.xclbin) as program,
        program.kernel(example.instructions, example.contract) as kernel,
    ):
        buffers = kernel.alloc_all()
        try:
            for buffer, data in zip(buffers, inputs, strict=False):
                with buffer.access("w") as memory:
                    memory[: data.nbytes] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            kernel(*buffers)
            binding = example.contract.bindings[-1]
            with buffers[-1].access("r") as memory:
                raw = memory[: binding.nbytes].tobytes()
            return np.frombuffer(raw, binding.dtype).reshape(binding.shape)
        finally:
            for buffer in buffers:
                buffer.close()


def _memcpy(device: AmdxdnaDevice) -> tuple[bool, str]:
    data = np.random.default_rng(0).integers(0, 256, _COPY_BYTES, np.uint8)
    same = np.array_equal(run_example(device, designs.memcpy(_COPY_BYTES), data), data)
    return same, f"{_COPY_BYTES} bytes through the memory tile"


def _transpose(device: AmdxdnaDevice) -> tuple[bool, str]:
    data = np.random.default_rng(1).integers(0, 1 << 32, _TRANSPOSE, np.uint32)
    same = np.array_equal(run_example(device, designs.transpose(*_TRANSPOSE), data), data.T)
    return same, f"{_TRANSPOSE[0]}x{_TRANSPOSE[1]} words, read column by column"


def _vector_add(device: AmdxdnaDevice) -> tuple[bool, str]:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-(1 << 31), 1 << 31, (2, _ADD_LENGTH)).astype(np.int32)
    wrong = int(
        np.count_nonzero(run_example(device, designs.vector_add(_ADD_LENGTH), a, b) != a + b)
    )
    return wrong == 0, f"{_ADD_LENGTH} numbers, {wrong} differ from numpy"


def _matmul(device: AmdxdnaDevice) -> tuple[bool, str]:
    m, k, n = _MATMUL
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (m, k), np.int8)
    b = rng.integers(-128, 128, (k, n), np.int8)
    product = a.astype(np.int32) @ b.astype(np.int32)
    wrong = int(np.count_nonzero(run_example(device, designs.matmul(m, k, n), a, b) != product))
    return wrong == 0, f"{m}x{k}x{n}, {wrong} of {m * n} differ from numpy"


def steps(device: AmdxdnaDevice) -> list[tuple[str, Check]]:
    """What to check on an open device: (name, function that gives (passed, what was seen))."""
    return [
        ("memcpy", _memcpy),
        ("transpose", _transpose),
        ("vector add", _vector_add),
        ("int8 matmul", _matmul),
    ]
