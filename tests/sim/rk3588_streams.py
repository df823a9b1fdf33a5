# SPDX-License-Identifier: MIT
"""Streams for the tests: one convolution, with every knob that a test may want to turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.programs.rk3588.registers import (
    CNA,
    CORE,
    DPU,
    DPU_RDMA,
    PPU,
    PPU_RDMA,
    Block,
    Register,
    find,
)
from npukit.sim.rk3588 import Completion, Npu, NpuFault

from .rk3588_reference import Memory, check, expect

MARKER = 0x0041 << 48
ENABLE = 0x0081 << 48 | 0x0008


def word(register: Register, value: int, target: int | None = None) -> int:
    """A plain write; the target is that of the register's block unless given."""
    target = register.block.target if target is None else target
    return target << 48 | (value & 0xFFFFFFFF) << 16 | register.offset


def trailer(next_iova: int = 0, next_words: int = 0, enable: int = 0x0D) -> list[int]:
    """The four last words: the chain, the marker and the enable word."""
    amount = (next_words + 1) // 2 - 1 if next_iova else 0
    return [
        0x0101 << 48 | next_iova << 16 | 0x0010 if next_iova else 0,
        0x0101 << 48 | amount << 16 | 0x0014,
        MARKER,
        ENABLE | enable << 16,
    ]


METHODS = {"average": 0, "max": 1, "min": 2}
PRECISIONS = {"int8": 0, "int16": 1, "fp16": 2, "int32": 4, "fp32": 5}


@dataclass(frozen=True)
class Conv:
    """A convolution. ``out`` is the size of the output (height, width); pads are (top, left).

    Pitches are in atoms and dense when None: of the input, and of the output's lines and surfaces.
    ``off`` sets GROUP_LINE_OFF. ``written`` is how many channels the DPU writes (None: as many as
    there are kernels).
    """

    dtype: str = "int8"
    out_dtype: str = "int32"
    height: int = 4
    width: int = 4
    channels: int = 32
    kernels: int = 32
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    out: tuple[int, int] = (4, 4)
    pad_value: int = 0
    off: bool = False
    row_pitch: int | None = None
    surface_pitch: int | None = None
    out_line_pitch: int | None = None
    out_surface_pitch: int | None = None
    written: int | None = None
    data_banks: int | None = None
    weight_banks: int | None = None
    weight_reuse: bool = False
    data_reuse: bool = False
    depthwise: bool = False
    dilation: tuple[int, int] = (1, 1)
    features: int = 0x10000000
    weights: int = 0x20000000
    output: int = 0x30000000

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype.replace("fp", "float")).itemsize

    @property
    def out_bytes(self) -> int:
        return np.dtype(self.out_dtype.replace("fp", "float")).itemsize

    @property
    def stored_kernels(self) -> int:
        """How many of ``kernel_bytes`` there are in memory."""
        return 1 if self.depthwise else self.kernels

    @property
    def out_channels(self) -> int:
        return self.kernels if self.written is None else self.written

    @property
    def kernel_bytes(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.channels * self.bytes

    @property
    def pitches(self) -> tuple[int, int]:
        """Row and surface pitch of the input, in atoms."""
        row = self.width if self.row_pitch is None else self.row_pitch
        return row, self.height * row if self.surface_pitch is None else self.surface_pitch

    @property
    def out_pitches(self) -> tuple[int, int]:
        line = self.out[1] if self.out_line_pitch is None else self.out_line_pitch
        surface = self.out_surface_pitch
        return line, self.out[0] * line if surface is None else surface

    @property
    def entries(self) -> int:
        return -(-self.width * self.channels * self.bytes // 64)

    @property
    def banks(self) -> tuple[int, int]:
        """Of data and weights: what the features need, at most 11, and the rest."""
        needed = min(11, -(-self.height * self.entries * 64 // 32768))
        data = needed if self.data_banks is None else self.data_banks
        return data, 12 - data if self.weight_banks is None else self.weight_banks

    def spans(self) -> dict[str, tuple[int, int]]:
        """(base, bytes) of what the convolution reads and writes, pitches not negative."""
        row, surface = self.pitches
        line, out_surface = self.out_pitches
        surfaces = self.channels * self.bytes // 16
        out_surfaces = -(-self.out_channels * self.out_bytes // 16)
        read = (surfaces - 1) * surface + (self.height - 1) * row + self.width
        written = (out_surfaces - 1) * out_surface + (self.out[0] - 1) * line + self.out[1]
        return {
            "features": (self.features, 16 * read),
            "weights": (self.weights, self.stored_kernels * self.kernel_bytes),
            "output": (self.output, 16 * written),
        }

    def fields(self) -> dict[str, int]:
        """Field values by ``BLOCK.REGISTER.FIELD``; all others are zero."""
        precision = PRECISIONS[self.dtype]
        row, surface = self.pitches
        line, out_surface = self.out_pitches
        lines, step = (1, 1) if self.off else (4, 4)
        group = (16 if self.bytes == 2 else 32) * (2 if self.depthwise else 1)
        atoms = group * self.out_bytes // 16
        data_banks, weight_banks = self.banks
        height, width = self.out
        fields = {
            "CNA.CONV_CON1.GROUP_LINE_OFF": int(self.off),
            "CNA.CONV_CON1.CONV_MODE": 3 * self.depthwise,
            "CNA.CONV_CON1.PROC_PRECISION": precision,
            "CNA.CONV_CON1.IN_PRECISION": precision,
            "CNA.CONV_CON2.FEATURE_GRAINS": self.kernel[0] + self.stride[0] + 1,
            "CNA.CONV_CON3.CONV_Y_STRIDE": self.stride[0],
            "CNA.CONV_CON3.CONV_X_STRIDE": self.stride[1],
            "CNA.CONV_CON3.ATROUS_Y_DILATION": self.dilation[0] - 1,
            "CNA.CONV_CON3.ATROUS_X_DILATION": self.dilation[1] - 1,
            "CNA.DATA_SIZE0.DATAIN_WIDTH": self.width,
            "CNA.DATA_SIZE0.DATAIN_HEIGHT": self.height,
            "CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL": (self.channels - 1) & 0x3FFF,
            "CNA.DATA_SIZE1.DATAIN_CHANNEL": self.channels,
            "CNA.DATA_SIZE2.DATAOUT_WIDTH": width,
            "CNA.DATA_SIZE3.DATAOUT_ATOMICS": height * width,
            "CNA.WEIGHT_SIZE0.WEIGHT_BYTES": self.stored_kernels * self.kernel_bytes,
            "CNA.WEIGHT_SIZE1.WEIGHT_BYTES_PER_KERNEL": self.kernel_bytes,
            "CNA.WEIGHT_SIZE2.WEIGHT_WIDTH": self.kernel[1],
            "CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT": self.kernel[0],
            "CNA.WEIGHT_SIZE2.WEIGHT_KERNELS": self.stored_kernels,
            "CNA.CBUF_CON0.WEIGHT_REUSE": int(self.weight_reuse),
            "CNA.CBUF_CON0.DATA_REUSE": int(self.data_reuse),
            "CNA.CBUF_CON0.WEIGHT_BANK": weight_banks,
            "CNA.CBUF_CON0.DATA_BANK": data_banks,
            "CNA.CBUF_CON1.DATA_ENTRIES": self.entries,
            "CNA.CVT_CON0.DATA_SIGN": 1,
            "CNA.CVT_CON0.CVT_TYPE": 1,
            "CNA.CVT_CON0.CVT_BYPASS": 1,
            "CNA.PAD_CON0.PAD_LEFT": self.pads[1],
            "CNA.PAD_CON0.PAD_TOP": self.pads[0],
            "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR": self.features,
            "CNA.DMA_CON0.WEIGHT_BURST_LEN": 15,
            "CNA.DMA_CON0.DATA_BURST_LEN": 15,
            "CNA.DMA_CON1.LINE_STRIDE": lines * row,
            "CNA.DMA_CON2.SURF_STRIDE": surface - step * self.width,
            "CNA.FC_DATA_SIZE0.DMA_WIDTH": self.width,
            "CNA.FC_DATA_SIZE0.DMA_HEIGHT": self.height,
            "CNA.FC_DATA_SIZE1.DMA_CHANNEL": self.channels,
            "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0": self.weights,
            "CNA.PAD_CON1.PAD_VALUE": self.pad_value,
            "CORE.MISC_CFG.PROC_PRECISION": precision,
            "CORE.MISC_CFG.QD_EN": int(self.bytes == 2),
            "CORE.MISC_CFG.DW_EN": int(self.depthwise),
            "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT": height - 1,
            "CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH": width - 1,
            "CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL": self.out_channels - 1,
            "DPU.FEATURE_MODE_CFG.BURST_LEN": 15,
            "DPU.FEATURE_MODE_CFG.OUTPUT_MODE": 2,
            "DPU.FEATURE_MODE_CFG.CONV_MODE": 3 * self.depthwise,
            "DPU.DATA_FORMAT.OUT_PRECISION": PRECISIONS[self.out_dtype],
            "DPU.DATA_FORMAT.IN_PRECISION": precision,
            "DPU.DATA_FORMAT.PROC_PRECISION": precision,
            "DPU.DST_BASE_ADDR.DST_BASE_ADDR": self.output,
            "DPU.DST_SURF_STRIDE.DST_SURF_STRIDE": out_surface,
            "DPU.DATA_CUBE_WIDTH.WIDTH": width - 1,
            "DPU.DATA_CUBE_HEIGHT.HEIGHT": height - 1,
            "DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0": line - width,
            "DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_1": line - width,
            "DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL": self.kernels - 1,
            "DPU.DATA_CUBE_CHANNEL.CHANNEL": self.out_channels - 1,
            "DPU.BS_OW_CFG.SIZE_E_0": atoms - 1,
            "DPU.BS_OW_CFG.SIZE_E_1": atoms - 1,
            "DPU.BS_OW_CFG.SIZE_E_2": atoms - 1,
            "DPU.BS_OW_CFG.OD_BYPASS": 1,
            "DPU.WDMA_SIZE_0.CHANNEL_WDMA": self.out_channels - 1,
            "DPU.WDMA_SIZE_1.HEIGHT_WDMA": height - 1,
            "DPU.WDMA_SIZE_1.WIDTH_WDMA": width - 1,
            "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": 1,
            "DPU.OUT_CVT_SCALE.FP32TOFP16_EN": int(self.out_dtype == "fp16"),
            "DPU.SURFACE_ADD.SURF_ADD": out_surface * atoms,
            "DPU.EW_CFG.EW_LUT_BYPASS": 1,
            "DPU.EW_CFG.EW_BYPASS": 1,
        }
        for stage in ("BS", "BN"):
            for part in ("RELU", "MUL", "ALU"):
                fields[f"DPU.{stage}_CFG.{stage}_{part}_BYPASS"] = 1
            fields[f"DPU.{stage}_CFG.{stage}_BYPASS"] = 1
        return fields

    def words(
        self, next_iova: int = 0, next_words: int = 0, enable: int = 0x0D, **changes: int
    ) -> list[int]:
        """The stream: every CNA, CORE and DPU register that may be written, then the trailer.

        ``changes`` are single field values, by ``BLOCK__REGISTER__FIELD``.
        """
        fields = self.fields()
        if enable & 0x10:
            fields.update(self.rdma_fields())
        fields.update({name.replace("__", "."): value for name, value in changes.items()})
        blocks = (CNA, CORE, DPU, *([DPU_RDMA] if enable & 0x10 else []))
        return stream(fields, blocks) + trailer(next_iova, next_words, enable)

    def rdma_fields(self) -> dict[str, int]:
        """DPU_RDMA that reads nothing, as ``fields``."""
        precision = PRECISIONS[self.dtype]
        return {
            "DPU_RDMA.RDMA_DATA_CUBE_WIDTH.WIDTH": self.out[1] - 1,
            "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT": self.out[0] - 1,
            "DPU_RDMA.RDMA_DATA_CUBE_CHANNEL.CHANNEL": self.out_channels - 1,
            "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DISABLE": 1,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.IN_PRECISION": precision,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.PROC_PRECISION": precision,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.BURST_LEN": 15,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.MRDMA_DISABLE": 1,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.CONV_MODE": 3 * self.depthwise,
        }


@dataclass(frozen=True)
class Flight:
    """An operation of the DPU alone, on a cube in memory. Fields like those of ``Conv``.

    ``gap`` and ``out_gap`` are atoms between surfaces of the input and the output.
    """

    dtype: str = "int8"
    out_dtype: str = "int8"
    height: int = 1
    width: int = 8
    channels: int = 16
    gap: int = 0
    out_gap: int = 0
    source: int = 0x10000000
    output: int = 0x30000000

    @property
    def out(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def out_channels(self) -> int:
        return self.channels

    def spans(self) -> dict[str, tuple[int, int]]:
        """(base, bytes) of what is read and written."""
        out = {}
        for name, base, dtype, gap in (
            ("source", self.source, self.dtype, self.gap),
            ("output", self.output, self.out_dtype, self.out_gap),
        ):
            lanes = 16 // np.dtype(dtype.replace("fp", "float")).itemsize
            surfaces = -(-self.channels // lanes)
            area = self.height * self.width
            out[name] = base, 16 * ((surfaces - 1) * (area + gap) + area)
        return out

    def fields(self) -> dict[str, int]:
        """All stages bypassed: a copy, or a change of format."""
        precision = PRECISIONS[self.dtype]
        stride = self.height * self.width + self.out_gap
        return {
            "DPU.FEATURE_MODE_CFG.BURST_LEN": 15,
            "DPU.FEATURE_MODE_CFG.OUTPUT_MODE": 2,
            "DPU.FEATURE_MODE_CFG.FLYING_MODE": 1,
            "DPU.DATA_FORMAT.OUT_PRECISION": PRECISIONS[self.out_dtype],
            "DPU.DATA_FORMAT.IN_PRECISION": precision,
            "DPU.DATA_FORMAT.PROC_PRECISION": precision,
            "DPU.DST_BASE_ADDR.DST_BASE_ADDR": self.output,
            "DPU.DST_SURF_STRIDE.DST_SURF_STRIDE": stride,
            "DPU.DATA_CUBE_WIDTH.WIDTH": self.width - 1,
            "DPU.DATA_CUBE_HEIGHT.HEIGHT": self.height - 1,
            "DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL": self.channels - 1,
            "DPU.DATA_CUBE_CHANNEL.CHANNEL": self.channels - 1,
            "DPU.BS_CFG.BS_BYPASS": 1,
            "DPU.BN_CFG.BN_BYPASS": 1,
            "DPU.EW_CFG.EW_BYPASS": 1,
            "DPU.EW_CFG.EW_LUT_BYPASS": 1,
            "DPU.BS_OW_CFG.OD_BYPASS": 1,
            "DPU.WDMA_SIZE_0.CHANNEL_WDMA": self.channels - 1,
            "DPU.WDMA_SIZE_1.HEIGHT_WDMA": self.height - 1,
            "DPU.WDMA_SIZE_1.WIDTH_WDMA": self.width - 1,
            "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": 1,
            "DPU.OUT_CVT_SCALE.FP32TOFP16_EN": int(self.out_dtype == "fp16"),
            "DPU.SURFACE_ADD.SURF_ADD": stride,
            "DPU_RDMA.RDMA_DATA_CUBE_WIDTH.WIDTH": self.width - 1,
            "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT": self.height - 1,
            "DPU_RDMA.RDMA_DATA_CUBE_CHANNEL.CHANNEL": self.channels - 1,
            "DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR": self.source,
            "DPU_RDMA.RDMA_SURF_NOTCH.SURF_NOTCH_ADDR": self.gap,
            "DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DISABLE": 1,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.IN_PRECISION": precision,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.PROC_PRECISION": precision,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.BURST_LEN": 15,
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.MRDMA_FP16TOFP32_EN": int(self.dtype == "fp16"),
            "DPU_RDMA.RDMA_FEATURE_MODE_CFG.FLYING_MODE": 1,
        }

    def words(self, next_iova: int = 0, next_words: int = 0, **changes: int) -> list[int]:
        """The stream, as of ``Conv``."""
        fields = self.fields()
        fields.update({name.replace("__", "."): value for name, value in changes.items()})
        return stream(fields, (DPU, DPU_RDMA)) + trailer(next_iova, next_words, 0x18)


@dataclass(frozen=True)
class Pool:
    """A pooling. ``pads`` are (top, left, bottom, right), pitches in atoms and dense when None."""

    method: str = "max"
    dtype: str = "int8"
    height: int = 8
    width: int = 8
    channels: int = 16
    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    out: tuple[int, int] = (4, 4)
    pad_value: int = 0
    line_pitch: int | None = None
    surface_pitch: int | None = None
    out_notch: int = 0
    out_surface_pitch: int | None = None
    source: int = 0x10000000
    output: int = 0x30000000

    @property
    def surfaces(self) -> int:
        return self.channels * (2 if self.dtype == "fp16" else 1) // 16

    @property
    def pitches(self) -> tuple[int, int]:
        line = self.width if self.line_pitch is None else self.line_pitch
        return line, self.height * line if self.surface_pitch is None else self.surface_pitch

    @property
    def out_pitches(self) -> tuple[int, int]:
        line = self.out[1] + self.out_notch
        surface = self.out_surface_pitch
        return line, self.out[0] * line if surface is None else surface

    def spans(self) -> dict[str, tuple[int, int]]:
        """(base, bytes) of what is read and written."""
        (line, surface), (out_line, out_surface) = self.pitches, self.out_pitches
        last = self.surfaces - 1
        read = last * surface + (self.height - 1) * line + self.width
        written = last * out_surface + (self.out[0] - 1) * out_line + self.out[1]
        return {"source": (self.source, 16 * read), "output": (self.output, 16 * written)}

    def reciprocal(self, size: int) -> int:
        """2^16 / size: an integer, or the bits of an fp16."""
        if self.dtype == "int8":
            return 0x10000 // size
        return int(np.array([65536 / size], np.float16).view(np.uint16)[0])

    def fields(self) -> dict[str, int]:
        average = self.method == "average"
        (line, surface), (_, out_surface) = self.pitches, self.out_pitches
        cube = {"WIDTH": self.width - 1, "HEIGHT": self.height - 1, "CHANNEL": self.channels - 1}
        out = {"WIDTH": self.out[1] - 1, "HEIGHT": self.out[0] - 1, "CHANNEL": self.channels - 1}
        top, left, bottom, right = self.pads
        recip_height, recip_width = (average and self.reciprocal(n) for n in self.kernel)
        return {
            **{f"PPU.DATA_CUBE_IN_{k}.CUBE_IN_{k}": value for k, value in cube.items()},
            **{f"PPU.DATA_CUBE_OUT_{k}.CUBE_OUT_{k}": value for k, value in out.items()},
            **{f"PPU_RDMA.RDMA_CUBE_IN_{k}.CUBE_IN_{k}": value for k, value in cube.items()},
            "PPU.OPERATION_MODE_CFG.FLYING_MODE": 1,
            "PPU.OPERATION_MODE_CFG.POOLING_METHOD": METHODS[self.method],
            "PPU.OPERATION_MODE_CFG.NOTCH_ADDR": self.out_notch,
            "PPU.POOLING_KERNEL_CFG.KERNEL_STRIDE_HEIGHT": self.stride[0] - 1,
            "PPU.POOLING_KERNEL_CFG.KERNEL_STRIDE_WIDTH": self.stride[1] - 1,
            "PPU.POOLING_KERNEL_CFG.KERNEL_HEIGHT": self.kernel[0] - 1,
            "PPU.POOLING_KERNEL_CFG.KERNEL_WIDTH": self.kernel[1] - 1,
            "PPU.RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH": int(recip_width),
            "PPU.RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT": int(recip_height),
            "PPU.POOLING_PADDING_CFG.PAD_TOP": top,
            "PPU.POOLING_PADDING_CFG.PAD_LEFT": left,
            "PPU.POOLING_PADDING_CFG.PAD_BOTTOM": bottom,
            "PPU.POOLING_PADDING_CFG.PAD_RIGHT": right,
            "PPU.PADDING_VALUE_1_CFG.PAD_VALUE_0": self.pad_value,
            "PPU.DST_BASE_ADDR.DST_BASE_ADDR": self.output // 16,
            "PPU.DST_SURF_STRIDE.DST_SURF_STRIDE": out_surface,
            "PPU.DATA_FORMAT.INDEX_ADD": out_surface,
            "PPU.DATA_FORMAT.PROC_PRECISION": PRECISIONS[self.dtype],
            "PPU.MISC_CTRL.BURST_LEN": 3,
            "PPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR": self.source,
            "PPU_RDMA.RDMA_SRC_LINE_STRIDE.SRC_LINE_STRIDE": line,
            "PPU_RDMA.RDMA_SRC_SURF_STRIDE.SRC_SURF_STRIDE": surface,
            "PPU_RDMA.RDMA_DATA_FORMAT.IN_PRECISION": 2 if self.dtype == "fp16" else 1,
        }

    def words(self, next_iova: int = 0, next_words: int = 0, **changes: int) -> list[int]:
        """The stream, as of ``Conv``."""
        fields = self.fields()
        fields.update({name.replace("__", "."): value for name, value in changes.items()})
        return stream(fields, (PPU, PPU_RDMA)) + trailer(next_iova, next_words, 0x60)


def stream(fields: dict[str, int], blocks: Sequence[type[Block]] = (CNA, CORE, DPU)) -> list[int]:
    """All registers of the blocks with these field values, the pointers of their groups first.

    CNA and CORE stay with their first group, as all known programs leave them.
    """
    values: dict[Register, int] = {}
    for name, value in fields.items():
        register_name, _, field_name = name.rpartition(".")
        register = find(register_name)
        field = register.fields[field_name]
        placed = value << field.lo & field.mask
        if field.get(placed) != value and (placed >> field.lo) != value:
            raise ValueError(f"{name} cannot hold {value}")
        values[register] = values.get(register, 0) | placed
    words = [
        word(next(r for r in block.registers() if r.offset & 0xFFF == 4), 0xE)
        for block in blocks
        if block not in (CNA, CORE)
    ]
    for block in blocks:
        words += [
            word(register, values.pop(register, 0))
            for register in block.registers()
            if register.offset & 0xFFF not in (0, 4, 8)
        ]
    words += [word(register, value) for register, value in values.items()]
    return words


def array(words: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(words, np.uint64)


FILL = 0xA5
"""What memory holds that nobody has written."""


class Rig:
    """An Npu and memory that both it and the reference see."""

    def __init__(self, **options: Any) -> None:
        self.npu = Npu(**options)
        self.memory = Memory()
        self.outputs: list[tuple[int, npt.NDArray[np.uint8]]] = []

    def add(self, iova: int, data: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        flat = data.reshape(-1).view(np.uint8)
        self.npu.map(iova, flat)
        self.memory.add(iova, flat)
        return flat

    def blank(self, iova: int, size: int) -> npt.NDArray[np.uint8]:
        """Memory to be written to: ``check`` sees whether a byte too many has been."""
        flat = self.add(iova, np.full(size, FILL, np.uint8))
        self.outputs.append((iova, flat))
        return flat

    def place(self, conv: Conv, rng: np.random.Generator, *, exact: bool = False) -> None:
        """Memory for what the convolution touches: random features and weights."""
        spans = conv.spans()
        for name in ("features", "weights"):
            iova, size = spans[name]
            self.add(iova, operands(conv.dtype, size // conv.bytes, rng, exact=exact))
        self.blank(*spans["output"])

    def load(self, words: list[int], iova: int = 0x1000) -> None:
        """Map the stream; words are fetched in pairs, so an odd number is filled up."""
        self.add(iova, array(words + [0] * (len(words) % 2)))

    def run(self, words: list[int], iova: int = 0x1000, **options: Any) -> Completion:
        """Load the stream and run it as one task."""
        self.load(words, iova)
        return self.npu.run(iova, len(words), **options)

    def check(self, *streams: list[int], exact: bool = False) -> None:
        """AssertionError unless memory holds what the streams have to leave, and nothing else.

        One stream's output may not depend on another's.
        """
        written: list[npt.NDArray[np.int64]] = []
        for words in streams:
            # Pad values may be infinite or no number.
            with np.errstate(invalid="ignore"):
                expected = expect(words, self.memory)
            actual = self.memory.read(expected.addresses, expected.dtype)
            check(expected, actual)
            if exact:
                np.testing.assert_array_equal(actual, expected.values.astype(expected.dtype))
            assert not self.memory.read(expected.zeros, np.dtype(np.uint8)).any()
            places = expected.addresses.reshape(-1, 1) + np.arange(expected.dtype.itemsize)
            written += [places.reshape(-1), expected.zeros]
        every = np.concatenate(written)
        for iova, data in self.outputs:
            here = every[(every >= iova) & (every < iova + len(data))]
            untouched = np.ones(len(data), bool)
            untouched[here - iova] = False
            assert (data[untouched] == FILL).all()


def fault_of(conv: Conv, **changes: int) -> NpuFault:
    """The fault of the stream with some fields changed, all memory being there."""
    rig = Rig()
    rig.place(conv, np.random.default_rng(0))
    completion = rig.run(conv.words(**changes))
    assert completion.error is not None
    assert completion.tasks_done == 0
    return completion.error


def operands(
    dtype: str, count: int, rng: np.random.Generator, *, exact: bool = False
) -> npt.NDArray[Any]:
    """Random integers, or fp16 of several magnitudes; exact ones have sums that fp32 holds."""
    if dtype == "int8":
        return rng.integers(-128, 128, count, np.int8)
    if dtype == "int16":
        return rng.integers(-32768, 32768, count, np.int16) >> rng.integers(0, 12, dtype=np.int16)
    if exact:
        return (rng.integers(-8, 9, count) / 8).astype(np.float16)
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-12, 4, count)).astype(np.float16)
