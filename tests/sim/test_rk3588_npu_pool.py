# SPDX-License-Identifier: MIT
"""Pooling on the simulated core, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.rk3588_streams import METHODS, Conv, Pool, Rig
from sim.test_rk3588_npu_dpu import LEVELS, random_bytes, simd

from npukit.programs.rk3588.registers import PPU, PPU_RDMA

MINUS_INFINITY, INFINITY = 0xFC00, 0x7C00


def place(rig: Rig, pool: Pool, rng: np.random.Generator) -> None:
    base, size = pool.spans()["source"]
    if pool.dtype == "int8":
        rig.add(base, rng.integers(-128, 128, size, np.int8))
    else:
        rig.add(base, random_bytes(rng, "fp16", size))
    rig.blank(*pool.spans()["output"])


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    dtype = draw(st.sampled_from(["int8", "fp16"]))
    method = draw(st.sampled_from(list(METHODS)))
    kernel = draw(st.tuples(st.integers(2, 7), st.integers(2, 7)))
    stride = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    size = draw(st.tuples(st.integers(7, 12), st.integers(7, 12)))
    before = [draw(st.integers(0, min(7, k - 1))) for k in kernel]
    behind = [draw(st.integers(0, min(7, k - 1))) for k in kernel]
    # Windows that touch the input and do not pass the padding.
    out = [
        draw(st.integers(1, min((n + a + b - k) // s, (n - 1 + a) // s) + 1))
        for n, a, b, k, s in zip(size, before, behind, kernel, stride, strict=True)
    ]
    if dtype == "int8":
        pad_value = draw(st.integers(-128, 127)) & draw(st.sampled_from([0x7FFFF, 0xFFFFFFFF]))
    else:
        pads = [0, 0x3C00] if method == "average" else [0, MINUS_INFINITY, INFINITY]
        pad_value = draw(st.sampled_from(pads))
    line = size[1] + draw(st.integers(0, 3))
    pool = Pool(
        method=method,
        dtype=dtype,
        height=size[0],
        width=size[1],
        channels=(16 if dtype == "int8" else 8) * draw(st.integers(1, 4)),
        kernel=kernel,
        stride=stride,
        pads=(before[0], before[1], behind[0], behind[1]),
        out=(out[0], out[1]),
        pad_value=pad_value,
        line_pitch=line,
        surface_pitch=size[0] * line + draw(st.integers(0, 5)),
        out_notch=draw(st.integers(0, 3)),
    )
    surface = pool.out_pitches[1] + draw(st.integers(0, 3))
    return Pool(**{**vars_of(pool), "out_surface_pitch": surface})


def vars_of(pool: Pool) -> dict[str, object]:
    return {name: getattr(pool, name) for name in pool.__dataclass_fields__}


@settings(max_examples=150)
@given(pool=pools(), level=st.sampled_from(LEVELS), seed=st.integers(0, 2**32 - 1))
def test_any_pooling_agrees_with_the_reference(pool: Pool, level: str, seed: int) -> None:
    rig = Rig()
    place(rig, pool, np.random.default_rng(seed))
    words = pool.words()
    with simd(level):
        completion = rig.run(words, int_mask=0xC00)
    assert completion.error is None, str(completion.error)
    assert completion.raw_status == 0x400
    rig.check(words)


def measured(total: int, width: int, height: int) -> int:
    """The mean of int8 as others have found an RK3588 to round it, from the sum alone.

    Half away from zero, but a tie goes towards zero when a reciprocal is inexact, and to even
    otherwise.
    """
    count = width * height
    quotient, rest = divmod(abs(total), count)
    up = 2 * rest > count
    if 2 * rest == count:
        exact = 0x10000 % width == 0 and 0x10000 % height == 0
        up = exact and quotient % 2 == 1
    magnitude = quotient + up
    return magnitude if total >= 0 else -magnitude


@pytest.mark.parametrize("kernel", [(2, 2), (4, 4), (2, 3), (3, 2), (3, 3), (5, 2), (8, 8)])
def test_means_round_as_measured(kernel: tuple[int, int]) -> None:
    """Every sum that a window can have, in as many windows."""
    height, width = kernel
    count = height * width
    totals = range(-128 * count, 127 * count + 1)
    windows = np.zeros((len(totals), count), np.int8)
    for row, total in zip(windows, totals, strict=True):
        row[:] = total // count
        row[: total % count] += 1
    lanes = -(-len(totals) // 16)
    padded = np.zeros((lanes * 16, count), np.int8)
    padded[: len(totals)] = windows
    pool = Pool("average", "int8", height, width * lanes, 16, kernel, kernel, out=(1, lanes))
    rig = Rig()
    atoms = padded.reshape(lanes, 16, height, width).transpose(2, 0, 3, 1)
    rig.add(pool.source, np.ascontiguousarray(atoms))
    out = rig.blank(*pool.spans()["output"])
    assert rig.run(pool.words(), int_mask=0xC00).error is None
    got = out.view(np.int8)[: len(totals)].tolist()
    assert got == [measured(total, width, height) for total in totals]


def test_a_mean_of_halves_by_the_vendors_reciprocals() -> None:
    pool = Pool("average", "fp16", 6, 6, 8, (2, 3), (2, 3), out=(3, 2))
    assert (pool.reciprocal(2), pool.reciprocal(3)) == (0x7800, 0x7555)
    rig = Rig()
    place(rig, pool, np.random.default_rng(0))
    assert rig.run(pool.words(), int_mask=0xC00).error is None
    source, out = (data.view(np.float16).astype(float) for _, data in rig.memory.mappings[:2])
    right = source.reshape(3, 2, 2, 3, 8).mean(axis=(1, 3))
    np.testing.assert_allclose(out.reshape(right.shape), right, rtol=1e-3, atol=2e-3)


def test_a_convolution_and_a_pooling_in_one_chain() -> None:
    conv = Conv("int8", "int8", 8, 8, 32, 32, out=(8, 8))
    pool = Pool(channels=32, source=conv.output, output=0x60000000)
    rig = Rig()
    rig.place(conv, np.random.default_rng(1))
    rig.blank(*pool.spans()["output"])
    second = pool.words()
    first = conv.words(0x2000, len(second), DPU__OUT_CVT_SHIFT__OUT_CVT_SHIFT=8)
    rig.load(first)
    rig.load(second, 0x2000)
    completion = rig.npu.run(0x1000, len(first), 2, int_mask=0xC00)
    assert completion.error is None
    assert (completion.tasks_done, completion.raw_status) == (2, 0x400)
    rig.check(first, second)
    # The DPU's interrupt is not the last task's.
    error = rig.npu.run(0x1000, len(first), 2, int_mask=0x300).error
    assert error is not None
    assert error.kind == "timed out"


FAULTS = [
    ("unsupported", "PPU.OPERATION_MODE_CFG.INDEX_EN", 1),
    ("unsupported", "PPU.OPERATION_MODE_CFG.USE_CNT", 1),
    ("unsupported", "PPU.OPERATION_MODE_CFG.FLYING_MODE", 0),
    ("unsupported", "PPU.OPERATION_MODE_CFG.POOLING_METHOD", 3),
    ("unsupported", "PPU.PADDING_VALUE_2_CFG.PAD_VALUE_1", 1),
    ("unsupported", "PPU.PADDING_VALUE_1_CFG.PAD_VALUE_0", 128),
    ("unsupported", "PPU.PADDING_VALUE_1_CFG.PAD_VALUE_0", 0x80000),
    ("unsupported", "PPU.DATA_FORMAT.DPU_FLYIN", 1),
    ("unsupported", "PPU.DATA_FORMAT.PROC_PRECISION", 1),
    ("unsupported", "PPU.MISC_CTRL.SURF_LEN", 1),
    ("unsupported", "PPU.MISC_CTRL.MC_SURF_OUT", 1),
    ("unsupported", "PPU.MISC_CTRL.NONALIGN", 1),
    ("inconsistent", "PPU.DATA_FORMAT.INDEX_ADD", 15),
    ("inconsistent", "PPU.DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL", 15),
    ("inconsistent", "PPU_RDMA.RDMA_CUBE_IN_WIDTH.CUBE_IN_WIDTH", 6),
    ("inconsistent", "PPU_RDMA.RDMA_CUBE_IN_HEIGHT.CUBE_IN_HEIGHT", 6),
    ("inconsistent", "PPU_RDMA.RDMA_CUBE_IN_CHANNEL.CUBE_IN_CHANNEL", 15),
    ("inconsistent", "PPU_RDMA.RDMA_DATA_FORMAT.IN_PRECISION", 2),
    ("inconsistent", "PPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR", 0x10000004),
    ("inconsistent", "PPU.POOLING_PADDING_CFG.PAD_LEFT", 2),
    ("inconsistent", "PPU.POOLING_PADDING_CFG.PAD_TOP", 2),
    ("inconsistent", "PPU.DATA_CUBE_OUT_WIDTH.CUBE_OUT_WIDTH", 4),
    ("inconsistent", "PPU.DATA_CUBE_OUT_HEIGHT.CUBE_OUT_HEIGHT", 4),
    ("access", "PPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR", 0x10000400),
    ("access", "PPU.DST_BASE_ADDR.DST_BASE_ADDR", 0x3000010),
    ("inconsistent", "PPU.DST_BASE_ADDR.DST_BASE_ADDR", 0x1000000),
    ("inconsistent", "PPU.DST_SURF_STRIDE.DST_SURF_STRIDE", 8),
]


@pytest.mark.parametrize(("kind", "name", "value"), FAULTS)
def test_faults(kind: str, name: str, value: int) -> None:
    pool = Pool(channels=32)
    rig = Rig()
    place(rig, pool, np.random.default_rng(0))
    changes = {name.replace(".", "__"): value}
    if name.endswith("DST_SURF_STRIDE"):
        changes["PPU__DATA_FORMAT__INDEX_ADD"] = value
    fault = rig.run(pool.words(**changes), int_mask=0xC00).error
    assert fault is not None
    assert fault.kind == kind
    if "STRIDE" not in name:
        assert f"{fault.block}.{fault.register}.{fault.field}" == name


def test_channels_have_to_fill_atoms() -> None:
    pool = Pool(channels=24)
    rig = Rig()
    place(rig, Pool(channels=32), np.random.default_rng(0))
    fault = rig.run(pool.words(), int_mask=0xC00).error
    assert fault is not None
    assert (fault.kind, fault.field) == ("unsupported", "CUBE_IN_CHANNEL")


@pytest.mark.parametrize(("method", "sign"), [("max", -1), ("min", 1)])
@pytest.mark.parametrize("dtype", ["int8", "fp16"])
def test_padding_never_wins(dtype: str, method: str, sign: int) -> None:
    """Rockchip's compiler pads with 0, whatever numbers a tensor holds."""
    pool = Pool(method, dtype, 15, 15, 32, (3, 3), (2, 2), (1, 1, 1, 1), (8, 8))
    rig = Rig()
    rng = np.random.default_rng(0)
    kind = np.int8 if dtype == "int8" else np.float16
    x = sign * rng.integers(1, 100, (32 * kind().itemsize // 16, 15, 15, 16 // kind().itemsize))
    x = x.astype(kind)
    rig.add(pool.source, x.ravel())
    out = rig.blank(pool.output, 8 * 8 * 32 * kind().itemsize)
    assert rig.run(pool.words(), int_mask=0xC00).error is None
    best = np.max if method == "max" else np.min
    rows = [slice(max(2 * i - 1, 0), 2 * i + 2) for i in range(8)]
    right = np.array([[best(x[:, v, u], axis=(1, 2)) for u in rows] for v in rows])
    found = out.view(kind).reshape(-1, 8, 8, 16 // kind().itemsize)
    np.testing.assert_array_equal(found, right.transpose(2, 0, 1, 3))


WITHOUT_EFFECT = {"BURST_LEN", "RECIP_KERNEL_WIDTH", "RECIP_KERNEL_HEIGHT", "PAD_VALUE_0"}
"""Bus bursts, and what only an average needs."""


def test_every_field_is_refused_has_an_effect_or_is_listed() -> None:
    pool = Pool("max", "int8", 9, 8, 32, (3, 2), (2, 2), (1, 1, 1, 1), (5, 5), line_pitch=9,
                surface_pitch=85, out_notch=1, pad_value=40)  # fmt: skip
    rig = Rig()
    rng = np.random.default_rng(0)
    rig.add(pool.source, rng.integers(-128, 128, 1 << 14, np.int8))
    out = rig.blank(pool.output, 1 << 14)
    before = pool.words()
    rig.load(before)
    assert rig.npu.run(0x1000, len(before), int_mask=0xC00).error is None
    right = out.copy()
    for block in (PPU, PPU_RDMA):
        for register in block.registers():
            if register.offset & 0xFFF in (0, 4, 8):
                continue
            for field in register.fields.values():
                index = next(i for i, w in enumerate(before) if w & 0xFFFF == register.offset)
                words = list(before)
                words[index] ^= 1 << (16 + field.lo)
                rig.load(words, 0x8000)
                out[:] = 0xA5
                error = rig.npu.run(0x8000, len(words), int_mask=0xC00).error
                rig.npu.unmap(0x8000)
                silent = error is None and np.array_equal(out, right)
                assert not silent or field.name in WITHOUT_EFFECT, f"{register}.{field.name}"


def test_work_is_limited() -> None:
    pool = Pool(height=100, width=100, out=(50, 50))
    rig = Rig()
    place(rig, pool, np.random.default_rng(0))
    fault = rig.run(pool.words(), int_mask=0xC00, work_limit=1000).error
    assert fault is not None
    assert fault.kind == "timed out"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_work_for_several_threads(threads: int) -> None:
    pool = Pool("average", "int8", 90, 90, 48, (3, 3), (1, 1), (1, 1, 1, 1), (90, 90))
    rig = Rig(threads=threads)
    place(rig, pool, np.random.default_rng(1))
    words = pool.words()
    assert rig.run(words, int_mask=0xC00).error is None
    rig.check(words)
