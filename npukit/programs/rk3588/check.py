# SPDX-License-Identifier: MIT
"""What is wrong with command streams, found before an NPU hangs on them.

The rules are those that every stream known to run on hardware obeys: the vendor's, Mesa's and the
community's. The simulated NPU refuses what breaks them as well, by code of its own; what it merely
does not model is not said here.

    problems = check_words(words)                     # a stream by itself
    device.checker = checker                          # every job, before it is submitted
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.ioctl import ProgramError

from .decode import Access, TaskView
from .encodings import (
    ALTERNATE,
    BANK_BYTES,
    BYTES,
    CBUF_BANKS,
    CBUF_UNIT,
    COMBINED,
    LUT_ENTRIES,
    OperandMode,
    OperandUse,
    Precision,
    kernel_group,
)
from .program import INT_MASK_DPU, INT_MASK_PPU, TRAILER_WORDS, Program, Words, encode
from .registers import (
    CNA,
    CORE,
    DPU,
    DPU_RDMA,
    ENABLE_BITS,
    ENABLE_TARGET,
    MARKER_TARGET,
    PC,
    PPU,
    PPU_RDMA,
    REGISTERS,
    Register,
)
from .tensor import ATOM
from .text import split_tasks

Array = npt.NDArray[Any]

_ELEMENTS = ("main data", "operands of elements")
_ALL = sum(1 << bit for bit in ENABLE_BITS.values())
_EXECUTER = CNA.S_POINTER.fields["EXECUTER"].mask
_MASKS = np.zeros(0x4000, np.uint32)
for _offset, _register in REGISTERS.items():
    if _register.block.target and _offset & 0xFFF:
        # Which group executes is for the NPU to say.
        _MASKS[_offset // 4] = (
            _register.mask & ~_EXECUTER if _offset & 0xFFF == 4 else _register.mask
        )
_LUT_PLACE, _LUT_ENTRY = DPU.LUT_ACCESS_CFG, DPU.LUT_ACCESS_DATA
_MOST_WORDS = 2 << PC.REGISTER_AMOUNTS.fields["PC_DATA_AMOUNT"].width
_POINTERS = {
    name: (bit + 1) << 12 | CNA.S_POINTER.offset & 0xFFF for name, bit in ENABLE_BITS.items()
}
_POINTER = {name: field.mask for name, field in CNA.S_POINTER.fields.items()}
_ALTERNATE = encode(CNA.S_POINTER, ALTERNATE)
_RAISED = {"CNA": 0x3F, "CORE": 0xC0, "DPU": INT_MASK_DPU, "PPU": INT_MASK_PPU}
"""Interrupts of both register groups. CNA's are of features, weights and the sequence."""
_CHAIN = (PC.BASE_ADDRESS.offset, PC.REGISTER_AMOUNTS.offset)


class Problem(NamedTuple):
    """One thing that is wrong. ``word`` counts from the task's first; None where there is none."""

    task: int
    text: str
    word: int | None = None
    register: Register | None = None
    field: str | None = None
    value: int | None = None

    def __str__(self) -> str:
        where = f"task {self.task}"
        if self.word is not None:
            where += f", word {self.word}"
        if self.register is None:
            return f"{where}: {self.text}"
        name = f"{self.register}.{self.field}" if self.field else str(self.register)
        value = self.value or 0
        number = value if abs(value) < 4096 else hex(value)
        return f"{where}: {name} = {number}: {self.text}"


@dataclass(frozen=True)
class Checked:
    """A task by itself: what is wrong with it, and what it does."""

    problems: tuple[Problem, ...]
    view: TaskView
    accesses: tuple[Access, ...]
    next_address: int
    next_amount: int
    reuses: tuple[str, ...]
    """"DATA", "WEIGHT": what it takes from the CBUF as it is there."""
    steady: bool
    """Its register groups alternate, and those executed with those written."""

    def of(self, task: int) -> Iterator[Problem]:
        """Its problems, as those of task number ``task``."""
        return (problem._replace(task=task) for problem in self.problems)


class Stream:
    """The words of a task, trailer included, and where they stand. ``int_mask`` is the driver's."""

    def __init__(self, address: int, words: Words, int_mask: int = 0) -> None:
        self.address = address
        self.count = len(words)
        self.int_mask = int_mask
        self.checked = read_task(words)


# ---- Words --------------------------------------------------------------------------------------


def _check_bytes(image: bytes) -> Checked:
    problems: list[Problem] = []
    words = np.frombuffer(image, np.uint64)
    targets, values, offsets = _fast.decode_regcmds(words)
    # The marker and empty words write nothing; the enable word ends the task.
    markers = words == MARKER_TARGET << 48
    writes = (words != 0) & (targets != ENABLE_TARGET) & ~markers
    legal = _MASKS[offsets >> 2]
    blocks = offsets.astype(np.uint32) >> 12
    unknown = writes & ((legal == 0) | (offsets & 3 != 0))
    astray = writes & ~unknown & (targets != (0x100 << blocks | 1))
    reserved = writes & ~unknown & (values & ~legal != 0)
    for word in np.flatnonzero(unknown | astray | reserved).tolist():
        offset, value = int(offsets[word]), int(values[word])
        if unknown[word]:
            text = f"register {offset:#06x} cannot be reached from a stream"
            problems.append(Problem(0, text, word))
            continue
        register = REGISTERS[offset]
        text = (
            f"target {int(targets[word]):#06x}, but its block is {register.block.target:#06x}"
            if astray[word]
            else f"reserved bits {value & ~int(legal[word]):#x} are set: some field overflows"
        )
        problems.append(Problem(0, text, word, register, None, value))
    alone = np.flatnonzero(markers[:-1] & (targets[1:] != ENABLE_TARGET)).tolist()
    problems += [Problem(0, "a marker, and no enable word behind it", word) for word in alone]
    enable, trailer = _trailer(words, targets, values, offsets)
    problems += trailer
    problems += _tables(offsets, values)
    body = writes & ~unknown
    registers = dict(zip(offsets[body].tolist(), values[body].tolist(), strict=True))
    address, amount = (registers.pop(offset, 0) for offset in _CHAIN)
    view = TaskView(registers, enable)
    if enable:
        problems += _Task(view).check()
    accesses = tuple(access for access in view.accesses() if access.size)
    problems += _overlaps(view, accesses)
    return Checked(
        problems=tuple(problems),
        view=view,
        accesses=accesses,
        next_address=address,
        next_amount=amount & 0xFFFF,
        reuses=tuple(
            kind
            for kind in ("DATA", "WEIGHT")
            if view.convolves and view(CNA.CBUF_CON0, f"{kind}_REUSE")
        ),
        steady=all(
            registers.get(offset, _ALTERNATE) == _ALTERNATE for offset in _POINTERS.values()
        ),
    )


_REMEMBERED_BYTES = 1 << 14
"""Two lookup tables and all registers fit."""
_remembered = lru_cache(maxsize=1024)(_check_bytes)


def _trailer(
    words: Words, targets: Array, values: Array, offsets: Array
) -> tuple[int, list[Problem]]:
    """The blocks that the task enables, and what is wrong with its last words."""
    ends = np.flatnonzero(targets == ENABLE_TARGET).tolist()
    if not ends:
        return 0, [Problem(0, "no enable word: nothing starts")]
    end, problems = ends[0], []
    enable = int(values[end])
    if int(offsets[end]) != PC.OPERATION_ENABLE.offset:
        problems.append(Problem(0, f"the enable word names register {int(offsets[end]):#06x}", end))
    if not end or int(words[end - 1]) != MARKER_TARGET << 48:
        problems.append(Problem(0, "the marker is missing before the enable word", end))
    if not enable or enable & ~_ALL:
        problems.append(Problem(0, f"enable {enable:#x}: no such blocks, or none", end))
    behind = np.flatnonzero(words[end + 1 :]).tolist()
    if behind:
        problems.append(Problem(0, "words follow the enable word", end + 1 + behind[0]))
    return enable & _ALL, problems


def _tables(offsets: Array, values: Array) -> Iterator[Problem]:
    """Entries of the lookup tables are written one after the other, none behind the last."""
    places = np.flatnonzero((offsets == _LUT_PLACE.offset) | (offsets == _LUT_ENTRY.offset))
    entry: int | None = None
    writes = True
    for word in places.tolist():
        value = int(values[word])
        if int(offsets[word]) == _LUT_PLACE.offset:
            entry = _LUT_PLACE.fields["LUT_ADDR"].get(value)
            writes = bool(_LUT_PLACE.fields["LUT_ACCESS_TYPE"].get(value))
        elif writes:
            if entry is None or entry >= LUT_ENTRIES:
                text = (
                    "no word before it says which entry of which table"
                    if entry is None
                    else f"is entry {entry} of a lookup table that has {LUT_ENTRIES}"
                )
                yield Problem(0, text, word, _LUT_ENTRY, None, value)
                return
            entry += 1


# ---- One task -----------------------------------------------------------------------------------


class _Task:
    """The rules of one task's registers."""

    def __init__(self, view: TaskView) -> None:
        self.view = view
        self.problems: list[Problem] = []

    def check(self) -> list[Problem]:
        blocks = self.view.blocks
        if ("CNA" in blocks) != ("CORE" in blocks):
            self._say("CNA and CORE start together or not at all")
        elif "CNA" in blocks and "DPU" not in blocks:
            self._say("a convolution needs the DPU behind it")
        for block in ("DPU", "PPU"):
            if f"{block}_RDMA" in blocks and block not in blocks:
                self._say(f"{block}_RDMA reads for {block}, which is not started")
        if "DPU" in blocks and "CNA" not in blocks and not self.view.flying:
            self._wrong(
                DPU.FEATURE_MODE_CFG, "FLYING_MODE", "the DPU waits for CORE, which is not started"
            )
        if "DPU" in blocks and self.view.flying and "DPU_RDMA" not in blocks:
            self._wrong(DPU.FEATURE_MODE_CFG, "FLYING_MODE", "nothing reads: start DPU_RDMA")
        if not self._written():
            return self.problems
        if {"CNA", "CORE", "DPU"} <= blocks:
            self._convolution()
        if "DPU" in blocks:
            self._output()
            self._operands()
        if {"PPU", "PPU_RDMA"} <= blocks:
            self._pooling()
        return self.problems

    # Saying what is wrong.

    def _say(self, text: str) -> None:
        self.problems.append(Problem(0, text))

    def _wrong(self, register: Register, field: str, text: str) -> None:
        value = self.view(register, field)
        self.problems.append(Problem(0, text, None, register, field, value))

    def _expect(self, register: Register, field: str, wanted: int, text: str) -> None:
        if self.view(register, field) != wanted:
            self._wrong(register, field, f"{text}, which gives {int(wanted)}")

    def _expect_all(self, rows: Iterable[tuple[Register, str, int, str]]) -> None:
        for row in rows:
            self._expect(*row)

    def _positive(self, *fields: tuple[Register, str]) -> bool:
        """Says which of the fields are 0; whether none is."""
        zero = [place for place in fields if self.view(*place) == 0]
        for place in zero:
            self._wrong(*place, "has to be at least 1")
        return not zero

    def _aligned(self, register: Register, field: str) -> None:
        if self.view(register, field) % ATOM:
            self._wrong(register, field, "is not a multiple of 16")

    # Rules.

    def _written(self) -> bool:
        """Sizes and addresses that are not written are those of whatever ran before."""
        missing = [
            str(register)
            for block in sorted(self.view.blocks & _ESSENTIAL.keys())
            for register in _ESSENTIAL[block]
            if register.offset not in self.view.registers
        ]
        if missing:
            self._say(f"not written, so they keep what ran before: {', '.join(missing)}")
        return not missing

    def _convolution(self) -> None:
        view, depthwise = self.view, self.view.depthwise
        sizes = _POSITIVE if depthwise else (*_POSITIVE, (CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS"))
        if not self._positive(*sizes):
            return
        height, width, channels = view.image
        if channels * view.element % ATOM:
            self._wrong(CNA.DATA_SIZE1, "DATAIN_CHANNEL", "does not fill atoms of 16 bytes")
        if not view.channel_last:
            if not view(CNA.CONV_CON1, "GROUP_LINE_OFF") and view(CNA.DMA_CON1, "LINE_STRIDE") % 4:
                self._wrong(CNA.DMA_CON1, "LINE_STRIDE", "is four rows, a multiple of 4 atoms")
            self._expect(CNA.FC_DATA_SIZE0, "DMA_WIDTH", width, "is DATAIN_WIDTH")
        self._aligned(CNA.FEATURE_DATA_ADDR, "FEATURE_BASE_ADDR")
        self._aligned(CNA.DCOMP_ADDR0, "DECOMPRESS_ADDR0")
        kernels, kernel_height, kernel_width = view.kernel
        stored = view(CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS")
        kernel_bytes = kernel_height * kernel_width * channels * view.element
        out_height, out_width, out_channels = view.result
        precision = view(CNA.CONV_CON1, "IN_PRECISION")
        self._expect_all(
            [
                (CNA.FC_DATA_SIZE0, "DMA_HEIGHT", height, "is DATAIN_HEIGHT"),
                (CNA.FC_DATA_SIZE1, "DMA_CHANNEL", channels, "is DATAIN_CHANNEL"),
                (
                    CNA.WEIGHT_SIZE1,
                    "WEIGHT_BYTES_PER_KERNEL",
                    kernel_bytes,
                    "is width x height x channels x bytes of an element",
                ),
                (CNA.WEIGHT_SIZE0, "WEIGHT_BYTES", stored * kernel_bytes, "is that of all kernels"),
                (CNA.DATA_SIZE2, "DATAOUT_WIDTH", out_width, "is DPU.WIDTH + 1"),
                (CNA.DATA_SIZE3, "DATAOUT_ATOMICS", out_width * out_height, "is the output's area"),
                (CORE.DATAOUT_SIZE_0, "DATAOUT_WIDTH", out_width - 1, "is DPU.WIDTH"),
                (CORE.DATAOUT_SIZE_0, "DATAOUT_HEIGHT", out_height - 1, "is DPU.HEIGHT"),
                (CORE.DATAOUT_SIZE_1, "DATAOUT_CHANNEL", out_channels - 1, "is DPU.CHANNEL"),
                (CORE.MISC_CFG, "DW_EN", depthwise, "is 1 for depthwise alone"),
                (CNA.CONV_CON1, "PROC_PRECISION", precision, "is IN_PRECISION"),
                (CORE.MISC_CFG, "PROC_PRECISION", precision, "is CNA's IN_PRECISION"),
            ]
        )
        if depthwise:
            self._expect(CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS", 1, "is 1 for depthwise")
        if view(CNA.CONV_CON2, "KERNEL_GROUP"):
            groups = (stored - 1) // kernel_group(precision)
            self._expect(CNA.CONV_CON2, "KERNEL_GROUP", groups, "is 0, or groups of kernels - 1")
        if kernels > out_channels:
            place = (
                (CNA.DATA_SIZE1, "DATAIN_CHANNEL")
                if depthwise
                else (CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS")
            )
            self._wrong(*place, f"is more than the {out_channels} channels that DPU writes")
        if view(DPU.DATA_CUBE_CHANNEL, "ORIG_CHANNEL") >= kernels:
            self._wrong(
                DPU.DATA_CUBE_CHANNEL, "ORIG_CHANNEL", f"is not below the {kernels} kernels"
            )
        self._windows(height, width, out_height, out_width)
        self._banks(height, kernel_bytes)

    def _windows(self, height: int, width: int, out_height: int, out_width: int) -> None:
        """Every window touches the image."""
        view = self.view
        if view.channel_last:
            width = view(CNA.FC_DATA_SIZE0, "DMA_WIDTH")
        height, width = (
            (size - 1) * spread + 1
            for size, spread in zip((height, width), view.spread, strict=True)
        )
        rows = ("Y_STRIDE", "PAD_TOP", height, out_height, view.window[0])
        columns = ("X_STRIDE", "PAD_LEFT", width, out_width, view.window[1])
        for stride, pad, size, out, window in (rows, columns):
            before = view(CNA.PAD_CON0, pad)
            if before >= window:
                self._wrong(CNA.PAD_CON0, pad, f"is not below the kernel, which spans {window}")
            last = (out - 1) * view(CNA.CONV_CON3, f"CONV_{stride}") - before
            if last >= size:
                self._wrong(
                    CNA.CONV_CON3,
                    f"CONV_{stride}",
                    f"puts the last of {out} windows at {last}, behind the {size} of the image",
                )

    def _banks(self, height: int, kernel_bytes: int) -> None:
        view = self.view
        data, weights = (view(CNA.CBUF_CON0, f"{kind}_BANK") for kind in ("DATA", "WEIGHT"))
        if not self._positive((CNA.CBUF_CON0, "DATA_BANK"), (CNA.CBUF_CON0, "WEIGHT_BANK")):
            return
        if data + weights > CBUF_BANKS:
            self._wrong(
                CNA.CBUF_CON0,
                "WEIGHT_BANK",
                f"with the {data} of DATA_BANK exceeds the {CBUF_BANKS} banks of the CBUF",
            )
        if not view.channel_last:
            row = view.image[1] * view.image[2] * view.element
            if view.row_bytes < row:
                self._wrong(
                    CNA.CBUF_CON1,
                    "DATA_ENTRIES",
                    f"holds less than a row of {row} bytes, {-(-row // CBUF_UNIT)} units of "
                    f"{CBUF_UNIT}",
                )
        needed = view.row_bytes * min(height, view.window[0])
        if needed > data * BANK_BYTES:
            self._wrong(
                CNA.CBUF_CON0,
                "DATA_BANK",
                f"has no room for the rows of one window, {needed} of {data * BANK_BYTES} bytes",
            )
        if kernel_bytes > weights * BANK_BYTES:
            self._wrong(
                CNA.CBUF_CON0,
                "WEIGHT_BANK",
                f"has no room for one kernel, {kernel_bytes} of {weights * BANK_BYTES} bytes",
            )

    def _output(self) -> None:
        view = self.view
        height, width, channels = view.result
        precision = view(DPU.DATA_FORMAT, "OUT_PRECISION")
        if view.flying:
            atoms = view(DPU.BS_OW_CFG, "SIZE_E_0") + 1
        else:
            read, depthwise = view(CNA.CONV_CON1, "IN_PRECISION"), view.depthwise
            atoms = kernel_group(read, depthwise) * BYTES.get(precision, 1) // ATOM
            if depthwise and read == Precision.INT8 and precision == Precision.INT32:
                self._wrong(DPU.DATA_FORMAT, "OUT_PRECISION", "sums of depthwise exceed SIZE_E")
                return
        stride = view(DPU.DST_SURF_STRIDE, "DST_SURF_STRIDE")
        notch = view(DPU.DATA_CUBE_NOTCH_ADDR, "NOTCH_ADDR_0")
        self._expect_all(
            [
                *(
                    (DPU.BS_OW_CFG, f"SIZE_E_{i}", atoms - 1, "is atoms in a row - 1")
                    for i in range(3)
                ),
                (DPU.DATA_CUBE_NOTCH_ADDR, "NOTCH_ADDR_1", notch, "is NOTCH_ADDR_0"),
                (
                    DPU.SURFACE_ADD,
                    "SURF_ADD",
                    stride * atoms,
                    "is DST_SURF_STRIDE x atoms in a row",
                ),
                (
                    DPU.OUT_CVT_SCALE,
                    "FP32TOFP16_EN",
                    precision == Precision.FP16 and not view.divides,
                    "is 1 for fp16 output alone, and not of a division",
                ),
                (DPU.WDMA_SIZE_0, "CHANNEL_WDMA", channels - 1, "is CHANNEL"),
                (DPU.WDMA_SIZE_1, "HEIGHT_WDMA", height - 1, "is HEIGHT"),
                (DPU.WDMA_SIZE_1, "WIDTH_WDMA", width - 1, "is WIDTH"),
            ]
        )
        if view(DPU.DATA_CUBE_CHANNEL, "ORIG_CHANNEL") >= channels:
            self._wrong(
                DPU.DATA_CUBE_CHANNEL, "ORIG_CHANNEL", f"is more than CHANNEL, {channels - 1}"
            )
        self._aligned(DPU.DST_BASE_ADDR, "DST_BASE_ADDR")

    def _operands(self) -> None:
        view = self.view
        reads = "DPU_RDMA" in view.blocks
        use = view(DPU_RDMA.RDMA_BRDMA_CFG, "BRDMA_DATA_USE") if reads else 0
        bs = not view(DPU.BS_CFG, "BS_BYPASS")
        for part in ("ALU", "MUL"):
            register = DPU.BS_CFG if part == "ALU" else DPU.BS_MUL_CFG
            taken = bs and not view(DPU.BS_CFG, f"BS_{part}_BYPASS")
            if not taken or not view(register, f"BS_{part}_SRC"):
                continue
            if not use:
                self._wrong(register, f"BS_{part}_SRC", "is from memory, and BRDMA reads nothing")
            elif part == "MUL" and use != OperandUse.ALL:
                self._wrong(register, "BS_MUL_SRC", "is from memory, and BRDMA does not read it")
        windows = not view(DPU.BS_OW_CFG, "OD_BYPASS")
        if view(DPU.BS_OW_CFG, "OW_SRC") and not (windows and use == OperandUse.ALL):
            self._wrong(DPU.BS_OW_CFG, "OW_SRC", "is from memory, and BRDMA does not read it")
        ew = not view(DPU.EW_CFG, "EW_BYPASS") and not view(DPU.EW_CFG, "EW_OP_BYPASS")
        elements = ew and view(DPU.EW_CFG, "EW_OP_SRC") == 1
        disabled = not reads or view(DPU_RDMA.RDMA_ERDMA_CFG, "ERDMA_DISABLE") == 1
        if elements and disabled:
            self._wrong(DPU.EW_CFG, "EW_OP_SRC", "is from memory, and ERDMA reads nothing")
        if not reads:
            return
        height, width, channels = view.result
        precision = view(DPU.DATA_FORMAT, "PROC_PRECISION")
        mode, erdma = DPU_RDMA.RDMA_FEATURE_MODE_CFG, DPU_RDMA.RDMA_ERDMA_CFG
        flying, combined = view.flying, view(mode, "COMB_USE") == COMBINED
        self._expect_all(
            [
                (DPU_RDMA.RDMA_DATA_CUBE_WIDTH, "WIDTH", width - 1, "is DPU.WIDTH"),
                (DPU_RDMA.RDMA_DATA_CUBE_HEIGHT, "HEIGHT", height - 1, "is DPU.HEIGHT"),
                (DPU_RDMA.RDMA_DATA_CUBE_CHANNEL, "CHANNEL", channels - 1, "is DPU.CHANNEL"),
                (mode, "IN_PRECISION", precision, "is DPU.PROC_PRECISION"),
                (mode, "PROC_PRECISION", precision, "is DPU.PROC_PRECISION"),
                (mode, "CONV_MODE", view(DPU.FEATURE_MODE_CFG, "CONV_MODE"), "is DPU.CONV_MODE"),
                (mode, "FLYING_MODE", flying, "is DPU.FLYING_MODE"),
                (mode, "MRDMA_DISABLE", not (flying or combined), "is 0 where MRDMA reads"),
                (erdma, "ERDMA_DISABLE", not elements, "is 0 where EW takes operands from memory"),
            ]
        )
        if flying:
            half = view(DPU.DATA_FORMAT, "IN_PRECISION") == Precision.FP16 and not view.divides
            self._expect(mode, "MRDMA_FP16TOFP32_EN", half, "is 1 for fp16 that is not divided")
        if elements:
            for name in ("DATA_SIZE", "DATA_MODE"):
                field = "EDATA_SIZE" if name == "DATA_SIZE" else "EW_DATA_MODE"
                wanted = view(erdma, f"ERDMA_{name}")
                self._expect(DPU.EW_CFG, field, wanted, f"is ERDMA_{name}")
            self._aligned(DPU_RDMA.RDMA_EW_BASE_ADDR, "EW_BASE_ADDR")
            if view(erdma, "ERDMA_DATA_MODE") == OperandMode.CHANNEL:
                why = "for operands of channels"
                self._expect(DPU_RDMA.RDMA_EW_SURF_STRIDE, "EW_SURF_STRIDE", 1, f"is 1 {why}")
                self._expect(DPU_RDMA.RDMA_EW_SURF_NOTCH, "EW_SURF_NOTCH", 0, f"is 0 {why}")
        if combined:
            notch = view(DPU_RDMA.RDMA_EW_SURF_NOTCH, "EW_SURF_NOTCH")
            self._expect(DPU_RDMA.RDMA_SURF_NOTCH, "SURF_NOTCH_ADDR", notch, "is EW_SURF_NOTCH")
        if flying or combined:
            self._aligned(DPU_RDMA.RDMA_SRC_BASE_ADDR, "SRC_BASE_ADDR")
        if use:
            self._aligned(DPU_RDMA.RDMA_BS_BASE_ADDR, "BS_BASE_ADDR")
        if view(DPU_RDMA.RDMA_NRDMA_CFG, "NRDMA_DATA_USE"):
            self._aligned(DPU_RDMA.RDMA_BN_BASE_ADDR, "BN_BASE_ADDR")

    def _pooling(self) -> None:
        view = self.view
        width, height, channels = (view(register, field) for register, field in _POOL_SIZES)
        element = BYTES.get(view(PPU.DATA_FORMAT, "PROC_PRECISION"), 1)
        self._expect_all(
            [
                (PPU.DATA_CUBE_OUT_CHANNEL, "CUBE_OUT_CHANNEL", channels, "is CUBE_IN_CHANNEL"),
                (PPU_RDMA.RDMA_CUBE_IN_WIDTH, "CUBE_IN_WIDTH", width, "is PPU.CUBE_IN_WIDTH"),
                (PPU_RDMA.RDMA_CUBE_IN_HEIGHT, "CUBE_IN_HEIGHT", height, "is PPU.CUBE_IN_HEIGHT"),
                (PPU_RDMA.RDMA_CUBE_IN_CHANNEL, "CUBE_IN_CHANNEL", channels, "is PPU's"),
                (
                    PPU_RDMA.RDMA_DATA_FORMAT,
                    "IN_PRECISION",
                    element,
                    "is bytes of an element by PROC_PRECISION",
                ),
            ]
        )
        if (channels + 1) * element > ATOM:
            stride = view(PPU.DST_SURF_STRIDE, "DST_SURF_STRIDE")
            self._expect(PPU.DATA_FORMAT, "INDEX_ADD", stride, "is DST_SURF_STRIDE")
        self._aligned(PPU_RDMA.RDMA_SRC_BASE_ADDR, "SRC_BASE_ADDR")
        out_height, out_width, _ = view.result
        for name, size, out, before, behind in (
            ("WIDTH", width + 1, out_width, "PAD_LEFT", "PAD_RIGHT"),
            ("HEIGHT", height + 1, out_height, "PAD_TOP", "PAD_BOTTOM"),
        ):
            kernel = view(PPU.POOLING_KERNEL_CFG, f"KERNEL_{name}") + 1
            stride = view(PPU.POOLING_KERNEL_CFG, f"KERNEL_STRIDE_{name}") + 1
            pad = view(PPU.POOLING_PADDING_CFG, before)
            if pad >= kernel:
                self._wrong(PPU.POOLING_PADDING_CFG, before, f"is not below the kernel, {kernel}")
            last = (out - 1) * stride - pad
            room = size + view(PPU.POOLING_PADDING_CFG, behind)
            if last >= size or last + kernel > room:
                self._wrong(
                    getattr(PPU, f"DATA_CUBE_OUT_{name}"),
                    f"CUBE_OUT_{name}",
                    f"puts the last window at {last}, behind the image of {size} and its padding",
                )


_POSITIVE = (
    (CNA.DATA_SIZE0, "DATAIN_WIDTH"),
    (CNA.DATA_SIZE0, "DATAIN_HEIGHT"),
    (CNA.DATA_SIZE1, "DATAIN_CHANNEL"),
    (CNA.WEIGHT_SIZE2, "WEIGHT_WIDTH"),
    (CNA.WEIGHT_SIZE2, "WEIGHT_HEIGHT"),
    (CNA.CONV_CON3, "CONV_X_STRIDE"),
    (CNA.CONV_CON3, "CONV_Y_STRIDE"),
)
_POOL_SIZES = (
    (PPU.DATA_CUBE_IN_WIDTH, "CUBE_IN_WIDTH"),
    (PPU.DATA_CUBE_IN_HEIGHT, "CUBE_IN_HEIGHT"),
    (PPU.DATA_CUBE_IN_CHANNEL, "CUBE_IN_CHANNEL"),
)
_ESSENTIAL = {
    "CNA": (
        CNA.CONV_CON1, CNA.CONV_CON3, CNA.DATA_SIZE0, CNA.DATA_SIZE1, CNA.WEIGHT_SIZE0,
        CNA.WEIGHT_SIZE2, CNA.CBUF_CON0, CNA.FEATURE_DATA_ADDR, CNA.DCOMP_ADDR0, CNA.DMA_CON1,
        CNA.DMA_CON2,
    ),
    "CORE": (CORE.MISC_CFG, CORE.DATAOUT_SIZE_0, CORE.DATAOUT_SIZE_1),
    "DPU": (
        DPU.FEATURE_MODE_CFG, DPU.DATA_FORMAT, DPU.DST_BASE_ADDR, DPU.DST_SURF_STRIDE,
        DPU.DATA_CUBE_WIDTH, DPU.DATA_CUBE_HEIGHT, DPU.DATA_CUBE_CHANNEL,
    ),
    "DPU_RDMA": (
        DPU_RDMA.RDMA_DATA_CUBE_WIDTH, DPU_RDMA.RDMA_DATA_CUBE_HEIGHT,
        DPU_RDMA.RDMA_DATA_CUBE_CHANNEL, DPU_RDMA.RDMA_FEATURE_MODE_CFG,
    ),
    "PPU": (PPU.DATA_CUBE_IN_WIDTH, PPU.DATA_CUBE_OUT_WIDTH, PPU.DST_BASE_ADDR),
    "PPU_RDMA": (PPU_RDMA.RDMA_CUBE_IN_WIDTH, PPU_RDMA.RDMA_SRC_BASE_ADDR),
}  # fmt: skip


def _overlaps(view: TaskView, accesses: Sequence[Access]) -> Iterator[Problem]:
    """What a task writes does not lie on what it reads, which may be read before or after.

    Only the DPU alone may write over its main data or an operand of each element, in its place.
    """
    for output in (access for access in accesses if access.write):
        for access in accesses:
            if access is output:
                if output.folded:
                    yield _lies(output, "itself")
                continue
            in_place = access.what in _ELEMENTS and output._replace(
                what=access.what, register=access.register, write=False
            ) == access  # fmt: skip
            if not in_place and output.overlaps(access):
                yield _lies(output, f"the {access.what} at {access.start:#x}")


def _lies(output: Access, text: str) -> Problem:
    return Problem(0, f"the output lies on {text}", None, output.register, None, output.start)


# ---- Several tasks ------------------------------------------------------------------------------


def check_words(words: Words) -> list[Problem]:
    """A stream by itself: one task after the other, from any address.

    ProgramError when words remain behind the last enable word.
    """
    places = split_tasks(words)
    if not places:
        return [Problem(0, "no enable word: nothing starts")]
    streams = [Stream(8 * offset, words[offset : offset + count]) for offset, count in places]
    numbers = range(len(streams))
    return [
        *_each(streams),
        *_chain(streams, numbers, anywhere=True),
        *_state(streams, numbers),
    ]


def check(program: Program, address: int = 0) -> list[Problem]:
    """A program as it stands at DMA ``address``: its chain words are set as they will be."""
    placed = program.chained(address)
    streams = [
        Stream(
            address + 8 * task.offset,
            placed.words[task.offset : task.offset + task.count],
            task.int_mask,
        )
        for task in placed.tasks
    ]
    numbers = range(len(streams))
    problems = [
        *_each(streams),
        *_chain(streams, numbers),
        *_state(streams, numbers),
        *_words_kept(streams),
    ]
    if streams:
        problems += _interrupt(streams[-1], len(streams) - 1)
    return problems


def _each(streams: Sequence[Stream]) -> list[Problem]:
    return [
        problem for number, stream in enumerate(streams) for problem in stream.checked.of(number)
    ]


def read_task(words: Words) -> Checked:
    """One task by itself. What was read is remembered: programs are submitted again and again."""
    image = np.ascontiguousarray(words, np.uint64).tobytes()
    return _remembered(image) if len(image) <= _REMEMBERED_BYTES else _check_bytes(image)


def _chain(
    streams: Sequence[Stream], window: Iterable[int], *, anywhere: bool = False
) -> Iterator[Problem]:
    """Each task of a window leads to the next. ``anywhere``: addresses count from an unknown place.

    What the last one leads to does not matter: the NPU has counted its tasks by then.
    """
    numbers = list(window)
    shift: int | None = None if anywhere else 0
    for number, following in itertools.pairwise(numbers):
        checked = streams[number].checked
        word = streams[number].count - TRAILER_WORDS
        if not checked.next_address:
            if not anywhere:
                yield Problem(
                    number,
                    f"the chain ends here, and {len(numbers) - numbers.index(following)} tasks "
                    "of the job are behind it: it would never complete",
                    word,
                )
            return
        if checked.next_address % 16:
            yield Problem(
                number, f"the chain goes on at {checked.next_address:#x}: no multiple of 16", word
            )
            return
        if shift is None:
            shift = checked.next_address - streams[following].address
        wanted = streams[following].address + shift
        if checked.next_address != wanted:
            yield Problem(
                number,
                f"the chain goes on at {checked.next_address:#x}, the next task is at {wanted:#x}",
                word,
            )
        amount = (streams[following].count + 1) // 2 - 1
        if checked.next_amount != amount:
            yield Problem(
                number,
                f"the chain fetches {checked.next_amount + 1} pairs of words, the next task has "
                f"{amount + 1}: the amount is {amount}",
                word + 1,
            )


def _state(streams: Sequence[Stream], window: Sequence[int]) -> list[Problem]:
    """What a task takes as those before it have left it."""
    return [*_reuse(streams, window), *_turns(streams, window)]


def _reuse(streams: Sequence[Stream], window: Iterable[int]) -> Iterator[Problem]:
    """What a task finds in the CBUF is what the task before it has left there."""
    before: TaskView | None = None
    for number in window:
        view = streams[number].checked.view
        for kind in streams[number].checked.reuses:
            if (
                before is None
                or _held(before, kind) is None
                or _held(before, kind) != _held(view, kind)
            ):
                what = "features" if kind == "DATA" else "weights"
                yield Problem(
                    number,
                    f"the task before it leaves no {what} of this shape in these banks",
                    None,
                    CNA.CBUF_CON0,
                    f"{kind}_REUSE",
                    1,
                )
        if view.convolves:
            before = view


def _held(view: TaskView, kind: str) -> tuple[object, ...] | None:
    """What the CBUF holds behind a convolution, as far as it matters; None: not all of it."""
    precision = view(CNA.CONV_CON1, "IN_PRECISION")
    data, weights = (view(CNA.CBUF_CON0, f"{name}_BANK") for name in ("DATA", "WEIGHT"))
    if kind == "DATA":
        fits = view.image[0] * view.row_bytes <= data * BANK_BYTES
        return (precision, view.image, view.channel_last) if fits else None
    fits = view(CNA.WEIGHT_SIZE0, "WEIGHT_BYTES") <= weights * BANK_BYTES
    return (precision, data, view.depthwise, view.image[2], view.kernel) if fits else None


def _turns(streams: Sequence[Stream], window: Sequence[int]) -> Iterator[Problem]:
    """Every block is started in the register group whose turn it is.

    S_POINTER's configuration and both groups outlast a task, and a job: it may come again.
    """
    if all(streams[number].checked.steady for number in window):
        return
    states = dict.fromkeys(_POINTERS, (_ALTERNATE, 0, 0))
    for number in (*window, *window):
        view = streams[number].checked.view
        for block, offset in _POINTERS.items():
            config, written, executed = states[block]
            given = view.registers.get(offset)
            if given is not None:
                config = given
                written = 0 if given & _POINTER["POINTER_PP_CLEAR"] else written
                executed = 0 if given & _POINTER["EXECUTER_PP_CLEAR"] else executed
                if not given & _POINTER["POINTER_PP_EN"]:
                    written = given & _POINTER["POINTER"]
            if block in view.blocks:
                if not config & _POINTER["EXECUTER_PP_EN"]:
                    executed = written
                if written != executed:
                    text = f"starts group {written} when it is the turn of group {executed}"
                    register = REGISTERS[offset]
                    yield Problem(number, f"{text}: it never would", None, register, None, config)
                    return
                written ^= bool(config & _POINTER["POINTER_PP_EN"])
                executed ^= bool(config & _POINTER["EXECUTER_PP_EN"])
            states[block] = config, written, executed


def _interrupt(stream: Stream, number: int) -> Iterator[Problem]:
    """The interrupt that the driver waits for is one that the last task raises.

    There are two bits for each, of the two register groups. All that are waited for have to come.
    """
    view, mask = stream.checked.view, stream.int_mask
    raised = sum(bits for block, bits in _RAISED.items() if block in view.blocks)
    for kind, bits in (("DATA", 0x3), ("WEIGHT", 0xC)):
        if kind in stream.checked.reuses:
            raised &= ~bits
    text = ""
    if not mask:
        text = "waits for nothing: the driver would never hear of the end"
    elif raised and mask & ~raised:
        text = f"waits for more than the {raised:#x} that the last task raises"
    elif mask & 0x555 != mask >> 1 & 0x555 and stream.checked.steady:
        text = "waits for one of two register groups, which take turns"
    if text:
        yield Problem(number, f"interrupt mask {mask:#x} {text}")


def _words_kept(streams: Sequence[Stream]) -> Iterator[Problem]:
    """No task writes over the words of one, which may be fetched after that, or once more."""
    low = min((stream.address for stream in streams), default=0)
    high = max((stream.address + 8 * stream.count for stream in streams), default=0)
    for number, stream in enumerate(streams):
        for access in stream.checked.accesses:
            if not access.write or access.start >= high or access.end <= low:
                continue
            for other, task in enumerate(streams):
                size = 8 * task.count
                end = task.address + size
                if access.overlaps(Access("words", PC.BASE_ADDRESS, task.address, end, size)):
                    yield _lies(access, f"the words of task {other}")._replace(task=number)


def _inside(streams: Sequence[Stream], places: Sequence[tuple[int, int]]) -> Iterator[Problem]:
    """All that the NPU touches is within the buffers ``places``, (start, end) in order."""
    starts = [start for start, _ in places]
    for number, stream in enumerate(streams):
        for access in stream.checked.accesses:
            index = bisect_right(starts, access.start) - 1
            if index >= 0 and access.end <= places[index][1]:
                continue
            yield Problem(
                number,
                f"{'writes' if access.write else 'reads'} {access.what} at {access.start:#x} to "
                f"{access.end:#x}, which is in no buffer of this device: the NPU would fault",
                None,
                access.register,
                None,
                access.start,
            )


ReadMemory = Callable[[int, int], bytes | None]


def checker(
    path: str,
    tasks: Sequence[tuple[int, int, int]],
    windows: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    read: ReadMemory,
    linked: bool,
) -> None:
    """Refuse a job that would hang, fault or compute nonsense; see Device.checker.

    ProgramError names up to five problems.
    """
    streams = []
    for number, (task, image) in enumerate(zip(tasks, _images(tasks, read), strict=True)):
        address, count, mask = task
        if image is None:
            problem = Problem(number, f"{8 * count} bytes of words at {address:#x}: in no buffer")
            raise ProgramError(path=path, hint=str(problem))
        if count > _MOST_WORDS:
            problem = Problem(number, f"{count} words: the NPU fetches at most {_MOST_WORDS}")
            raise ProgramError(path=path, hint=str(problem))
        streams.append(Stream(address, np.frombuffer(image, np.uint64), mask))
    problems = _each(streams)
    for window in windows:
        problems += _state(streams, window)
        if linked:
            problems += _chain(streams, window)
            problems += _interrupt(streams[window[-1]], window[-1])
            continue
        for number in window:
            if "DPU" not in streams[number].checked.view.blocks:
                problems.append(
                    Problem(number, "ends in the PPU, whose interrupt the driver does not await")
                )
    problems += _words_kept(streams)
    problems += _inside(streams, _merged(places))
    if problems:
        shown = "; ".join(str(problem) for problem in problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ProgramError(path=path, hint=shown + more)


def _images(tasks: Sequence[tuple[int, int, int]], read: ReadMemory) -> Iterator[bytes | None]:
    """The bytes of each task: read at once where they are side by side, as those of a program."""
    low = min(address for address, _, _ in tasks)
    size = max(address + 8 * count for address, count, _ in tasks) - low
    dense = size <= 2 * sum(8 * count for _, count, _ in tasks)
    whole = read(low, size) if dense else None
    for address, count, _ in tasks:
        if whole is None:
            yield read(address, 8 * count)
        else:
            yield whole[address - low : address - low + 8 * count]


def _merged(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Buffers that follow each other without a gap, as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
