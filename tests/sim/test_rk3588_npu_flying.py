# SPDX-License-Identifier: MIT
"""The DPU alone, on cubes in memory: copies, changes of format, operations on two tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.rk3588_streams import Flight, Rig
from sim.test_rk3588_npu_dpu import (
    BYTES,
    LEVELS,
    RESIDUAL,
    SIZES,
    Spans,
    elementwise,
    operand_fields,
    operand_spans,
    output,
    place_operands,
    random_bytes,
    simd,
    stage,
)

from npukit.sim.rk3588 import NpuFault

KINDS: dict[str, type[Any]] = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "fp16": np.float16,
    "fp32": np.float32,
}
OPERATIONS = {
    "max": {"EW_ALU_ALGO": 0, "EW_EQUAL_EN": 1},
    "min": {"EW_ALU_ALGO": 1, "EW_EQUAL_EN": 1},
    "add": {"EW_ALU_ALGO": 2},
    "minus": {"EW_ALU_ALGO": 4},
    "mul": {"EW_OP_TYPE": 1},
}


def place(rig: Rig, flight: Flight, rng: np.random.Generator) -> None:
    base, size = flight.spans()["source"]
    rig.add(base, random_bytes(rng, flight.dtype, size))
    rig.blank(*flight.spans()["output"])


@st.composite
def flights(draw: st.DrawFn) -> Flight:
    dtype = draw(st.sampled_from(["int8", "int16", "int32", "fp16"]))
    outputs = ["fp16", "fp32"] if dtype == "fp16" else ["int8", "int16", "int32"]
    return Flight(
        dtype=dtype,
        out_dtype=draw(st.sampled_from(outputs)),
        height=draw(st.integers(1, 4)),
        width=draw(st.integers(1, 6)),
        channels=draw(st.integers(1, 150)),
        gap=draw(st.integers(0, 3)),
        out_gap=draw(st.integers(0, 3)),
    )


@st.composite
def programs(draw: st.DrawFn) -> tuple[Flight, list[int], Spans]:
    """Any stages on a cube, the words, and the operands in memory."""
    flight = draw(flights())
    floats = flight.dtype == "fp16"
    brdma = draw(st.sampled_from([0, 1] if floats else [0, 1, 7]))
    dpu = draw(stage("BS", floats=floats, brdma=brdma))
    dpu |= draw(stage("BN", floats=floats, brdma=0))
    ew, dtype = draw(elementwise(floats=floats, rdma=True))
    channelwise = bool(dtype) and not ew["EW_CFG.EW_DATA_MODE"]
    dpu |= ew
    if not floats:
        dpu |= draw(output())
    fields = operand_fields(flight, dtype, brdma, combined=False, channelwise=channelwise)
    changes = {f"DPU__{name.replace('.', '__')}": value for name, value in dpu.items()}
    changes |= {f"DPU_RDMA__{name.replace('.', '__')}": value for name, value in fields.items()}
    return (
        flight,
        flight.words(**changes),
        operand_spans(flight, dtype, brdma, channelwise=channelwise),
    )


@settings(max_examples=150)
@given(program=programs(), level=st.sampled_from(LEVELS), seed=st.integers(0, 2**32 - 1))
def test_any_stages_agree_with_the_reference(
    program: tuple[Flight, list[int], Spans], level: str, seed: int
) -> None:
    flight, words, spans = program
    rig = Rig()
    rng = np.random.default_rng(seed)
    place(rig, flight, rng)
    place_operands(rig, spans, rng)
    with simd(level):
        completion = rig.run(words)
    assert completion.error is None, str(completion.error)
    assert completion.raw_status == 0x100
    rig.check(words)


def probe(dtype: str, operation: str, operand: Any) -> dict[str, int]:
    """The settings with which each operation was measured on an RK3588, for one row of atoms."""
    bypass = dtype == "int32" or (dtype == "fp16" and operation == "mul")
    ew = {
        "EW_BYPASS": 0,
        "EW_DATA_MODE": 1,
        "EDATA_SIZE": SIZES[dtype],
        "EW_RELU_BYPASS": 1,
        "EW_OP_SRC": 1,
        "EW_OP_CVT_BYPASS": int(bypass),
        **OPERATIONS[operation],
    }
    atoms = len(operand) * BYTES[dtype] // 16
    return {f"DPU__EW_CFG__{name}": value for name, value in ew.items()} | {
        "DPU__EW_CVT_SCALE_VALUE__EW_OP_CVT_SCALE": 1,
        "DPU_RDMA__RDMA_ERDMA_CFG__ERDMA_DISABLE": 0,
        "DPU_RDMA__RDMA_ERDMA_CFG__ERDMA_DATA_MODE": 1,
        "DPU_RDMA__RDMA_ERDMA_CFG__ERDMA_DATA_SIZE": SIZES[dtype],
        "DPU_RDMA__RDMA_EW_BASE_ADDR__EW_BASE_ADDR": RESIDUAL,
        "DPU_RDMA__RDMA_EW_SURF_STRIDE__EW_SURF_STRIDE": atoms,
    }


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "fp16"])
def test_operations_as_measured(dtype: str, operation: str) -> None:
    """Integers saturate; a product of int32 takes the lower half of the operand; fp16 is exact."""
    rng = np.random.default_rng(5)
    kind = KINDS[dtype]
    if dtype == "fp16":
        a, b = (rng.integers(-1000, 1001, (2, 1024)) / 8).astype(kind)
        wide, bounds = np.float64, None
    else:
        bounds = np.iinfo(kind)
        a, b = rng.integers(bounds.min, bounds.max, (2, 1024), kind, endpoint=True)
        wide = np.int64
    x, y = a.astype(wide), b.astype(wide)
    if operation == "mul" and dtype == "int32":
        y = b.astype(np.int16).astype(wide)
    functions = {"max": np.maximum, "min": np.minimum, "add": np.add, "minus": np.subtract,
                 "mul": np.multiply}  # fmt: skip
    right = functions[operation](x, y)
    if bounds is not None:
        right = np.clip(right, bounds.min, bounds.max)
    channels = 16 // BYTES[dtype]
    flight = Flight(dtype, dtype, 1, len(a) // channels, channels)
    rig = Rig()
    rig.add(flight.source, a)
    rig.add(RESIDUAL, b)
    out = rig.blank(*flight.spans()["output"])
    words = flight.words(**probe(dtype, operation, b))
    assert rig.run(words).error is None
    np.testing.assert_array_equal(out.view(kind), right.astype(kind))


DIVISION = {
    "DPU__EW_CFG__EW_ALU_ALGO": 3,
    "DPU__EW_CFG__EW_OP_CVT_BYPASS": 1,
    "DPU__OUT_CVT_SCALE__FP32TOFP16_EN": 0,
    "DPU_RDMA__RDMA_FEATURE_MODE_CFG__MRDMA_FP16TOFP32_EN": 0,
}


def divide(a: Any, b: Any, **changes: int) -> tuple[NpuFault | None, Any]:
    """The settings with which a division ran on an RK3588, for one row of atoms."""
    flight = Flight("fp16", "fp16", 1, len(a) // 8, 8)
    rig = Rig()
    rig.add(flight.source, a)
    rig.add(RESIDUAL, b)
    out = rig.blank(*flight.spans()["output"])
    words = flight.words(**(probe("fp16", "minus", b) | DIVISION | changes))
    return rig.run(words).error, out.view(np.float16)


def test_division() -> None:
    rng = np.random.default_rng(11)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    a, b = rng.permutation(every), rng.permutation(every)
    fault, got = divide(a, b)
    assert fault is None
    with np.errstate(all="ignore"):
        right = (a.astype(np.float64) / b.astype(np.float64)).astype(np.float16)
    # Rounded once, to nearest even; by 0 as IEEE 754 has it.
    np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("unsupported", "DPU__EW_CFG__EW_OP_CVT_BYPASS", 0),
        ("unsupported", "DPU__EW_CFG__EW_RELU_BYPASS", 0),
        ("unsupported", "DPU__BS_CFG__BS_BYPASS", 0),
        ("unsupported", "DPU__BN_CFG__BN_BYPASS", 0),
        ("unsupported", "DPU__DATA_FORMAT__OUT_PRECISION", 5),
        ("inconsistent", "DPU__OUT_CVT_SCALE__FP32TOFP16_EN", 1),
        ("inconsistent", "DPU_RDMA__RDMA_FEATURE_MODE_CFG__MRDMA_FP16TOFP32_EN", 1),
    ],
)
def test_other_divisions_are_refused(kind: str, name: str, value: int) -> None:
    fault, _ = divide(np.ones(64, np.float16), np.ones(64, np.float16), **{name: value})
    assert fault is not None
    assert fault.kind == kind
    assert f"{fault.block}.{fault.register}.{fault.field}" == name.replace("__", ".")


def test_integers_are_not_divided() -> None:
    rig = Rig()
    rig.add(0x10000000, np.ones(256, np.int8))
    rig.add(RESIDUAL, np.ones(256, np.int8))
    rig.blank(0x30000000, 256)
    words = Flight().words(**(probe("int8", "minus", np.ones(128, np.int8)) | {
        "DPU__EW_CFG__EW_ALU_ALGO": 3
    }))  # fmt: skip
    fault = rig.run(words).error
    assert fault is not None
    assert (fault.kind, fault.field, fault.value) == ("unsupported", "EW_ALU_ALGO", 3)


def test_lanes_behind_the_original_channels_become_zero() -> None:
    """Measured: with ORIG_CHANNEL 0 only the first lane of each atom is right."""
    flight = Flight("int32", "int32", 1, 8, 4)
    rig = Rig()
    place(rig, flight, np.random.default_rng(0))
    assert rig.run(flight.words(DPU__DATA_CUBE_CHANNEL__ORIG_CHANNEL=0)).error is None
    source, out = (data.view(np.int32).reshape(8, 4) for _, data in rig.memory.mappings[:2])
    np.testing.assert_array_equal(out[:, 0], source[:, 0])
    assert not out[:, 1:].any()


@pytest.mark.parametrize(("dtype", "value"), [
    ("int8", 0x80), ("int8", 0xFF85), ("int16", 0x8001), ("fp16", 0x3C00)
])  # fmt: skip
def test_extra_channels_are_offset_pend(dtype: str, value: int) -> None:
    flight = Flight(dtype, dtype, 3, 5, 96)
    rig = Rig()
    place(rig, flight, np.random.default_rng(3))
    words = flight.words(
        DPU__OFFSET_PEND__OFFSET_PEND=value, DPU__DATA_CUBE_CHANNEL__ORIG_CHANNEL=36
    )
    assert rig.run(words).error is None
    rig.check(words)
    lanes = 16 // BYTES[dtype]
    out = rig.outputs[0][1].view(f"u{BYTES[dtype]}").reshape(-1, 15, lanes)
    assert (out[-1] == value & (1 << 8 * BYTES[dtype]) - 1).all()


@pytest.mark.parametrize(
    ("flight", "value"),
    [(Flight("int8", "int8"), 0x180), (Flight("int8", "int32"), 1), (Flight(channels=24), 1)],
)
def test_other_values_of_extra_channels_are_refused(flight: Flight, value: int) -> None:
    rig = Rig()
    place(rig, flight, np.random.default_rng(3))
    fault = rig.run(flight.words(DPU__OFFSET_PEND__OFFSET_PEND=value)).error
    assert fault is not None
    assert (fault.kind, fault.field) == ("unsupported", "OFFSET_PEND")


def test_in_place() -> None:
    flight = Flight("int8", "int8", 3, 5, 48, output=0x10000000)
    rig = Rig()
    data = rig.add(flight.source, np.arange(-120, 120, dtype=np.int8).repeat(3))
    before = data.view(np.int8).copy()
    assert rig.run(flight.words(DPU__OUT_CVT_OFFSET__OUT_CVT_OFFSET=5)).error is None
    np.testing.assert_array_equal(data.view(np.int8), before + 5)
    shifted = Flight("int8", "int8", 3, 5, 48, output=0x10000010)
    rig.add(0x10000000 + len(data), np.zeros(64, np.uint8))
    fault = rig.run(shifted.words(), 0x4000).error
    assert fault is not None
    assert fault.text == "the output overlaps the input"


FAULTS = [
    ("unsupported", "DPU.FEATURE_MODE_CFG.FLYING_MODE", 0),
    ("unsupported", "DPU.FEATURE_MODE_CFG.CONV_MODE", 3),
    ("unsupported", "DPU.DATA_FORMAT.IN_PRECISION", 5),
    ("unsupported", "DPU.DATA_FORMAT.PROC_PRECISION", 4),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.FLYING_MODE", 0),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.MRDMA_DISABLE", 1),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.MRDMA_FP16TOFP32_EN", 1),
    ("unsupported", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.COMB_USE", 5),
    ("inconsistent", "DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR", 0x10000004),
    ("access", "DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR", 0x10000100),
    ("inconsistent", "DPU.SURFACE_ADD.SURF_ADD", 9),
    ("inconsistent", "DPU.BS_OW_CFG.SIZE_E_0", 1),
]


@pytest.mark.parametrize(("kind", "name", "value"), FAULTS)
def test_faults(kind: str, name: str, value: int) -> None:
    flight = Flight()
    rig = Rig()
    place(rig, flight, np.random.default_rng(0))
    changes = {name.replace(".", "__"): value}
    if value == 5 and name.endswith("IN_PRECISION"):
        changes["DPU__DATA_FORMAT__PROC_PRECISION"] = 5
        changes["DPU_RDMA__RDMA_FEATURE_MODE_CFG__IN_PRECISION"] = 5
        changes["DPU_RDMA__RDMA_FEATURE_MODE_CFG__PROC_PRECISION"] = 5
    fault = rig.run(flight.words(**changes)).error
    assert fault is not None
    assert fault.kind == kind
    if "SIZE_E" not in name:
        assert f"{fault.block}.{fault.register}.{fault.field}" == name


def test_work_is_limited() -> None:
    flight = Flight(height=100, width=100)
    rig = Rig()
    place(rig, flight, np.random.default_rng(0))
    fault = rig.run(flight.words(), work_limit=1000).error
    assert fault is not None
    assert fault.kind == "timed out"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_work_for_several_threads(threads: int) -> None:
    flight = Flight("int16", "int8", 50, 60, 40)
    rig = Rig(threads=threads)
    place(rig, flight, np.random.default_rng(1))
    words = flight.words(DPU__OUT_CVT_SHIFT__OUT_CVT_SHIFT=7)
    assert rig.run(words).error is None
    rig.check(words)
