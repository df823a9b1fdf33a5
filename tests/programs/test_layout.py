# SPDX-License-Identifier: MIT
"""Copies of parts of tensors on the simulated devices, and parts that need none, against numpy."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.conv_reference import Array, quantization, random

import npukit
from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import launch
from npukit.programs.rk3588.activation import lookup
from npukit.programs.rk3588.layout import Copy, concat, pad, part, slice_
from npukit.programs.rk3588.operation import execute
from npukit.programs.rk3588.quantize import Quantization
from npukit.programs.rk3588.tensor import Tensor

relaxed = settings(max_examples=50)
quantizations = st.one_of(st.none(), quantization(0.01, 1))


def values(rng: np.random.Generator, q: Quantization | None, shape: tuple[int, ...]) -> Array:
    """float16 of any bits, NaNs among them: a copy has to keep them."""
    if q is None:
        return rng.integers(0, 1 << 16, shape, np.uint16).view(np.float16)
    return random(rng, q, shape)


def same(found: Array, expected: Array) -> None:
    """To the bit."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


@relaxed
@given(st.data(), quantizations, st.integers(0, 2), st.integers(1, 3))
def test_concatenations(
    device: Any, data: st.DataObject, q: Quantization | None, axis: int, cores: int
) -> None:
    lanes = 16 if q else 8
    shape = [data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))]
    shape.append(data.draw(st.integers(1, 40)))
    shapes = []
    for index in range(count := data.draw(st.integers(1, 4))):
        own = list(shape)
        own[axis] = data.draw(st.integers(1, 6))
        if axis == 2:
            own[2] = own[2] * lanes - (data.draw(st.integers(0, 7)) if index == count - 1 else 0)
        shapes.append((own[0], own[1], own[2]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    parts = [values(rng, q, size) for size in shapes]
    found = execute(device, concat(shapes, q, axis), *parts, cores=cores)
    same(found, np.concatenate(parts, axis))


def ranges(data: st.DataObject, size: int, step: int = 1) -> range:
    start = data.draw(st.integers(0, (size - 1) // step)) * step
    return range(start, data.draw(st.integers(start + 1, size)))


@relaxed
@given(
    st.data(),
    quantizations,
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 60)),
    st.integers(1, 3),
)
def test_slices(
    device: Any, data: st.DataObject, q: Quantization | None, shape: Any, cores: int
) -> None:
    rows, columns = ranges(data, shape[0]), ranges(data, shape[1])
    channels = ranges(data, shape[2], 16 if q else 8)
    x = values(np.random.default_rng(data.draw(st.integers(0, 2**32))), q, shape)
    op = slice_(*shape, q, rows=rows, columns=columns, of_channels=channels)
    found = execute(device, op, x, cores=cores)
    same(found, x[rows.start : rows.stop, columns.start : columns.stop][:, :, channels])
    box = len(channels) > (16 if q else 8), len(rows) > 1, len(columns) < shape[1]
    if not all(box):
        assert len(op.program([0], 0, 0).tasks) == 1


@relaxed
@given(
    st.data(),
    quantizations,
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 40)),
    st.tuples(*[st.integers(0, 4)] * 4),
)
def test_pads(
    device: Any, data: st.DataObject, q: Quantization | None, shape: Any, padding: Any
) -> None:
    x = values(np.random.default_rng(data.draw(st.integers(0, 2**32))), q, shape)
    value = None
    if q is not None and data.draw(st.booleans()):
        limits = np.iinfo(q.dtype)
        value = data.draw(st.integers(int(limits.min), int(limits.max)))
    found = execute(device, pad(*shape, q, padding, value), x)
    constant = (q.zero_point if q else 0) if value is None else value
    sides = (padding[:2], padding[2:], (0, 0))
    same(found, np.pad(x, sides, constant_values=constant))


CUTS: list[tuple[Copy, int, Any]] = [
    (concat([(4, 4, 32), (4, 4, 8)], None), 2, lambda a, b: np.concatenate([a, b], 2)),
    (concat([(4, 4, 32), (5, 4, 32)], None, 0), 2, lambda a, b: np.concatenate([a, b], 0)),
    (concat([(4, 4, 32), (4, 5, 32)], None, 1), 2, lambda a, b: np.concatenate([a, b], 1)),
    # Surface by surface, row by row, and all rows at once.
    (slice_(9, 9, 24, None, columns=range(2, 5)), 3, lambda x: x[:, 2:5]),
    (slice_(2, 9, 24, None, columns=range(2, 5)), 2, lambda x: x[:, 2:5]),
    (slice_(9, 9, 24, None, rows=range(2, 5)), 1, lambda x: x[2:5]),
    # More surfaces, or rows for surfaces, than a task has.
    (slice_(2, 1, 8 * 700, None), 2, lambda x: x),
    (slice_(700, 2, 8, None, columns=range(1)), 2, lambda x: x[:, :1]),
    (pad(4, 4, 32, None, (1, 1, 1, 1)), 2, lambda x: np.pad(x, ((1, 1), (1, 1), (0, 0)))),
]


@pytest.mark.parametrize(("op", "tasks", "expected"), CUTS)
def test_how_copies_are_cut(op: Copy, tasks: int, expected: Any) -> None:
    assert len(op.program([0] * len(op.inputs), 0, 0).tasks) == tasks
    rng = np.random.default_rng(3)
    arguments = [values(rng, None, tensor.shape) for tensor in op.inputs]
    with npukit.open("sim:rocket", strict=True) as device:
        for cores in (1, 3):
            same(execute(device, op, *arguments, cores=cores), expected(*arguments))


def test_parts_need_no_copy(device: Any) -> None:
    """Two operations write into one tensor, and a third reads some of its channels."""
    q = Quantization(1.0, 0, "int8")
    whole = Tensor(3, 4, 56, q, 4)
    rng = np.random.default_rng(4)
    x, y = random(rng, q, (3, 4, 32)), random(rng, q, (3, 4, 24))
    with contextlib.ExitStack() as stack:

        def buffer(image: Array) -> Any:
            found = stack.enter_context(device.alloc(image.nbytes))
            with found.access("w") as memory:
                memory[: image.nbytes] = image.reshape(-1).view(np.uint8)
            return found

        target = buffer(np.zeros(whole.size, np.uint8))
        for values, channels in ((x, range(32)), (y, range(32, 56))):
            place, offset = part(whole, channels=channels)
            op = lookup(3, 4, len(channels), q, q, lambda v: -v)
            assert place == op.output
            source = buffer(op.inputs[0].pack(values))
            program = op.program([source.dma_address], 0, target.dma_address + offset)
            launch.run(device, [program], [source], [target])
        found = whole.unpack(target.array()[: whole.size]).copy()
        some, offset = part(whole, channels=range(16, 48))
        op = lookup(3, 4, 32, q, q, lambda v: v / 2)
        assert some == op.inputs[0]
        output = stack.enter_context(device.alloc(op.output.size))
        program = op.program([target.dma_address + offset], 0, output.dma_address)
        launch.run(device, [program], [target], [output])
        half = op.output.unpack(output.array()[: op.output.size]).copy()
    negated = np.clip(-np.concatenate([x, y], 2).astype(int), -128, 127)
    np.testing.assert_array_equal(found, negated)
    real = negated[:, :, 16:48] / 2
    np.testing.assert_array_equal(half, np.trunc(real + np.sign(real) * 0.5))


def test_rows_of_one_surface_lie_together() -> None:
    tensor = Tensor(5, 4, 40, None, 5)
    found, offset = part(tensor, rows=range(2, 4), channels=range(8, 14))
    assert (found.shape, found.surfaces, offset) == ((2, 4, 6), 1, (20 + 2 * 4) * 16)
    with pytest.raises(ProgramError, match="2 of 5 rows of 5 surfaces do not lie together"):
        part(tensor, rows=range(2, 4))


def test_what_cannot_be_done_is_refused() -> None:
    q = Quantization(0.1)
    for make, rule in (
        (lambda: concat([(2, 2, 20), (2, 2, 8)], q), "channel 20 is not a multiple of 16"),
        (lambda: concat([(2, 2, 4), (2, 2, 8)], None), "channel 4 is not a multiple of 8"),
        (lambda: concat([(2, 2, 16), (2, 3, 16)], q), r"\(2, 3, 16\) does not fit \(2, 2, 16\)"),
        (lambda: concat([], q), "0 tensors"),
        (lambda: concat([(2, 2, 2)], q, 3), "axis 3"),
        (lambda: concat([(0, 2, 2)], q), "0 x 2 x 2"),
        (lambda: slice_(4, 4, 40, q, of_channels=range(8, 24)), "channel 8 is not"),
        (lambda: slice_(4, 4, 40, q, rows=range(3, 5)), r"range\(3, 5\) of 4"),
        (lambda: slice_(4, 4, 40, q, columns=range(2, 2)), r"range\(2, 2\) of 4"),
        (lambda: slice_(4, 4, 40, q, rows=range(0, 4, 2)), r"range\(0, 4, 2\)"),
        (lambda: pad(4, 4, 4, q, (0, -1, 0, 0)), "padding .0, -1"),
        (lambda: pad(4, 4, 4, q, (0, 1, 0, 0), 256), "padding with 256, which is no uint8"),
        (lambda: pad(4, 4, 4, None, (0, 1, 0, 0), 1), "which is no float16 but 0"),
        (lambda: pad(4, 9000, 4, None, (0, 1, 0, 0)), "WIDTH = 8999"),
        (lambda: part(Tensor(2, 2, 40, q, 3), channels=range(8, 20)), "channel 8 is not"),
        (lambda: part(Tensor(2, 2, 40, q, 3), channels=range(16, 48)), "of 40"),
    ):
        with pytest.raises(ProgramError, match=rule):
            make()


def test_copies_are_unproven() -> None:
    assert len(pad(4, 4, 4, None, (0, 1, 0, 0)).program([0], 0, 0).unproven) == 1
