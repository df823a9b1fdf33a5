# SPDX-License-Identifier: MIT
"""Convolutions of all shapes on the simulated core against the interpreter in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.rk3588_reference import convolve
from sim.rk3588_streams import Conv, Rig, fault_of, operands

from npukit.sim import _rk3588

LEVELS = _rk3588.simd_available()
PADS = {"int8": (-128, 127), "int16": (-32768, 32767)}


@contextmanager
def simd(level: str) -> Iterator[None]:
    before = _rk3588.simd_level()
    _rk3588.simd_set(level)
    try:
        yield
    finally:
        _rk3588.simd_set(before)


@st.composite
def convs(draw: st.DrawFn) -> Conv:
    dtype = draw(st.sampled_from(["int8", "int16", "fp16"]))
    out_dtype = draw(st.sampled_from(["fp32", "fp16"])) if dtype == "fp16" else "int32"
    lanes = 16 if dtype == "int8" else 8
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    pads = tuple(draw(st.integers(0, min(span - 1, 15))) for span in spans)
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    # Any output whose last window still touches the input.
    out = tuple(
        draw(st.integers(1, (length - 1 + pad) // step + 1))
        for length, pad, step in zip(size, pads, stride, strict=True)
    )
    kernels = draw(st.integers(1, 70))
    row_pitch = size[1] + draw(st.integers(0, 3))
    line_pitch = out[1] + draw(st.integers(0, 3))
    return Conv(
        dtype=dtype,
        out_dtype=out_dtype,
        height=size[0],
        width=size[1],
        channels=lanes * draw(st.integers(1, 9)),
        kernels=kernels,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pads=(pads[0], pads[1]),
        out=(out[0], out[1]),
        pad_value=draw(st.just(0x3C00) if dtype == "fp16" else st.integers(*PADS[dtype])),
        off=draw(st.booleans()),
        row_pitch=row_pitch,
        surface_pitch=size[0] * row_pitch + draw(st.integers(0, 5)),
        out_line_pitch=line_pitch,
        out_surface_pitch=out[0] * line_pitch + draw(st.integers(0, 5)),
        written=kernels + draw(st.integers(0, 40)),
    )


@settings(max_examples=150)
@given(conv=convs(), level=st.sampled_from(LEVELS), seed=st.integers(0, 2**32 - 1))
def test_any_shape_agrees_with_the_reference(conv: Conv, level: str, seed: int) -> None:
    rig = Rig()
    exact = bool(seed & 1)
    rig.place(conv, np.random.default_rng(seed), exact=exact)
    words = conv.words()
    with simd(level):
        completion = rig.run(words)
    assert completion.error is None
    rig.check(words, exact=exact)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "conv",
    [
        Conv(height=33, width=40, channels=48, kernels=70, kernel=(31, 31), out=(3, 10)),
        Conv(height=40, width=40, channels=32, kernels=33, kernel=(3, 3), out=(38, 38)),
        Conv("fp16", "fp16", 40, 30, 24, 50, (5, 3), (2, 1), (2, 1), (20, 30)),
        Conv("fp16", "fp32", 300, 1, 64, 48, out=(300, 1)),
        Conv(height=301, width=1, channels=144, kernels=100, out=(301, 1)),
        Conv("int16", "int32", 40, 30, 40, 50, (5, 3), (2, 1), (2, 1), (20, 30)),
    ],
    ids=["31x31", "3x3", "5x3", "fp16 matmul", "int8 matmul", "int16"],
)
def test_work_for_several_threads(conv: Conv, level: str) -> None:
    outputs = []
    for threads in (1, 2, 3):
        rig = Rig(threads=threads)
        rig.place(conv, np.random.default_rng(7))
        words = conv.words()
        with simd(level):
            assert rig.run(words).error is None
        outputs.append(rig.memory.mappings[2][1])
    rig.check(words)
    # A sum is formed by one thread, in one order.
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_int8_is_the_same_at_all_levels() -> None:
    conv = Conv(height=20, width=9, channels=80, kernels=45, kernel=(3, 2), out=(18, 8))
    outputs = []
    for level in LEVELS:
        rig = Rig()
        rig.place(conv, np.random.default_rng(3))
        with simd(level):
            assert rig.run(conv.words()).error is None
        outputs.append(rig.memory.mappings[2][1])
    assert all(np.array_equal(outputs[0], output) for output in outputs)


@pytest.mark.parametrize("level", LEVELS)
def test_int8_extremes_and_wrapping(level: str) -> None:
    # 31 * 31 * 160 products of 2^14 exceed 2^31: the accumulator wraps.
    conv = Conv(height=31, width=31, channels=160, kernels=2, kernel=(31, 31), out=(1, 1))
    rig = Rig()
    for name, (iova, size) in conv.spans().items():
        rig.add(iova, np.full(size, 0xA5 if name == "output" else 0x80, np.uint8))
    with simd(level):
        assert rig.run(conv.words()).error is None
    total = (31 * 31 * 160 << 14) - (1 << 32)
    assert rig.memory.mappings[2][1].view(np.int32).tolist()[:2] == [total, total]


def test_int16_sums_saturate() -> None:
    """Behind the truncation, not before: 2 * 2^30 * 32 channels are 2^36."""
    for truncate, right in ((0, 2**31 - 1), (5, 2**31 - 1), (6, 2**30), (31, 2**5)):
        conv = Conv("int16", "int32", kernel=(1, 2), width=5)
        rig = Rig()
        for name, (iova, size) in conv.spans().items():
            rig.add(iova, np.full(size // 2, 0 if name == "output" else -32768, np.int16))
        assert rig.run(conv.words(CORE__CLIP_TRUNCATE__CLIP_TRUNCATE=truncate)).error is None
        assert (rig.memory.mappings[2][1].view(np.int32) == right).all()


@pytest.mark.parametrize("level", LEVELS)
def test_every_half_passes_unchanged(level: str) -> None:
    """fp16 -> fp32 -> fp16 by multiplying with one: subnormals, infinities, NaN."""
    conv = Conv("fp16", "fp16", 64, 128, 8, 1, out=(64, 128), surface_pitch=1 << 13)
    halves = np.arange(1 << 16, dtype=np.uint16)
    # Other channels are zero, so that each sum is one value: channel 0 of pixel after pixel.
    for part in range(8):
        rig = Rig()
        features = np.zeros((1 << 13, 8), np.uint16)
        features[:, 0] = halves[part << 13 : (part + 1) << 13]
        rig.add(conv.features, features)
        rig.add(conv.weights, np.array([1] + [0] * 7, np.float16))
        rig.blank(conv.output, 16 << 13)
        with simd(level):
            assert rig.run(conv.words()).error is None
        got = rig.memory.mappings[2][1].view(np.float16).reshape(-1, 8)[:, 0]
        sent = features[:, 0].view(np.float16)
        nan = np.isnan(sent)
        assert np.isnan(got[nan]).all()
        # Adding zeros turns -0 into +0.
        np.testing.assert_array_equal(got[~nan], sent[~nan])


@pytest.mark.parametrize("level", LEVELS)
def test_rounding_to_half(level: str) -> None:
    """Ties go to even, what is beyond the largest number by half its last place to infinity."""
    values = {
        # a * b summed over two channels -> fp16
        (1.0, 2.0**-11): 1.0,
        (1.0 + 2.0**-10, 2.0**-11): 1.0 + 2.0**-9,
        (65504.0, 16.0): np.inf,
        (65504.0, 15.0): 65504.0,
        (-65504.0, -16.0): -np.inf,
        (2.0**-24, 0.0): 2.0**-24,
    }
    conv = Conv("fp16", "fp16", len(values), 1, 8, 1, out=(len(values), 1))
    rig = Rig()
    features = np.zeros((len(values), 8), np.float16)
    for i, pair in enumerate(values):
        features[i, :2] = pair
    rig.add(conv.features, features)
    rig.add(conv.weights, np.array([1, 1] + [0] * 6, np.float16))
    rig.add(conv.output, np.zeros(16 * len(values), np.uint8))
    with simd(level):
        assert rig.run(conv.words()).error is None
    got = rig.memory.mappings[2][1].view(np.float16).reshape(-1, 8)[:, 0]
    np.testing.assert_array_equal(got, np.array(list(values.values()), np.float16))


@pytest.mark.parametrize("dtype", ["int8", "fp16"])
def test_rows_as_in_a_plain_matrix(dtype: str) -> None:
    """The second form: A[M][K] and C[M][N] row-major, by off mode and swapped pitches."""
    m, k, n = 37, 96, 48
    conv = Conv(
        dtype, "int32" if dtype == "int8" else "fp32", m, 1, k, n, out=(m, 1), off=True,
        row_pitch=k * (1 if dtype == "int8" else 2) // 16, surface_pitch=1,
        out_line_pitch=n // 4, out_surface_pitch=1,
    )  # fmt: skip
    assert conv.fields()["DPU.SURFACE_ADD.SURF_ADD"] in (4, 8)
    assert conv.fields()["CNA.DMA_CON2.SURF_STRIDE"] == 0
    rig = Rig()
    rig.place(conv, np.random.default_rng(2), exact=True)
    words = conv.words()
    assert rig.run(words).error is None
    rig.check(words, exact=True)
    kind = np.int8 if dtype == "int8" else np.float16
    a = rig.memory.mappings[0][1].view(kind).reshape(m, k).astype(np.float64)
    b = rig.memory.mappings[1][1].view(kind)
    group = 32 if dtype == "int8" else 16
    columns = [
        b[g * group * k :][: min(group, n - g * group) * k]
        .reshape(k // 32, -1, 32)
        .transpose(1, 0, 2)
        .reshape(-1, k)
        for g in range(-(-n // group))
    ]
    c = rig.memory.mappings[2][1].view(np.int32 if dtype == "int8" else np.float32)
    np.testing.assert_array_equal(c.reshape(m, n), a @ np.concatenate(columns).astype(np.float64).T)


def test_surfaces_in_falling_order() -> None:
    """SURF_STRIDE is signed: the first channels may be behind the last ones."""
    conv = Conv(height=3, width=5, channels=64, out=(3, 5))
    size = conv.spans()["features"][1]
    start = conv.features
    conv = Conv(
        height=3, width=5, channels=64, out=(3, 5), surface_pitch=-15, features=start + 3 * 15 * 16
    )
    rig = Rig()
    rng = np.random.default_rng(4)
    rig.add(start, rng.integers(0, 256, size, np.uint8))
    rig.add(conv.weights, rng.integers(0, 256, conv.spans()["weights"][1], np.uint8))
    rig.blank(conv.output, conv.spans()["output"][1])
    words = conv.words()
    assert rig.run(words).error is None
    rig.check(words)


@pytest.mark.parametrize("dtype", ["int8", "fp16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_features_that_exceed_their_banks_are_streamed(dtype: str, threads: int) -> None:
    out_dtype = "int32" if dtype == "int8" else "fp16"
    conv = Conv(dtype, out_dtype, 500, 16, 64, 40, (3, 3), (2, 1), (1, 1), (250, 16), data_banks=1)
    assert conv.height * conv.entries * 64 > 32768
    rig = Rig(threads=threads)
    rig.place(conv, np.random.default_rng(5))
    words = conv.words()
    assert rig.run(words).error is None
    rig.check(words)


def test_rows_between_windows_are_skipped() -> None:
    """Stride above kernel size: rows that no window sees, at the end and between."""
    conv = Conv(
        height=200, width=20, channels=128, kernels=32, stride=(7, 5), out=(20, 4), data_banks=1
    )
    rig = Rig()
    rig.place(conv, np.random.default_rng(6))
    words = conv.words()
    assert rig.run(words).error is None
    rig.check(words)


@pytest.mark.parametrize(
    ("value", "pad"), [(0xFFFFFF80, -128), (0xFFFF8080, -128), (0x0B0B, 11), (0x7B, 123)]
)
def test_pad_values_as_known_programs_write_them(value: int, pad: int) -> None:
    conv = Conv(kernel=(3, 3), pads=(1, 1))
    rig = Rig()
    rig.place(conv, np.random.default_rng(8))
    words = conv.words(CNA__PAD_CON1__PAD_VALUE=value)
    assert rig.run(words).error is None
    rig.check(words)
    # The reference reads the low byte; that this is the pad value is shown by convolving again.
    features = rig.memory.mappings[0][1].view(np.int8).reshape(2, 4, 4, 16)
    features = features.transpose(1, 2, 0, 3).reshape(4, 4, 32).astype(np.int64)
    weights = rig.memory.mappings[1][1].view(np.int8).reshape(3, 3, 32, 32)
    values = convolve(
        features, weights.transpose(2, 0, 1, 3).astype(np.int64), (1, 1), (1, 1), (4, 4), pad
    )
    got = rig.memory.mappings[2][1].view(np.int32).reshape(8, 4, 4, 4)
    np.testing.assert_array_equal(got.transpose(1, 2, 0, 3).reshape(4, 4, 32), values)


def test_channels_without_a_kernel_are_zero_whatever_the_features() -> None:
    conv = Conv("fp16", "fp32", kernels=3, written=16)
    rig = Rig()
    rig.add(conv.features, np.full(conv.spans()["features"][1] // 2, np.inf, np.float16))
    rig.add(conv.weights, np.ones(conv.spans()["weights"][1] // 2, np.float16))
    rig.blank(conv.output, conv.spans()["output"][1])
    assert rig.run(conv.words()).error is None
    got = rig.memory.mappings[2][1].view(np.float32).reshape(4, 16, 4)
    got = got.transpose(1, 0, 2).reshape(16, 16)
    assert np.isinf(got[:, :3]).all()
    assert not got[:, 3:].any()


@settings(max_examples=60)
@given(data=st.data(), level=st.sampled_from(LEVELS), seed=st.integers(0, 2**32 - 1))
def test_channel_last_input_agrees_with_the_reference(
    data: st.DataObject, level: str, seed: int
) -> None:
    """Of one to four channels, lines filled up to a stride; bytes converted, each channel alone."""
    draw = data.draw
    channels = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(["int8", "fp16"]))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    height, width = draw(st.tuples(st.integers(3, 9), st.integers(3, 9)))
    padded = draw(st.booleans())  # to the right, by the output's size: needs all columns
    stored = width + (0 if padded else draw(st.integers(0, 5)))
    conv = Conv(
        dtype, "int32" if dtype == "int8" else "fp32", height, stored,
        16 if dtype == "int8" else 8, draw(st.integers(1, 40)), kernel,
        pads=(kernel[0] - 1, kernel[1] - 1), off=True,
        out=(height + kernel[0] - 1, width + (kernel[1] - 1) * padded),
        pad_value=draw(st.integers(-128, 127)) if dtype == "int8" else 0,
    )  # fmt: skip
    convert = dtype == "int8" and draw(st.booleans())
    changes = {
        "CNA__CONV_CON1__ARGB_IN": 7 + channels,
        "CNA__CONV_CON1__NONALIGN_DMA": 1,
        "CNA__FC_DATA_SIZE0__DMA_WIDTH": width,
        "CNA__CVT_CON0__CVT_BYPASS": int(not convert),
        "CNA__CVT_CON0__CVT_TYPE": draw(st.integers(0, 1)),
        "CNA__CVT_CON0__ROUND_TYPE": draw(st.integers(0, 1)),
        "CNA__CVT_CON5__PER_CHANNEL_CVT_EN": draw(st.sampled_from([0xFFFF, (16**channels) - 1])),
        "CNA__CBUF_CON1__DATA_ENTRIES": height * stored,
    }
    if convert:
        changes["CNA__CVT_CON0__DATA_SIGN"] = draw(st.integers(0, 1))
        for i in range(4):
            changes[f"CNA__CVT_CON0__CVT_TRUNCATE_{i}"] = draw(st.integers(0, 16))
            changes[f"CNA__CVT_CON{i + 1}__CVT_SCALE{i}"] = draw(st.integers(0, 0xFFFF))
            changes[f"CNA__CVT_CON{i + 1}__CVT_OFFSET{i}"] = draw(st.integers(-200, 200))
    rig = Rig()
    rng = np.random.default_rng(seed)
    size = ((height - 1) * stored + width) * channels
    rig.add(conv.features, operands(dtype, size, rng, exact=True))
    rig.add(
        conv.weights, operands(dtype, conv.spans()["weights"][1] // conv.bytes, rng, exact=True)
    )
    rig.blank(*conv.spans()["output"])
    words = conv.words(**changes)
    with simd(level):
        completion = rig.run(words)
    assert completion.error is None, str(completion.error)
    rig.check(words, exact=True)


def test_channel_last_input_of_more_pixels_than_the_entries_of_the_manual() -> None:
    """What the vendor's compiler gives one task of a 192 x 192 image: all that 11 banks hold."""
    conv = Conv(height=117, width=192, channels=16, kernels=2, off=True, out=(117, 192))
    pixels = conv.height * conv.width
    changes = {
        "CNA__CONV_CON1__ARGB_IN": 10,
        "CNA__CONV_CON1__NONALIGN_DMA": 1,
        "CNA__CBUF_CON1__DATA_ENTRIES": pixels & 0x3FFF,
        "CNA__CBUF_CON1__UNDOC_MORE_ENTRIES": pixels >> 14,
    }
    rig = Rig()
    rng = np.random.default_rng(0)
    rig.add(conv.features, operands("int8", pixels * 3, rng))
    rig.add(conv.weights, operands("int8", conv.spans()["weights"][1], rng))
    rig.blank(*conv.spans()["output"])
    words = conv.words(**changes)
    assert rig.run(words).error is None
    rig.check(words)


@settings(max_examples=80)
@given(data=st.data(), level=st.sampled_from(LEVELS), seed=st.integers(0, 2**32 - 1))
def test_any_deconvolution_agrees_with_the_reference(
    data: st.DataObject, level: str, seed: int
) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(["int8", "int16", "fp16"]))
    spread = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    kernel = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    size = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    pads = [draw(st.integers(0, n - 1)) for n in kernel]
    out = [
        draw(st.integers(1, (n - 1) * s + 1 + pad))
        for n, s, pad in zip(size, spread, pads, strict=True)
    ]
    conv = Conv(
        dtype, "fp32" if dtype == "fp16" else "int32", *size, 16 * draw(st.integers(1, 4)),
        draw(st.integers(1, 40)), kernel, pads=(pads[0], pads[1]), out=(out[0], out[1]),
        pad_value=0 if dtype == "fp16" else draw(st.integers(-128, 127)),
    )  # fmt: skip
    words = conv.words(
        CNA__CONV_CON1__DECONV=1,
        CNA__CONV_CON3__DECONV_Y_STRIDE=spread[0] - 1,
        CNA__CONV_CON3__DECONV_X_STRIDE=spread[1] - 1,
        **({"DPU__BS_OW_CFG__OD_BYPASS": 0, "DPU__BS_OW_OP__OW_OP": 3} if dtype == "int8" else {}),
    )
    rig = Rig()
    rig.place(conv, np.random.default_rng(seed), exact=True)
    with simd(level):
        completion = rig.run(words)
    assert completion.error is None, str(completion.error)
    rig.check(words, exact=True)


@pytest.mark.parametrize("kernel", [2, 5])
def test_a_deconvolution_that_streams_its_input(kernel: int) -> None:
    """Some rows at a time; kernels of 2 see no row of the input now and then."""
    conv = Conv(height=90, width=120, channels=512, kernels=8, kernel=(kernel, 1), data_banks=10,
                weight_banks=2, pads=(kernel - 1, 0), out=(357 + kernel - 1, 120))  # fmt: skip
    words = conv.words(CNA__CONV_CON1__DECONV=1, CNA__CONV_CON3__DECONV_Y_STRIDE=3)
    rig = Rig()
    rig.place(conv, np.random.default_rng(1))
    assert rig.run(words).error is None
    rig.check(words)


@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        ("unsupported", "CONV_MODE", {"CNA__CONV_CON1__CONV_MODE": 3}),
        ("unsupported", "CONV_X_STRIDE", {"CNA__CONV_CON3__CONV_X_STRIDE": 2}),
        ("unsupported", "ATROUS_Y_DILATION", {"CNA__CONV_CON3__ATROUS_Y_DILATION": 1}),
        ("inconsistent", "DATAOUT_WIDTH", {"CNA__CONV_CON3__DECONV_X_STRIDE": 0}),
    ],
)
def test_faults_of_deconvolutions(kind: str, field: str, changes: dict[str, int]) -> None:
    conv = Conv(out=(7, 7))
    usual = {
        "CNA__CONV_CON1__DECONV": 1,
        "CNA__CONV_CON3__DECONV_Y_STRIDE": 1,
        "CNA__CONV_CON3__DECONV_X_STRIDE": 1,
    }
    fault = fault_of(conv, **(usual | changes))
    assert (fault.kind, fault.field) == (kind, field)


def test_columns_that_are_not_read_may_not_be_seen() -> None:
    conv = Conv("fp16", "fp16", 4, 8, 8, 16, (1, 3), out=(4, 6), off=True)
    changes = {
        "CNA__CONV_CON1__ARGB_IN": 10,
        "CNA__CONV_CON1__NONALIGN_DMA": 1,
        "CNA__FC_DATA_SIZE0__DMA_WIDTH": 7,
    }
    fault = fault_of(conv, **changes)
    assert (fault.kind, fault.field) == ("unsupported", "DATAIN_WIDTH")
