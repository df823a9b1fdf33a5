# SPDX-License-Identifier: MIT
"""What the simulated core refuses, and how it says so; and that nothing crashes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim.rk3588_streams import FILL, Conv, Flight, Pool, Rig, fault_of, operands, word
from sim.test_rk3588_npu_lut import lookup
from support import SHARED

from npukit.programs.rk3588.registers import (
    BLOCKS,
    CNA,
    CORE,
    DPU,
    DPU_RDMA,
    PPU,
    PPU_RDMA,
    REGISTERS,
    Block,
    Field,
    Register,
)

ODD = Conv(
    "int8", "int32", 9, 8, 48, 40, (3, 2), (2, 3), (1, 1), (5, 3), pad_value=5,
    row_pitch=9, surface_pitch=85, out_line_pitch=4, out_surface_pitch=21, written=64,
)  # fmt: skip
"""A convolution in which hardly two sizes are equal."""


# ---------------------------------------------------------------- unsupported

UNSUPPORTED = [
    ("CNA.CONV_CON1.CONV_MODE", 1),
    ("CNA.CONV_CON1.ARGB_IN", 12),
    ("CNA.CONV_CON1.ARGB_IN", 1),
    ("CNA.CONV_CON1.NONALIGN_DMA", 1),
    *(("CNA.CONV_CON1.IN_PRECISION", value) for value in (3, 4, 5, 6, 7)),
    *(("CNA.CONV_CON1.PROC_PRECISION", value) for value in (1, 2, 3, 6, 7)),
    ("CNA.CONV_CON2.CSC_WO_EN", 1),
    ("CNA.CONV_CON2.CSC_DO_EN", 1),
    ("CNA.CONV_CON2.CMD_FIFO_SRST", 1),
    ("CNA.CONV_CON2.UNDOC_CORE_VARIANT", 0x30),
    ("CNA.CONV_CON3.NN_MODE", 1),
    ("CNA.CONV_CON3.DECONV_X_STRIDE", 1),
    ("CNA.CONV_CON3.DECONV_Y_STRIDE", 1),
    ("CNA.DATA_SIZE3.SURF_MODE", 1),
    ("CNA.CBUF_CON0.FC_DATA_BANK", 1),
    ("CNA.CVT_CON0.DATA_SIGN", 0),
    ("CNA.CVT_CON0.CVT_BYPASS", 0),
    ("CNA.CVT_CON5.PER_CHANNEL_CVT_EN", 1),
    ("CNA.FC_CON0.FC_SKIP_EN", 1),
    ("CNA.FC_CON1.DATA_OFFSET", 1),
    ("CNA.FC_CON2.WEIGHT_OFFSET", 1),
    ("CNA.DMA_CON0.OV4K_BYPASS", 1),
    ("CNA.DCOMP_CTRL.WT_DEC_BYPASS", 1),
    ("CNA.DCOMP_CTRL.DECOMP_CONTROL", 1),
    ("CNA.DCOMP_REGNUM.DCOMP_REGNUM", 1),
    ("CNA.DCOMP_AMOUNT0.DCOMP_AMOUNT0", 1),
    ("CNA.DCOMP_AMOUNT15.DCOMP_AMOUNT15", 1),
    ("CNA.PAD_CON1.PAD_VALUE", 0x10000),
    ("CNA.PAD_CON1.PAD_VALUE", 0x0102),
    ("CORE.MISC_CFG.PROC_PRECISION", 2),
    ("CORE.UNDOC_3030.VALUE", 1),
    ("DPU.FEATURE_MODE_CFG.COMB_USE", 1),
    ("DPU.FEATURE_MODE_CFG.TP_EN", 1),
    ("DPU.FEATURE_MODE_CFG.RGP_TYPE", 1),
    ("DPU.FEATURE_MODE_CFG.NONALIGN", 1),
    ("DPU.FEATURE_MODE_CFG.SURF_LEN", 1),
    ("DPU.FEATURE_MODE_CFG.CONV_MODE", 3),
    ("DPU.FEATURE_MODE_CFG.OUTPUT_MODE", 1),
    ("DPU.FEATURE_MODE_CFG.FLYING_MODE", 1),
    *(("DPU.DATA_FORMAT.OUT_PRECISION", value) for value in (2, 3, 5, 6, 7)),
    ("DPU.DATA_FORMAT.IN_PRECISION", 2),
    ("DPU.DATA_FORMAT.PROC_PRECISION", 1),
    ("DPU.DATA_FORMAT.MC_SURF_OUT", 1),
    ("DPU.OFFSET_PEND.OFFSET_PEND", 1),  # int32
    ("DPU.DATA_CUBE_HEIGHT.MINMAX_CTL", 1),
    ("DPU.BS_OW_CFG.RGP_CNTER", 1),
    ("DPU.BS_OW_CFG.TP_ORG_EN", 1),
    ("DPU.WDMA_SIZE_0.TP_PRECISION", 1),
    ("DPU.WDMA_SIZE_0.SIZE_C_WDMA", 1),
    ("DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT", 64),
    ("DPU.OUT_CVT_SHIFT.MINUS_EXP", 1),
    ("DPU.UNDOC_40C4.VALUE", 1),
]


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_unsupported_modes(name: str, value: int) -> None:
    fault = fault_of(ODD, **{name.replace(".", "__"): value})
    assert fault.kind == "unsupported"
    assert f"{fault.block}.{fault.register}.{fault.field}" == name
    assert fault.value == value
    shown = hex(value) if value > 0xFFFF else str(value)
    assert str(fault).startswith(f"unsupported: {name} = {shown}: ")
    assert len(fault.text) > 3


FUSED = {
    "DPU.BS_CFG.BS_BYPASS": 0,
    "DPU.BS_CFG.BS_ALU_ALGO": 2,
    "DPU.BS_CFG.BS_ALU_SRC": 1,
    "DPU.BS_CFG.BS_ALU_BYPASS": 0,
    "DPU.BS_CFG.BS_MUL_BYPASS": 0,
    "DPU.BS_CFG.BS_RELU_BYPASS": 1,
    "DPU.BS_MUL_CFG.BS_MUL_SRC": 1,
    "DPU.BS_MUL_CFG.BS_MUL_SHIFT_VALUE": 3,
    "DPU.DATA_FORMAT.BS_MUL_SHIFT_VALUE_NEG": 3,
    "DPU.BN_CFG.BN_BYPASS": 0,
    "DPU.BN_CFG.BN_ALU_ALGO": 4,
    "DPU.BN_CFG.BN_ALU_BYPASS": 0,
    "DPU.BN_CFG.BN_MUL_BYPASS": 0,
    "DPU.BN_CFG.BN_MUL_PRELU": 1,
    "DPU.BN_CFG.BN_RELU_BYPASS": 1,
    "DPU.BN_ALU_CFG.BN_ALU_OPERAND": 5000,
    "DPU.BN_MUL_CFG.BN_MUL_OPERAND": 3,
    "DPU.EW_CFG.EW_BYPASS": 0,
    "DPU.EW_CFG.EW_CVT_TYPE": 1,
    "DPU.EW_CFG.EW_DATA_MODE": 1,
    "DPU.EW_CFG.EDATA_SIZE": 1,
    "DPU.EW_CFG.EW_OP_BYPASS": 0,
    "DPU.EW_CFG.EW_ALU_ALGO": 2,
    "DPU.EW_CFG.EW_OP_SRC": 1,
    "DPU.EW_CFG.EW_RELU_BYPASS": 0,
    "DPU.EW_CFG.EW_RELUX_EN": 1,
    "DPU.EW_RELUX_CMP_VALUE.EW_RELUX_CMP_DAT": 400000,
    "DPU.EW_CVT_OFFSET_VALUE.EW_OP_CVT_OFFSET": 77,
    "DPU.EW_CVT_SCALE_VALUE.EW_OP_CVT_SCALE": 200,
    "DPU.EW_CVT_SCALE_VALUE.EW_OP_CVT_SHIFT": 0,
    "DPU.BS_OW_CFG.OD_BYPASS": 0,
    "DPU.BS_OW_OP.OW_OP": -9,
    "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": 20000,
    "DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT": 26,
    "DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET": -60,
    "DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE": 7,
    "DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR": 0x38000000,
    "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DISABLE": 0,
    "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DATA_MODE": 1,
    "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DATA_SIZE": 1,
    "DPU_RDMA.RDMA_EW_BASE_ADDR.EW_BASE_ADDR": 0x50000000,
    "DPU_RDMA.RDMA_EW_SURF_STRIDE.EW_SURF_STRIDE": 17,
    "DPU_RDMA.RDMA_EW_SURF_NOTCH.EW_SURF_NOTCH": 2,
}
"""Every stage of the DPU at work behind ``ODD``, with operands from memory; see ``fused``."""

FUSED_CONV = replace(ODD, out_dtype="int8")


def fused(conv: Conv = FUSED_CONV, **changes: int) -> list[int]:
    fields = {name.replace(".", "__"): value for name, value in FUSED.items()} | changes
    return conv.words(enable=0x1D, **fields)


def channel_operands(rng: np.random.Generator, groups: int) -> npt.NDArray[np.uint8]:
    """What BRDMA reads for 8 channels each: an addend, a factor for window sums, a factor."""
    data = np.zeros((groups, 64), np.uint8)
    data[:, :32] = rng.integers(-20000, 20000, (groups, 8), np.int32).view(np.uint8)
    data[:, 32:] = rng.integers(-64, 64, (groups, 16), np.int16).view(np.uint8)
    return data.reshape(-1)


def place_fused(rig: Rig) -> None:
    rng = np.random.default_rng(0)
    rig.place(FUSED_CONV, rng)
    rig.add(0x38000000, channel_operands(rng, 64))
    rig.add(0x50000000, rng.integers(-128, 128, 1 << 14, np.int8))


def test_every_stage_at_once() -> None:
    rig = Rig()
    place_fused(rig)
    words = fused()
    assert rig.run(words).error is None
    rig.check(words)
    assert len(np.unique(rig.memory.mappings[2][1])) > 50


DPU_FAULTS = [
    ("unsupported", "DPU.BS_CFG.BS_ALU_ALGO", 0),
    ("unsupported", "DPU.BN_CFG.BN_ALU_ALGO", 1),
    ("unsupported", "DPU.BN_CFG.BN_ALU_SRC", 1),
    ("unsupported", "DPU.BN_MUL_CFG.BN_MUL_SRC", 1),
    ("unsupported", "DPU.BN_MUL_CFG.BN_MUL_OPERAND", -1),
    ("unsupported", "DPU.BS_MUL_CFG.BS_TRUNCATE_SRC", 1),
    *(("unsupported", "DPU.EW_CFG.EW_ALU_ALGO", value) for value in (3, 5, 6, 7, 8, 15)),
    ("unsupported", "DPU.EW_CFG.EW_EQUAL_EN", 1),
    ("unsupported", "DPU.EW_CFG.EW_BINARY_EN", 1),
    ("unsupported", "DPU.EW_CVT_SCALE_VALUE.EW_TRUNCATE", 1),
    ("unsupported", "DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE", 3),
    ("inconsistent", "DPU.BS_MUL_CFG.BS_MUL_SRC", 1),
    ("unsupported", "DPU_RDMA.RDMA_NRDMA_CFG.NRDMA_DATA_USE", 1),
    ("unsupported", "DPU_RDMA.RDMA_NRDMA_CFG.NRDMA_DATA_USE", 4),
    ("unsupported", "DPU_RDMA.RDMA_SRC_DMA_CFG.LINE_NOTCH_ADDR", 1),
    ("unsupported", "DPU_RDMA.RDMA_SRC_DMA_CFG.UNPOOLING_EN", 1),
    ("unsupported", "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.EW_LINE_NOTCH_ADDR", 1),
    ("unsupported", "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_SURF_MODE", 1),
    ("unsupported", "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_NONALIGN", 1),
    ("unsupported", "DPU_RDMA.RDMA_ERDMA_CFG.OV4K_BYPASS", 1),
    ("unsupported", "DPU_RDMA.RDMA_EW_SURF_STRIDE.EW_SURF_STRIDE", 18),
    *(("unsupported", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.COMB_USE", n) for n in (1, 2, 3, 4, 6, 7)),
    ("inconsistent", "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DISABLE", 1),
    ("inconsistent", "DPU.EW_CFG.EDATA_SIZE", 2),
    ("inconsistent", "DPU.EW_CFG.EW_DATA_MODE", 0),
    ("inconsistent", "DPU_RDMA.RDMA_DATA_CUBE_WIDTH.WIDTH", 3),
    ("inconsistent", "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT", 3),
    ("inconsistent", "DPU_RDMA.RDMA_DATA_CUBE_CHANNEL.CHANNEL", 62),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.IN_PRECISION", 2),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.PROC_PRECISION", 2),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.CONV_MODE", 3),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.FLYING_MODE", 1),
    ("inconsistent", "DPU_RDMA.RDMA_FEATURE_MODE_CFG.MRDMA_DISABLE", 0),
    ("inconsistent", "DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0x38000004),
    ("inconsistent", "DPU_RDMA.RDMA_EW_BASE_ADDR.EW_BASE_ADDR", 0x50000008),
    ("access", "DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0x38000F00),
    ("access", "DPU_RDMA.RDMA_EW_BASE_ADDR.EW_BASE_ADDR", 0x50003F00),
    ("inconsistent", "DPU.DST_BASE_ADDR.DST_BASE_ADDR", 0x50000000),
    ("inconsistent", "DPU.DST_BASE_ADDR.DST_BASE_ADDR", 0x38000000),
]


@pytest.mark.parametrize(("kind", "name", "value"), DPU_FAULTS)
def test_faults_of_the_dpu(kind: str, name: str, value: int) -> None:
    rig = Rig()
    place_fused(rig)
    changes = {name.replace(".", "__"): value}
    if name.endswith("BS_MUL_SRC"):
        changes["DPU_RDMA__RDMA_BRDMA_CFG__BRDMA_DATA_USE"] = 1
    fault = rig.run(fused(**changes)).error
    assert fault is not None
    assert (fault.kind, f"{fault.block}.{fault.register}.{fault.field}") == (kind, name)


CHANNELWISE = {
    "DPU__EW_CFG__EW_DATA_MODE": 0,
    "DPU_RDMA__RDMA_ERDMA_CFG__ERDMA_DATA_MODE": 0,
    "DPU_RDMA__RDMA_EW_SURF_STRIDE__EW_SURF_STRIDE": 1,
    "DPU_RDMA__RDMA_EW_SURF_NOTCH__EW_SURF_NOTCH": 0,
}


@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        ("inconsistent", "EW_SURF_STRIDE", {"DPU_RDMA__RDMA_EW_SURF_STRIDE__EW_SURF_STRIDE": 2}),
        ("inconsistent", "EW_SURF_NOTCH", {"DPU_RDMA__RDMA_EW_SURF_NOTCH__EW_SURF_NOTCH": 1}),
        ("access", "EW_BASE_ADDR", {"DPU_RDMA__RDMA_EW_BASE_ADDR__EW_BASE_ADDR": 0x50003FF0}),
        ("inconsistent", "DST_BASE_ADDR", {"DPU__DST_BASE_ADDR__DST_BASE_ADDR": 0x50000000}),
        (
            "unsupported",
            "COMB_USE",
            {
                "DPU_RDMA__RDMA_FEATURE_MODE_CFG__COMB_USE": 5,
                "DPU_RDMA__RDMA_FEATURE_MODE_CFG__MRDMA_DISABLE": 0,
            },
        ),
        (
            "unsupported",
            "ERDMA_DATA_MODE",
            {"DPU__EW_CFG__EW_DATA_MODE": 2, "DPU_RDMA__RDMA_ERDMA_CFG__ERDMA_DATA_MODE": 2},
        ),
    ],
)
def test_faults_of_channels_operands(kind: str, field: str, changes: dict[str, int]) -> None:
    rig = Rig()
    place_fused(rig)
    fault = rig.run(fused(**(CHANNELWISE | changes))).error
    assert fault is not None
    assert (fault.kind, fault.field) == (kind, field)


def test_operands_from_outside_need_dpu_rdma() -> None:
    for name in ("BS_CFG.BS_ALU_SRC", "BS_OW_CFG.OW_SRC", "EW_CFG.EW_OP_SRC"):
        stage = name[:2]
        changes = {
            f"DPU__{stage}_CFG__{stage}_BYPASS": 0,
            "DPU__BS_CFG__BS_ALU_BYPASS": 0,
            "DPU__BS_CFG__BS_ALU_ALGO": 2,
            "DPU__BS_OW_CFG__OD_BYPASS": 0,
            "DPU__EW_CFG__EW_OP_BYPASS": 0,
            f"DPU__{name.replace('.', '__')}": 1,
        }
        if stage == "BS" and "OW" in name:
            changes["DPU__BS_CFG__BS_BYPASS"] = 1
        fault = fault_of(ODD, **changes)
        assert (fault.kind, fault.field) == ("inconsistent", name.partition(".")[2])


def test_operands_that_nothing_takes() -> None:
    for changes, field in (
        ({"DPU__BS_CFG__BS_BYPASS": 1}, "BRDMA_DATA_USE"),
        ({"DPU__EW_CFG__EW_BYPASS": 1}, "ERDMA_DISABLE"),
    ):
        rig = Rig()
        place_fused(rig)
        fault = rig.run(fused(**changes)).error
        assert fault is not None
        assert fault.field == field


def test_an_operand_from_registers_has_to_be_one() -> None:
    changes = {"DPU__EW_CFG__EW_BYPASS": 0, "DPU__EW_CFG__EW_OP_CVT_BYPASS": 1}
    fault = fault_of(ODD, **changes, DPU__EW_OP_VALUE_5__EW_OPERAND_5=1)
    assert (fault.kind, fault.field) == ("unsupported", "EW_OPERAND_5")
    fault = fault_of(ODD, DPU__EW_CFG__EW_BYPASS=0)
    assert (fault.kind, fault.field) == ("unsupported", "EW_OP_CVT_BYPASS")


def test_sums_of_a_depthwise_convolution_cannot_be_written() -> None:
    words = Conv(out_dtype="int16", channels=64, kernels=64, depthwise=True)
    fault = fault_of(words, DPU__DATA_FORMAT__OUT_PRECISION=4)
    assert (fault.kind, fault.field) == ("unsupported", "OUT_PRECISION")


WINDOWS = {"DPU__BS_OW_CFG__OD_BYPASS": 0, "DPU__BS_OW_OP__OW_OP": 3}


@pytest.mark.parametrize(
    ("conv", "field", "changes"),
    [
        (Conv("fp16", "fp16"), "CLIP_TRUNCATE", {}),
        (Conv("int16"), "OD_BYPASS", WINDOWS | {"CORE__CLIP_TRUNCATE__CLIP_TRUNCATE": 0}),
    ],
    ids=["fp16", "window sums of int16"],
)
def test_sums_that_cannot_be_truncated(conv: Conv, field: str, changes: dict[str, int]) -> None:
    fault = fault_of(conv, **{"CORE__CLIP_TRUNCATE__CLIP_TRUNCATE": 1, **changes})
    assert (fault.kind, fault.field) == ("unsupported", field)


@pytest.mark.parametrize("value", [4, 0, 1])
def test_unsupported_output_of_halves(value: int) -> None:
    fault = fault_of(Conv("fp16", "fp32"), DPU__DATA_FORMAT__OUT_PRECISION=value)
    assert (fault.kind, fault.field, fault.value) == ("unsupported", "OUT_PRECISION", value)


def test_unsupported_words() -> None:
    words = ODD.words()
    for extra, register in (
        (0x0101 << 48 | 1 << 16 | 0x0010, "BASE_ADDRESS"),  # slave mode
        (0x0101 << 48 | 0x300 << 16 | 0x0020, "INTERRUPT_MASK"),
        (0x0101 << 48 | 1 << 16 | 0x0008, "OPERATION_ENABLE"),
        (word(CNA.OPERATION_ENABLE, 1), "OPERATION_ENABLE"),
        (word(DPU.OPERATION_ENABLE, 1), "OPERATION_ENABLE"),
    ):
        rig = Rig()
        fault = rig.run([extra, *words]).error
        assert fault is not None
        assert (fault.kind, fault.register, fault.iova) == ("unsupported", register, 0x1000)


# ---------------------------------------------------------------- illegal


def test_every_reserved_bit_is_illegal() -> None:
    rig = Rig()
    for block in BLOCKS:
        if not block.target:
            continue
        for register in block.registers():
            for position in range(32):
                if register.mask >> position & 1:
                    continue
                words = [word(register, 1 << position), *ODD.words()]
                rig.load(words)
                fault = rig.npu.run(0x1000, len(words)).error
                rig.npu.unmap(0x1000)
                assert fault is not None
                assert (fault.kind, fault.block) == ("illegal", block.__name__)
                assert (fault.register, fault.value) == (register.name, 1 << position)
                assert fault.iova == 0x1000


def test_registers_that_do_not_exist() -> None:
    rig = Rig()
    for offset in (0x0038, 0x1002, 0x1018, 0x11FC, 0x1FFC, 0x2000, 0x3034, 0x40B0, 0x8000, 0xF008):
        target = 0x0100 << (offset >> 12) & 0xFF00 | 1
        rig.load([target << 48 | offset, *ODD.words()])
        fault = rig.npu.run(0x1000, 100).error
        rig.npu.unmap(0x1000)
        assert fault is not None
        assert (fault.kind, fault.register, fault.iova) == ("illegal", None, 0x1000)
        assert f"register {offset:#06x}" in fault.text


@pytest.mark.parametrize(
    "target", [0x0000, 0x0001, 0x0101, 0x0200, 0x0401, 0x0801, 0x1001, 0x0301, 0x8001, 0xFFFF]
)
def test_a_target_has_to_be_that_of_the_block(target: int) -> None:
    fault = Rig().run([word(CNA.CONV_CON3, 9, target), *ODD.words()]).error
    assert fault is not None
    assert (fault.kind, fault.block, fault.register) == ("illegal", "CNA", "CONV_CON3")
    assert f"target {target:#06x}" in fault.text


def test_read_only_registers() -> None:
    for extra, field in (
        (word(DPU.S_STATUS, 0), None),
        (word(DPU.S_POINTER, 0x1000E), "EXECUTER"),
    ):
        fault = Rig().run([extra, *ODD.words()]).error
        assert fault is not None
        assert (fault.kind, fault.field, fault.text) == ("illegal", field, "is read-only")


# ---------------------------------------------------------------- inconsistent

INCONSISTENT = [
    ("CNA.DATA_SIZE0.DATAIN_WIDTH", 0),
    ("CNA.DATA_SIZE0.DATAIN_HEIGHT", 0),
    ("CNA.DATA_SIZE1.DATAIN_CHANNEL", 0),
    ("CNA.DATA_SIZE1.DATAIN_CHANNEL", 40),
    ("CNA.CONV_CON3.CONV_X_STRIDE", 0),
    ("CNA.CONV_CON3.CONV_Y_STRIDE", 0),
    ("CNA.DATA_SIZE2.DATAOUT_WIDTH", 4),
    ("CNA.DATA_SIZE3.DATAOUT_ATOMICS", 16),
    ("CNA.WEIGHT_SIZE0.WEIGHT_BYTES", 40 * 288 + 1),
    ("CNA.WEIGHT_SIZE1.WEIGHT_BYTES_PER_KERNEL", 287),
    ("CNA.WEIGHT_SIZE2.WEIGHT_WIDTH", 0),
    ("CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT", 0),
    ("CNA.WEIGHT_SIZE2.WEIGHT_KERNELS", 0),
    ("CNA.CBUF_CON0.DATA_BANK", 0),
    ("CNA.CBUF_CON0.WEIGHT_BANK", 0),
    ("CNA.CBUF_CON0.WEIGHT_BANK", 12),
    ("CNA.CBUF_CON1.DATA_ENTRIES", 5),
    ("CNA.PAD_CON0.PAD_LEFT", 2),
    ("CNA.PAD_CON0.PAD_TOP", 3),
    ("CNA.DMA_CON1.LINE_STRIDE", 37),
    ("CNA.FC_DATA_SIZE0.DMA_WIDTH", 9),
    ("CNA.FC_DATA_SIZE0.DMA_HEIGHT", 8),
    ("CNA.FC_DATA_SIZE1.DMA_CHANNEL", 47),
    ("CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR", 0x10000008),
    ("CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0", 0x20000004),
    ("CORE.MISC_CFG.DW_EN", 1),
    ("CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT", 5),
    ("CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH", 3),
    ("CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL", 62),
    ("DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_1", 2),
    ("DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL", 64),
    ("DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL", 40),
    ("DPU.BS_OW_CFG.OW_SRC", 1),
    ("DPU.BS_OW_CFG.SIZE_E_0", 3),
    ("DPU.BS_OW_CFG.SIZE_E_1", 3),
    ("DPU.BS_OW_CFG.SIZE_E_2", 3),
    ("DPU.WDMA_SIZE_0.CHANNEL_WDMA", 60),
    ("DPU.WDMA_SIZE_1.HEIGHT_WDMA", 3),
    ("DPU.WDMA_SIZE_1.WIDTH_WDMA", 3),
    ("DPU.OUT_CVT_SCALE.FP32TOFP16_EN", 1),
    ("DPU.SURFACE_ADD.SURF_ADD", 21 * 8 + 1),
    ("DPU.DST_BASE_ADDR.DST_BASE_ADDR", 0x30000008),
]


@pytest.mark.parametrize(("name", "value"), INCONSISTENT)
def test_registers_that_contradict_others(name: str, value: int) -> None:
    fault = fault_of(ODD, **{name.replace(".", "__"): value})
    assert fault.kind == "inconsistent"
    assert f"{fault.block}.{fault.register}.{fault.field}" == name
    assert fault.value == value


def test_sizes_that_another_register_gives_away() -> None:
    """Fields where the contradiction shows at a register that is derived from them."""
    for name, value, found in (
        ("DPU.DATA_CUBE_WIDTH.WIDTH", 3, "WIDTH_WDMA"),
        ("DPU.DATA_CUBE_HEIGHT.HEIGHT", 3, "HEIGHT_WDMA"),
        ("DPU.DATA_CUBE_CHANNEL.CHANNEL", 31, "CHANNEL_WDMA"),
        ("DPU.DST_SURF_STRIDE.DST_SURF_STRIDE", 22, "SURF_ADD"),
        ("DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0", 0, "NOTCH_ADDR_1"),
        ("CNA.DATA_SIZE1.DATAIN_CHANNEL", 64, "DMA_CHANNEL"),
        ("CNA.WEIGHT_SIZE2.WEIGHT_KERNELS", 41, "WEIGHT_BYTES"),
        ("CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT", 4, "WEIGHT_BYTES_PER_KERNEL"),
    ):
        fault = fault_of(ODD, **{name.replace(".", "__"): value})
        assert (fault.kind, fault.field) == ("inconsistent", found)


def test_windows_have_to_touch_the_input() -> None:
    for conv, field in (
        (Conv(width=4, out=(4, 5)), "DATAOUT_WIDTH"),
        (Conv(height=4, out=(5, 4)), "HEIGHT"),
        (Conv(kernel=(3, 3), pads=(2, 2), out=(7, 4)), "HEIGHT"),
        (Conv(pads=(0, 1)), "PAD_LEFT"),
        (Conv(pads=(1, 0)), "PAD_TOP"),
    ):
        assert fault_of(conv).field == field
    assert Conv(kernel=(3, 3), pads=(2, 2), out=(6, 6)).words()


def test_more_kernels_than_channels_are_written() -> None:
    conv = Conv(kernels=64, written=32)
    fault = fault_of(conv, DPU__DATA_CUBE_CHANNEL__ORIG_CHANNEL=31)
    assert (fault.kind, fault.field) == ("inconsistent", "WEIGHT_KERNELS")


def test_room_in_the_banks() -> None:
    # Three rows of 16 KiB do not fit one bank, nor does a kernel of 36 KiB.
    wide = Conv(height=3, width=512, channels=32, kernel=(3, 1), out=(1, 512), data_banks=1)
    fault = fault_of(wide)
    assert (fault.kind, fault.field) == ("inconsistent", "DATA_BANK")
    deep = Conv(height=3, width=3, channels=4096, kernel=(3, 3), out=(1, 1), weight_banks=1)
    fault = fault_of(deep)
    assert (fault.kind, fault.field) == ("inconsistent", "WEIGHT_BANK")


# ---------------------------------------------------------------- nothing is ignored in silence

WITHOUT_EFFECT = {
    # Speed, power, buses.
    "CNA.CONV_CON2": {"FEATURE_GRAINS", "KERNEL_GROUP"},
    "CNA.DMA_CON0": {"WEIGHT_BURST_LEN", "DATA_BURST_LEN"},
    "CNA.CLK_GATE": None,
    "CORE.MAC_GATING": None,
    "CORE.MISC_CFG": {"SOFT_GATING", "QD_EN"},
    "DPU.FEATURE_MODE_CFG": {"BURST_LEN"},
    # Known programs set values that agree with nothing else.
    "CNA.DATA_SIZE1": {"DATAIN_CHANNEL_REAL"},
    "DPU.DATA_FORMAT": {
        "EW_TRUNCATE_NEG",
        "BN_MUL_SHIFT_VALUE_NEG",
        "BS_MUL_SHIFT_VALUE_NEG",
    },
    "DPU.BS_OW_CFG": {"OD_BYPASS"},  # the operand is 0
    "CORE.CLIP_TRUNCATE": {"ROUND_TYPE"},  # nothing is shifted
    "DPU.OUT_CVT_SHIFT": {"CVT_ROUND", "CVT_TYPE"},  # nor added
    "CNA.CBUF_CON1": {"DATA_ENTRIES"},
    # How much of the CBUF is given away matters to a later reuse.
    "CNA.CBUF_CON0": {"WEIGHT_BANK"},
    # Stages that are bypassed.
    "CNA.CVT_CON0": {
        *(f"CVT_TRUNCATE_{i}" for i in range(4)),
        "ROUND_TYPE",
        "CVT_TYPE",
    },
    **{f"CNA.CVT_CON{i}": None for i in (1, 2, 3, 4)},
    "CNA.FC_CON0": {"FC_SKIP_DATA"},
    "DPU.BS_CFG": None,
    "DPU.BS_ALU_CFG": None,
    "DPU.BS_MUL_CFG": None,
    "DPU.BS_RELUX_CMP_VALUE": None,
    "DPU.BS_OW_OP": None,
    "DPU.BN_CFG": None,
    "DPU.BN_ALU_CFG": None,
    "DPU.BN_MUL_CFG": None,
    "DPU.BN_RELUX_CMP_VALUE": None,
    "DPU.EW_CFG": None,
    "DPU.EW_CVT_OFFSET_VALUE": None,
    "DPU.EW_CVT_SCALE_VALUE": None,
    "DPU.EW_RELUX_CMP_VALUE": None,
    **{f"DPU.EW_OP_VALUE_{i}": None for i in range(8)},
    "DPU.LUT_ACCESS_CFG": None,
    **{
        f"DPU.LUT_{name}": None
        for name in ("ACCESS_DATA", "CFG", "INFO", "LE_START", "LE_END", "LO_START", "LO_END")
    },
    **{
        f"DPU.LUT_{table}_SLOPE_{kind}": None
        for table in ("LE", "LO")
        for kind in ("SCALE", "SHIFT")
    },
}
"""Fields (None: all of the register) that may hold anything, and why."""


FUSED_WITHOUT_EFFECT = {
    "DPU.BS_ALU_CFG": None,  # from memory
    "DPU.BS_MUL_CFG": {"BS_MUL_OPERAND"},
    "DPU.BN_MUL_CFG": {"BN_MUL_SHIFT_VALUE"},  # only negative products arise
    "DPU.BS_CFG": {"BS_RELUX_EN"},  # without RELU
    "DPU.BN_CFG": {"BN_RELUX_EN"},
    "DPU.BS_RELUX_CMP_VALUE": None,
    "DPU.BN_RELUX_CMP_VALUE": None,
    "DPU.DATA_FORMAT": {"EW_TRUNCATE_NEG"},  # no product
    # One more or less does not show in the result.
    "DPU.BN_ALU_CFG": None,
    "DPU.EW_CVT_OFFSET_VALUE": None,
    "DPU.EW_RELUX_CMP_VALUE": None,
    "DPU.FEATURE_MODE_CFG": {"BURST_LEN"},
    **{name: None for name in WITHOUT_EFFECT if "LUT" in name},
    **{f"DPU.EW_OP_VALUE_{i}": None for i in range(8)},  # operands come from memory
    "DPU.EW_CFG": {"EW_MUL_PRELU", "EW_CVT_ROUND"},
    "DPU.OUT_CVT_SHIFT": {"CVT_ROUND"},  # no value lies at a tie
    # Speed and buses; what is read is decided by other fields.
    "DPU_RDMA.RDMA_FEATURE_MODE_CFG": {"BURST_LEN", "MRDMA_FP16TOFP32_EN"},
    "DPU_RDMA.RDMA_SRC_BASE_ADDR": None,  # MRDMA is disabled
    "DPU_RDMA.RDMA_SURF_NOTCH": None,
    "DPU_RDMA.RDMA_BN_BASE_ADDR": None,  # NRDMA reads nothing
    "DPU_RDMA.RDMA_WEIGHT": None,
    # Of unpooling, which is off.
    "DPU_RDMA.RDMA_SRC_DMA_CFG": {
        "POOLING_METHOD",
        "KERNEL_STRIDE_HEIGHT",
        "KERNEL_STRIDE_WIDTH",
        "KERNEL_HEIGHT",
        "KERNEL_WIDTH",
    },
    "DPU_RDMA.RDMA_PAD_CFG": None,
}
"""The same for ``FUSED``, where it differs."""


def _fields(blocks: Sequence[type[Block]]) -> Iterator[tuple[Register, Field]]:
    for block in blocks:
        for register in block.registers():
            if register.offset & 0xFFF not in (0, 4, 8):
                for field in register.fields.values():
                    yield register, field


def silent_fields(
    before: list[int], rig: Rig, out: npt.NDArray[np.uint8], blocks: Sequence[type[Block]]
) -> Iterator[tuple[Register, Field]]:
    """The fields whose lowest bit may be flipped without a fault and without an effect."""
    rig.load(before)
    assert rig.npu.run(0x1000, len(before)).error is None
    right = out.copy()
    for register, field in _fields(blocks):
        index = next(i for i, w in enumerate(before) if w & 0xFFFF == register.offset and w >> 56)
        words = list(before)
        words[index] ^= 1 << (16 + field.lo)
        rig.load(words, 0x8000)
        out[:] = FILL
        error = rig.npu.run(0x8000, len(words)).error
        rig.npu.unmap(0x8000)
        if error is None and np.array_equal(out, right):
            yield register, field


def test_every_field_is_refused_has_an_effect_or_is_listed() -> None:
    rng = np.random.default_rng(1)
    spans = ODD.spans()
    # Enough memory around each base that other pitches and sizes are still mapped.
    rig = Rig()
    rig.add(spans["features"][0], operands("int8", 1 << 16, rng))
    rig.add(spans["weights"][0], operands("int8", 1 << 16, rng))
    out = rig.blank(spans["output"][0], 1 << 16)
    for register, field in silent_fields(ODD.words(), rig, out, (CNA, CORE, DPU)):
        listed = WITHOUT_EFFECT.get(str(register), set())
        assert listed is None or field.name in listed, f"{register}.{field.name} is ignored"


def test_every_field_of_the_stages_is_refused_has_an_effect_or_is_listed() -> None:
    rng = np.random.default_rng(1)
    rig = Rig()
    for base in (0x10000000, 0x20000000, 0x50000000):
        rig.add(base, operands("int8", 1 << 16, rng))
    rig.add(0x38000000, channel_operands(rng, 64))
    out = rig.blank(0x30000000, 1 << 16)
    for register, field in silent_fields(fused(), rig, out, (DPU, DPU_RDMA)):
        listed = FUSED_WITHOUT_EFFECT.get(str(register), set())
        assert listed is None or field.name in listed, f"{register}.{field.name} is ignored"


@pytest.mark.parametrize("dtype", ["int8", "int16", "fp16"])
def test_kernel_groups_may_be_stated(dtype: str) -> None:
    conv = Conv(dtype, "fp16" if dtype == "fp16" else "int32", kernels=80)
    groups = 3 if dtype == "int8" else 5
    rig = Rig()
    rig.place(conv, np.random.default_rng(2))
    words = conv.words(CNA__CONV_CON2__KERNEL_GROUP=groups - 1)
    assert rig.run(words).error is None
    rig.check(words)
    fault = fault_of(conv, CNA__CONV_CON2__KERNEL_GROUP=groups)
    assert (fault.kind, fault.field) == ("inconsistent", "KERNEL_GROUP")


@pytest.mark.parametrize("variant", [0x10, 0x20, 0x40, 0x50])
def test_core_variants_that_the_vendor_uses(variant: int) -> None:
    rig = Rig()
    rig.place(ODD, np.random.default_rng(2))
    words = ODD.words(CNA__CONV_CON2__UNDOC_CORE_VARIANT=variant)
    assert rig.run(words).error is None
    rig.check(words)


# ---------------------------------------------------------------- fuzz


def _streams() -> list[list[int]]:
    streams = [
        ODD.words(),
        Conv("fp16", "fp16", 5, 6, 40, 20, (2, 3), (1, 2), (1, 2), (4, 3), off=True).words(),
        Conv("fp16", "fp32", 8, 1, 64, 32, out=(8, 1)).words(0x1000, 98),
        Conv(weight_reuse=True, data_reuse=True).words(),
        fused(),
        Flight("int8", "int16", 3, 5, 40, 1, 2).words(),
        [
            word(DPU.LUT_ACCESS_CFG, 1 << 17 | 500),
            *(word(DPU.LUT_ACCESS_DATA, value) for value in range(10)),
            *Flight("fp16", "fp16", 2, 7, 24).words(**lookup()),
        ],
        Pool("average", "int8", 7, 6, 32, (3, 2), (2, 1), (1, 1, 1, 0), (4, 5)).words(),
        Pool("max", "fp16", 7, 6, 24, (3, 2), (2, 1), (1, 1, 1, 0), (4, 5)).words(),
        Flight("fp16", "fp16", 2, 7, 24).words(DPU__BS_CFG__BS_RELU_BYPASS=0),
        replace(FUSED_CONV, kernels=48, written=48, depthwise=True, out_surface_pitch=21).words(),
    ]
    for kind in ("fp16_fp32", "fp16_fp16", "int8_int32"):
        path = SHARED / "data" / "rk3588" / f"matmul_{kind}.json"
        cases: list[Any] = json.loads(path.read_text())["cases"] if path.is_file() else []
        streams += [
            [int(word, 16) for word in case["regcmd"]]
            for case in cases
            if case["rc"] == 0 and case["m"] * case["k"] * case["n"] < 1 << 20
        ]
    return streams


def mutate(words: list[int], rng: np.random.Generator) -> list[int]:
    """One to four of: a bit, a value, an interesting number, words swapped, dropped, repeated."""
    words = list(words)
    for _ in range(rng.integers(1, 5)):
        i, j = (int(n) for n in rng.integers(0, len(words), 2))
        kind = rng.integers(0, 8)
        if kind <= 2:
            words[i] ^= 1 << int(rng.integers(16, 48))
        elif kind == 3:
            words[i] ^= 1 << int(rng.integers(0, 64))
        elif kind == 4:
            value = int(rng.choice([0, 1, 2, 0x7FF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFF0]))
            mask = REGISTERS[words[i] & 0xFFFF].mask if words[i] & 0xFFFF in REGISTERS else 0
            words[i] = words[i] & ~(0xFFFFFFFF << 16) | (value & mask) << 16
        elif kind == 5:
            words[i], words[j] = words[j], words[i]
        elif kind == 6 and len(words) > 8:
            del words[i]
        else:
            words.insert(j, words[i])
    return words


@pytest.mark.parametrize("seed", range(4))
def test_mutated_streams_give_a_fault_or_the_right_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    streams = _streams()
    size = 1 << 17
    rig = Rig()
    for base in (
        0x10000000,
        0x20000000,
        0x38000000,
        0x50000000,
        0xFFC00000,
        0xFF800000,
        0xFFFE0000,
    ):
        rig.add(base, operands("fp16", size // 2, rng))
    rig.memory.mappings[-1][1][-256:] = 0
    outputs = [rig.blank(base, size) for base in (0x30000000, 0xFF400000)]
    completed = 0
    for _ in range(3000):
        words = mutate(streams[int(rng.integers(len(streams)))], rng)
        rig.load(words)
        fresh = rng.integers(2)
        if fresh:
            rig.npu.reset()
        tasks = int(rng.choice([1, 1, 1, 2, 3]))
        result = rig.npu.run(0x1000, len(words), tasks, int_mask=0, work_limit=1 << 22)
        rig.npu.unmap(0x1000)
        rig.memory.mappings.pop()
        assert result.tasks_done >= 0
        if result.error is not None:
            assert str(result.error)
        if fresh and result.error is None and tasks == 1 and plain(words):
            rig.check(words)
            completed += 1
        for output in outputs:
            output[:] = FILL
    assert completed > 100


def plain(words: list[int]) -> bool:
    """Whether the reference, which knows no groups, CBUF or tables, can tell the result."""
    pointers = {word for word in words if word & 0xFFF == 4 and word >> 48 & 1}
    reuse = any(word & 0xFFFF == CNA.CBUF_CON0.offset and word >> 28 & 3 for word in words)
    known = {
        word(register, 0xE)
        for block in (DPU, DPU_RDMA, PPU, PPU_RDMA)
        for register in block.registers()
        if register.offset & 0xFFF == 4
    }
    tables = any(word & 0xFFFF == DPU.EW_CFG.offset and not word >> 16 & 0x81 for word in words)
    return pointers <= known and not reuse and not tables


def test_random_words() -> None:
    rng = np.random.default_rng(99)
    rig = Rig()
    for _ in range(300):
        words = [int(w) for w in rng.integers(0, 1 << 64, 64, np.uint64)]
        rig.load(words)
        assert rig.npu.run(0x1000, 64).error is not None
        rig.npu.unmap(0x1000)
