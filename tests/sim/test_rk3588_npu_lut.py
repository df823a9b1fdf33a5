# SPDX-License-Identifier: MIT
"""Lookup tables on the simulated core: filling them, and functions by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim.rk3588_dpu_reference import look_up, shift_right
from sim.rk3588_streams import Conv, Flight, Rig, word

from npukit.programs.rk3588.registers import DPU
from npukit.sim.rk3588 import NpuFault

ENTRIES = 513
SCALE = 2596.0
"""Index units for one unit of the argument: the tables reach to 16384 / 2596 = 6.31."""


def table_words(tables: npt.NDArray[Any]) -> list[int]:
    """Fill LE and LO: the address, then entry by entry."""
    words = []
    for i, table in enumerate(tables):
        words.append(word(DPU.LUT_ACCESS_CFG, 1 << 17 | i << 16))
        words += [word(DPU.LUT_ACCESS_DATA, int(entry) & 0xFFFF) for entry in table]
    return words


def lookup(shift: int = 5, **changes: int) -> dict[str, int]:
    """Fields for a lookup as programs known to work set them; entries are 1/32768."""
    size = 512 << shift
    fields = {
        "BN_CFG__BN_BYPASS": 0,
        "BN_CFG__BN_ALU_ALGO": 2,
        "BN_CFG__BN_RELU_BYPASS": 1,
        "BN_ALU_CFG__BN_ALU_OPERAND": 0x80000000,  # -0
        "BN_MUL_CFG__BN_MUL_OPERAND": 0x6912,  # 2596 in fp16
        "EW_CFG__EW_BYPASS": 0,
        "EW_CFG__EW_LUT_BYPASS": 0,
        "EW_CFG__EW_RELU_BYPASS": 1,
        "EW_CFG__EW_OP_CVT_BYPASS": 1,
        "EW_CVT_SCALE_VALUE__EW_OP_CVT_SCALE": 1,
        "OUT_CVT_SHIFT__CVT_TYPE": 1,
        "OUT_CVT_SHIFT__MINUS_EXP": 15,
        "LUT_CFG__LUT_HYBRID_PRIORITY": 1,
        "LUT_CFG__LUT_OFLOW_PRIORITY": 1,
        "LUT_CFG__LUT_LO_LE_MUX": 2,
        "LUT_INFO__LUT_LE_INDEX_SELECT": shift,
        "LUT_INFO__LUT_LO_INDEX_SELECT": shift,
        "LUT_LE_START__LUT_LE_START": -size,
        "LUT_LO_END__LUT_LO_END": size,
    }
    return {f"DPU__{name}": value for name, value in (fields | changes).items()}


def run(
    x: npt.NDArray[Any], tables: npt.NDArray[Any], out_dtype: str = "fp32", **changes: int
) -> npt.NDArray[Any] | NpuFault:
    flight = Flight("fp16", out_dtype, 1, len(x) // 8, 8)
    rig = Rig()
    rig.add(flight.source, x)
    out = rig.blank(*flight.spans()["output"])
    completion = rig.run(table_words(tables) + flight.words(**lookup(**changes)))
    if completion.error is not None:
        return completion.error
    if out_dtype == "fp16":
        return out.view(np.float16)
    return out.view(np.float32).reshape(2, -1, 4).transpose(1, 0, 2).reshape(-1)


def sampled(function: Any) -> npt.NDArray[Any]:
    """Both tables of a function into 0..1: LE up to 0, LO from 0 on."""
    step = 32 / SCALE
    points = np.array([np.arange(-512, 1) * step, np.arange(513) * step])
    return np.clip(np.rint(function(points) * 32768), 0, 32767).astype(np.int16)


def sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 1 / (1 + np.exp(-x))


def test_a_sigmoid_as_accurate_as_on_hardware() -> None:
    x = np.linspace(-6.3, 6.3, 4096).astype(np.float16)
    got = run(
        x, sampled(sigmoid), "fp16", OUT_CVT_OFFSET__OUT_CVT_OFFSET=1,
        LUT_LE_SLOPE_SCALE__LUT_LE_SLOPE_UFLOW_SCALE=23107,
        LUT_LE_SLOPE_SHIFT__LUT_LE_SLOPE_UFLOW_SHIFT=22,
    )  # fmt: skip
    # 0.00146 has been measured there.
    assert np.abs(got - sigmoid(x.astype(float))).max() < 0.0015


@pytest.mark.parametrize("shift", [0, 5, 9])
def test_interpolation_and_slopes(shift: int) -> None:
    rng = np.random.default_rng(shift)
    tables = rng.integers(-32768, 32768, (2, ENTRIES), np.int16)
    size, step = 512 << shift, 1 << shift
    bits = 0x3C00 if size < 60000 else 0x4C00  # x, or 16 x
    factor = 1 if bits == 0x3C00 else 16
    x = np.linspace(-1.3 * size / factor, 1.3 * size / factor, 8000).astype(np.float16)
    got = run(
        x, tables, BN_MUL_CFG__BN_MUL_OPERAND=bits, shift=shift,
        EW_CFG__EW_OP_BYPASS=1, OUT_CVT_OFFSET__OUT_CVT_OFFSET=-77, OUT_CVT_SHIFT__MINUS_EXP=3,
        LUT_LE_SLOPE_SCALE__LUT_LE_SLOPE_UFLOW_SCALE=300,
        LUT_LE_SLOPE_SHIFT__LUT_LE_SLOPE_UFLOW_SHIFT=4,
        LUT_LO_SLOPE_SCALE__LUT_LO_SLOPE_OFLOW_SCALE=7,
        LUT_LO_SLOPE_SHIFT__LUT_LO_SLOPE_OFLOW_SHIFT=2,
    )  # fmt: skip
    index = x.astype(float) * factor
    points = np.concatenate([np.arange(-512, 0), np.arange(513)]) * step
    entries = np.concatenate([tables[0][:512], tables[1]]).astype(float)
    right = np.interp(index, points, entries)
    # From the last step below 0 on, LE's own last entry counts.
    last = (index < 0) & (index > -step)
    start, end = float(tables[0][511]), float(tables[0][512])
    right[last] = end + (end - start) * index[last] / step
    right += np.minimum(index + size, 0) * 300 / 16 + np.maximum(index - size, 0) * 7 / 4
    np.testing.assert_allclose(got, (right - 77) / 8, rtol=1e-5, atol=0.05)


def test_tables_are_kept_from_run_to_run_and_lost_with_a_reset() -> None:
    flight = Flight("fp16", "fp32", 1, 2, 8)
    rig = Rig()
    rig.add(flight.source, np.zeros(16, np.float16))
    out = rig.blank(*flight.spans()["output"])
    fill = table_words(np.full((2, ENTRIES), 16384))
    assert rig.run(fill + flight.words(**lookup())).error is None
    assert (out.view(np.float32) == 0.5).all()
    out[:] = 0
    assert rig.run(flight.words(**lookup()), 0x8000).error is None
    assert (out.view(np.float32) == 0.5).all()
    rig.npu.reset()
    assert rig.run(flight.words(**lookup()), 0x10000).error is None
    assert not out.view(np.float32).any()


def test_tables_and_conversion_as_the_vendors_compiler_writes_them() -> None:
    """Signs written on, and an output conversion that would multiply first."""
    flight = Flight("fp16", "fp16", 1, 2, 8)
    x = np.linspace(-6, 6, 16).astype(np.float16)
    entries = np.random.default_rng(0).integers(-32768, 32768, (2, ENTRIES), np.int16)
    results = []
    for order, bits in ((1, 0xFFFF), (0, 0xFFFFFFFF)):
        words = []
        for i, table in enumerate(entries):
            words.append(word(DPU.LUT_ACCESS_CFG, 1 << 17 | i << 16))
            words += [word(DPU.LUT_ACCESS_DATA, int(entry) & bits) for entry in table]
        rig = Rig()
        rig.add(flight.source, x)
        out = rig.blank(*flight.spans()["output"])
        fields = lookup(
            EW_CFG__EW_OP_BYPASS=1, OUT_CVT_SHIFT__CVT_TYPE=order, OUT_CVT_OFFSET__OUT_CVT_OFFSET=1
        )
        assert rig.run(words + flight.words(**fields)).error is None
        results.append(out.view(np.float16).copy())
    assert len(np.unique(results[0])) > 10
    np.testing.assert_array_equal(results[1], results[0])


def test_an_entry_behind_the_end() -> None:
    words = [word(DPU.LUT_ACCESS_CFG, 1 << 17 | 512), word(DPU.LUT_ACCESS_DATA, 1)]
    rig = Rig()
    fault = rig.run([*words, word(DPU.LUT_ACCESS_DATA, 2)]).error
    assert fault is not None
    assert (fault.kind, fault.register, fault.value) == ("inconsistent", "LUT_ACCESS_DATA", 2)
    assert fault.iova == 0x1010


FAULTS = {
    "LUT_CFG__LUT_HYBRID_PRIORITY": 0,
    "LUT_CFG__LUT_OFLOW_PRIORITY": 0,
    "LUT_CFG__LUT_UFLOW_PRIORITY": 1,
    "LUT_CFG__LUT_LO_LE_MUX": 1,
    "LUT_CFG__LUT_EXPAND_EN": 1,
    "LUT_CFG__LUT_ROAD_SEL": 1,
    "LUT_CFG__LUT_CAL_SEL": 1,
    "LUT_INFO__LUT_LE_INDEX_SELECT": 22,
    "LUT_INFO__LUT_LO_INDEX_SELECT": 255,
    "LUT_LE_START__LUT_LE_START": -16383,
    "LUT_LE_END__LUT_LE_END": 1,
    "LUT_LO_START__LUT_LO_START": 1,
    "LUT_LO_END__LUT_LO_END": 16385,
    "LUT_LE_SLOPE_SCALE__LUT_LE_SLOPE_UFLOW_SCALE": 0x8000,
    "LUT_LO_SLOPE_SCALE__LUT_LO_SLOPE_OFLOW_SCALE": 0x8000,
    "EW_CFG__EW_OP_TYPE": 1,
    "EW_CFG__EW_ALU_ALGO": 2,
    "EW_CFG__EW_OP_SRC": 1,
    "EW_CFG__EW_RELU_BYPASS": 0,
    "EW_OP_VALUE_3__EW_OPERAND_3": 1,
    "OUT_CVT_SHIFT__MINUS_EXP": 64,
    "OUT_CVT_SHIFT__OUT_CVT_SHIFT": 1,
    "OUT_CVT_SHIFT__CVT_ROUND": 1,
    "OUT_CVT_SCALE__OUT_CVT_SCALE": 2,
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    tables = np.zeros((2, ENTRIES), np.int16)
    fault = run(np.zeros(16, np.float16), tables, **{name: FAULTS[name]})
    assert isinstance(fault, NpuFault)
    assert (fault.kind, fault.field) == ("unsupported", name.partition("__")[2])


def test_negative_entries_with_the_operation_that_is_always_there() -> None:
    fault = run(np.zeros(16, np.float16), np.full((2, ENTRIES), -1))
    assert isinstance(fault, NpuFault)
    assert (fault.kind, fault.field) == ("unsupported", "EW_OP_BYPASS")


def integers(
    x: npt.NDArray[Any], tables: npt.NDArray[Any], out_dtype: str, **changes: int
) -> npt.NDArray[Any] | NpuFault:
    """``run`` for integers, x[n] of one row; what BN would scale is left to ``changes``."""
    flight = Flight(str(x.dtype), out_dtype, 1, len(x) // 16, 16)
    lanes = 16 // x.itemsize
    rig = Rig()
    rig.add(flight.source, x.reshape(-1, 16 // lanes, lanes).transpose(1, 0, 2).reshape(-1))
    out = rig.blank(*flight.spans()["output"])
    usual = {
        "OUT_CVT_SHIFT__CVT_TYPE": 0, "OUT_CVT_SHIFT__MINUS_EXP": 0,
        "BN_MUL_CFG__BN_MUL_OPERAND": 1, "BN_ALU_CFG__BN_ALU_OPERAND": 0,
    }  # fmt: skip
    words = flight.words(**lookup(**(usual | changes)))
    completion = rig.run(table_words(tables) + words)
    if completion.error is not None:
        return completion.error
    lanes = 16 // np.dtype(out_dtype).itemsize
    return out.view(out_dtype).reshape(16 // lanes, -1, lanes).transpose(1, 0, 2).reshape(-1)


SLOPES = {
    "LUT_LE_SLOPE_SCALE__LUT_LE_SLOPE_UFLOW_SCALE": 30011,
    "LUT_LE_SLOPE_SHIFT__LUT_LE_SLOPE_UFLOW_SHIFT": 9,
    "LUT_LO_SLOPE_SCALE__LUT_LO_SLOPE_OFLOW_SCALE": 7,
    "LUT_LO_SLOPE_SHIFT__LUT_LO_SLOPE_OFLOW_SHIFT": 3,
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
@pytest.mark.parametrize("select", [0, 1, 5, 12, 21])
def test_integers_equal_the_reference(dtype: str, select: int) -> None:
    """In, between and beyond the tables, entry by entry and at both ends."""
    rng = np.random.default_rng(select)
    tables = rng.integers(-32768, 32768, (2, ENTRIES), np.int16)
    limits, size = np.iinfo(dtype), 512 << select
    edges = [
        *np.arange(-70, 70), -size - 1, -size, 1 - size, size - 1, size, size + 1,
        limits.min, limits.max,
    ]  # fmt: skip
    spread = rng.integers(-2 * size, 2 * size, 4096 - len(edges), np.int64)
    x = np.clip([*edges, *spread], limits.min, limits.max).astype(dtype)
    got = integers(x, tables, "int32", shift=select, EW_CFG__EW_OP_BYPASS=1, **SLOPES)
    right = look_up(tables, x.astype(np.int64), select, (30011, 9, 7, 3))
    np.testing.assert_array_equal(got, right)


def test_an_int8_sigmoid() -> None:
    """In 1/16 to 1/256, as TFLite has it: within one step of the exact function."""
    x = np.tile(np.arange(-128, 128), 2).astype(np.int8)
    # x / 16 in index units of 1 / SCALE, and entries of 1 / 32768 to steps of 1 / 256.
    got = integers(
        x, sampled(sigmoid), "int8", BN_MUL_CFG__BN_MUL_OPERAND=round(SCALE / 16),
        OUT_CVT_SHIFT__OUT_CVT_SHIFT=7, OUT_CVT_OFFSET__OUT_CVT_OFFSET=-128,
    )  # fmt: skip
    assert not isinstance(got, NpuFault)
    exact = np.clip(sigmoid(x / 16) * 256, 0, 255) - 128
    assert np.abs(got - exact).max() < 1


def test_a_lookup_behind_a_convolution() -> None:
    conv = Conv("int8", "int8", 5, 7, 32, 32, kernel=(3, 3), pads=(1, 1), out=(5, 7))
    rng = np.random.default_rng(6)
    tables = np.sort(rng.integers(-32768, 32768, (2, ENTRIES), np.int16), axis=None)
    tables = tables.reshape(2, ENTRIES)
    usual = lookup(
        OUT_CVT_SHIFT__CVT_TYPE=0, OUT_CVT_SHIFT__MINUS_EXP=0, OUT_CVT_SHIFT__OUT_CVT_SHIFT=8,
        BN_CFG__BN_BYPASS=1, EW_CFG__EW_OP_BYPASS=1, shift=6,
    )  # fmt: skip
    rig = Rig()
    rig.place(conv, rng)
    out = rig.outputs[0][1]
    assert rig.run(table_words(tables) + conv.words(**usual)).error is None
    plain = Conv(**{**vars(conv), "out_dtype": "int32", "output": 0x38000000})
    sums = rig.blank(*plain.spans()["output"]).view(np.int32)
    assert rig.run(plain.words(), 0x20000).error is None
    values = sums.reshape(8, 35, 4).transpose(1, 0, 2).reshape(35, 32).astype(np.int64)
    right = np.clip(shift_right(look_up(tables, values, 6, (0, 0, 0, 0)), 8), -128, 127)
    assert (np.abs(values) > 512 << 6).any()
    assert (np.abs(values) < 512 << 6).any()
    got = out.view(np.int8).reshape(2, 35, 16).transpose(1, 0, 2).reshape(35, 32)
    np.testing.assert_array_equal(got, right)


def test_integers_are_converted_as_without_a_lookup() -> None:
    x, tables = np.zeros(128, np.int8), np.zeros((2, ENTRIES), np.int16)
    flight = Flight("int8", "int8")
    rig = Rig()
    rig.add(flight.source, x)
    rig.blank(*flight.spans()["output"])
    fault = rig.run(table_words(tables) + flight.words(**lookup(OUT_CVT_SHIFT__MINUS_EXP=1))).error
    assert fault is not None
    assert (fault.kind, fault.field) == ("unsupported", "MINUS_EXP")
