# SPDX-License-Identifier: MIT
"""Operations of all blocks of the NPU in one chain of tasks, through tensors in memory."""

import contextlib
from typing import Any

import numpy as np
import pytest
from programs.conv_reference import Array, random

import npukit
from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import launch
from npukit.programs.rk3588.activation import prelu, relu6, sigmoid
from npukit.programs.rk3588.conv import conv2d
from npukit.programs.rk3588.elementwise import add, mul
from npukit.programs.rk3588.layout import concat, pad
from npukit.programs.rk3588.operation import Operation, execute
from npukit.programs.rk3588.pool import avg_pool, max_pool
from npukit.programs.rk3588.program import INT_MASK_DPU, INT_MASK_PPU, Program
from npukit.programs.rk3588.quantize import Quantization

Q = Quantization(0.05, 120)
SHAPE = (9, 10, 40)
POOLED = (5, 5, 40)


def steps() -> list[tuple[Operation, tuple[int, ...]]]:
    """Operations, and which results they read; 0 is the image, n + 1 what step n makes."""
    rng = np.random.default_rng(12)
    weights = random(rng, Quantization(0.01, 128), (40, 3, 3, 40))
    twice = (10, 5, 40)
    return [
        (conv2d(9, 10, weights, None, Q, Quantization(0.01, 128), Q), (0,)),
        (add(*SHAPE, Q, Q, Q, activation="relu"), (0, 1)),
        (max_pool(*SHAPE, Q, 3, stride=2, padding="same"), (2,)),
        (sigmoid(*POOLED, Q, Quantization(1 / 256)), (3,)),
        (mul(*POOLED, Q, Quantization(1 / 256), Q), (3, 4)),
        (prelu(*POOLED, np.linspace(0, 1, 40), Q, Q), (5,)),
        (concat([POOLED, POOLED], Q, 0), (6, 3)),
        (pad(*twice, Q, (1, 1, 1, 1)), (7,)),
        (avg_pool(12, 7, 40, Q, 3, stride=1, padding="same"), (8,)),
        (relu6(12, 7, 40, Q, Q), (9,)),
    ]


def chained(device: Any, x: Array, ops: list[tuple[Operation, tuple[int, ...]]]) -> Array:
    """All in one submission: each operation reads what others of the same chain have written."""
    with contextlib.ExitStack() as stack:

        def buffer(size: int, content: Array) -> Any:
            found = stack.enter_context(device.alloc(max(size, 16)))
            with found.access("w") as memory:
                memory[: content.nbytes] = content.reshape(-1).view(np.uint8)
            return found

        tensors = [ops[0][0].inputs[0], *(op.output for op, _ in ops)]
        sizes = [tensor.size for tensor in tensors]
        for op, sources in ops:
            for tensor, source in zip(op.inputs, sources, strict=True):
                sizes[source] = max(sizes[source], tensor.size)
        empty = np.zeros(0, np.uint8)
        buffers = [buffer(sizes[0], tensors[0].pack(x)), *(buffer(n, empty) for n in sizes[1:])]
        constants = [buffer(len(op.constants), op.constants) for op, _ in ops]
        program = Program.join(
            [
                op.program(
                    [buffers[source].dma_address for source in sources],
                    constants[index].dma_address,
                    buffers[index + 1].dma_address,
                )
                for index, (op, sources) in enumerate(ops)
            ]
        )
        launch.run(device, [program], [buffers[0], *constants], buffers[1:])
        last = ops[-1][0].output
        return last.unpack(buffers[-1].array()[: last.size]).copy()


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc"])
def test_what_is_chained_is_what_is_run_alone(name: str) -> None:
    """Every prefix of the chain: it ends in the DPU or in the PPU."""
    ops = steps()
    x = random(np.random.default_rng(1), Q, SHAPE)
    results = [x]
    with npukit.open(f"sim:{name}", strict=True) as device:
        for index, (op, sources) in enumerate(ops):
            results.append(execute(device, op, *(results[source] for source in sources)))
            found = chained(device, x, ops[: index + 1])
            np.testing.assert_array_equal(found, results[-1])
    masks = {op.program([0] * len(op.inputs), 0, 0).tasks[-1].int_mask for op, _ in ops}
    assert masks == {INT_MASK_DPU, INT_MASK_PPU}
    assert len(np.unique(results[-1])) > 20


def test_rocket_runs_what_ends_in_the_dpu() -> None:
    """All but poolings, which it refuses in the middle of a chain, too."""
    ops = steps()
    x = random(np.random.default_rng(1), Q, SHAPE)
    with npukit.open("sim:rknpu") as other, npukit.open("sim:rocket", strict=True) as device:
        np.testing.assert_array_equal(chained(device, x, ops[:2]), chained(other, x, ops[:2]))
        with pytest.raises(ProgramError, match="task 2 raises the interrupts 0xc00"):
            chained(device, x, ops[:4])
