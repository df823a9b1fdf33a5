# SPDX-License-Identifier: MIT
"""One RK3588 NPU core made of software: executes register commands on mapped memory.

What it executes, by the blocks CNA, CORE, DPU and DPU_RDMA: direct convolution (and so matmul),
depthwise and transposed convolution of int8, int16 and fp16, and the DPU's stages behind them:
bias, scale and clamp (BS, BN), an operation with another tensor (EW), correction for weights' zero
points (the window sum), the two lookup tables, conversion to int8, int16, int32, fp16 or fp32; and
the same stages alone, on int8, int16, int32 or fp16 from memory (flying mode). By PPU and PPU_RDMA:
pooling of int8 and fp16, maximum, minimum and average. Everything else that a stream may ask for is
refused with the register, the field and the value; nothing is ignored in silence but fields that
only steer the speed. int8 sums are exact modulo 2^32, int16 sums saturate at 32 bits, and what
follows is exact as ``csrc/rk3588_stage.c`` says; fp16 products are summed in fp32, in any order,
and rounded to nearest even.

Rules that decide whether a stream is consistent are those which all streams known to run on
hardware obey (the vendor's, Mesa's, and matmul programs of the community).
"""

from __future__ import annotations

import array
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npukit.programs.rk3588.registers import REGISTERS

from ._rk3588 import AddressSpace, Core

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._rk3588 import _Fault

__all__ = ["MAX_TASKS", "WORK_LIMIT", "AddressSpace", "Completion", "Npu", "NpuFault"]

WORK_LIMIT = 1 << 40
"""Work that one run may do unless told otherwise: multiply-accumulates, kernels rounded up to 32,
plus 8 for each byte that DMA moves. A real core needs about a second for as much in int8; this one
from ten seconds (SIMD) to some minutes (portable C)."""

MAX_TASKS = 4095
"""Tasks that one start of the core can count (PC.TASK_CON.TASK_NUMBER has 12 bits)."""

_MAX_WORDS = 2 << 16

Kind = Literal["command", "illegal", "unsupported", "inconsistent", "access", "timed out"]


@dataclass(frozen=True, slots=True)
class NpuFault:
    """Why a run did not complete.

    ``kind``: ``command`` (a word, or the order of words), ``illegal`` (a register or bits that do
    not exist), ``unsupported`` (a mode that is not modelled), ``inconsistent`` (registers that
    contradict each other or the hardware's limits), ``access`` (memory that is not mapped or
    read-only), ``timed out`` (the core would never raise its interrupt, or had more to do than the
    run may). ``block``, ``register``, ``field`` and ``value`` say which setting is wrong, or led to
    an access; ``iova`` is the address accessed, or that of a bad command word. What does not apply
    is None.
    """

    kind: Kind
    text: str
    block: str | None = None
    register: str | None = None
    field: str | None = None
    value: int | None = None
    iova: int | None = None

    def __str__(self) -> str:
        parts: list[str] = [self.kind]
        if self.register is not None and self.value is not None:
            name = ".".join(part for part in (self.block, self.register, self.field) if part)
            value = f"{self.value:#x}" if self.value > 0xFFFF else str(self.value)
            parts.append(f"{name} = {value}")
        parts.append(self.text)
        text = ": ".join(parts)
        return text if self.iova is None else f"{text} (at {self.iova:#x})"


@dataclass(frozen=True, slots=True)
class Completion:
    """How a run ended.

    ``raw_status``: bits of PC.INTERRUPT_RAW_STATUS that the last task raised (0x100 or 0x200 for a
    finished DPU, by register group; 0x400 or 0x800 for a finished PPU; also 0x1000 or 0x2000 for a
    failed read or write).
    ``tasks_done``: tasks completed. ``error``: None when the interrupt came. ``link``: address and
    number of words of the task that the run ended in front of, which waits for other cores.
    """

    raw_status: int
    tasks_done: int
    error: NpuFault | None
    link: tuple[int, int] | None = None


def _legal_bits() -> array.array[int]:
    masks = array.array("I", bytes(0x10000))
    for offset, register in REGISTERS.items():
        masks[offset // 4] = register.mask
    return masks


_MASKS = _legal_bits()


def _fault(raw: _Fault) -> NpuFault:
    kind, place, value, iova, text = raw
    if place is None:
        return NpuFault(kind, text, iova=iova)  # type: ignore[arg-type]
    offset, hi, lo = place
    register = REGISTERS[offset]
    names = [field.name for field in register.fields.values() if (field.hi, field.lo) == (hi, lo)]
    return NpuFault(
        kind,  # type: ignore[arg-type]
        text,
        block=register.block.__name__,
        register=register.name,
        field=names[0] if names else None,
        value=value,
        iova=iova,
    )


class Npu:
    """One core. ``space`` is the IOMMU domain it is attached to, and may be replaced between runs.

    ``threads`` is how many threads a run computes with. The CBUF and the registers are kept from
    one run to the next. One Npu is for one thread at a time (a second one gets RuntimeError);
    different Npus may run side by side, also in one address space. The GIL is released during a
    run.
    """

    def __init__(
        self, core: int = 0, space: AddressSpace | None = None, *, threads: int | None = None
    ) -> None:
        self.core = core
        self.space = AddressSpace() if space is None else space
        self.threads = min(2, os.cpu_count() or 1) if threads is None else threads
        self._core = Core(_MASKS)

    def map(self, iova: int, buffer: Buffer) -> None:
        """``space.map``."""
        self.space.map(iova, buffer)

    def unmap(self, iova: int) -> None:
        """``space.unmap``."""
        self.space.unmap(iova)

    def run(
        self,
        regcmd_iova: int,
        count: int,
        tasks: int = 1,
        int_mask: int = 0x300,
        *,
        meets: bool = False,
        work_limit: int = WORK_LIMIT,
    ) -> Completion:
        """Execute ``tasks`` tasks, the first one being ``count`` command words at ``regcmd_iova``.

        ``count`` includes the four words of the trailer (rocket's regcmd_count; the vendor's
        regcfg_amount is 4 less); each further task is where the trailer of the one before it says.
        A chain of fewer tasks, or a last task that raises nothing which ``int_mask`` waits for, is
        timed out. ``meets``: the run ends where the chain waits for other cores
        (``Completion.link``); without, it waits for nobody. A task that fails leaves the register
        pointers as they were before it and the CBUF without content; its output may be partly
        written.

        What is wrong with a program is in the Completion; ValueError is for arguments that no
        driver could give to the core, MemoryError for a host that is out of memory.
        """
        if not 0 <= regcmd_iova < 1 << 32:
            raise ValueError(f"regcmd_iova {regcmd_iova:#x} is no 32-bit address")
        if not 1 <= count <= _MAX_WORDS:
            raise ValueError(f"count {count} is not within 1..{_MAX_WORDS}")
        if not 1 <= tasks <= MAX_TASKS:
            raise ValueError(f"tasks {tasks} is not within 1..{MAX_TASKS}")
        if not 0 <= int_mask < 1 << 32:
            raise ValueError(f"int_mask {int_mask:#x} has more than 32 bits")
        if not 1 <= self.threads <= 64:
            raise ValueError(f"threads {self.threads} is not within 1..64")
        # Words are fetched in pairs; the register holds pairs minus one.
        amount = (count + 1) // 2 - 1
        raw_status, tasks_done, error, link = self._core.run(
            self.space, regcmd_iova, amount, tasks, int_mask, self.threads, meets, work_limit
        )
        return Completion(
            raw_status,
            tasks_done,
            None if error is None else _fault(error),
            None if link is None else (link[0], 2 * (link[1] + 1)),
        )

    def write_register(self, offset: int, value: int) -> None:
        """Write a block's register as a driver does through MMIO, into the group its pointer names.

        The top nibble of CNA's and CORE's S_POINTER may hold a core number, as the vendor's driver
        writes it.
        ValueError: no such register, one that ``run`` itself drives (those of PC, S_STATUS,
        OPERATION_ENABLE), or reserved bits.
        """
        if not 0 <= value < 1 << 32 or not self._core.write_register(self._offset(offset), value):
            raise ValueError(f"{value:#x} cannot be written to register {offset:#06x}")

    def read_register(self, offset: int) -> int:
        """What a block's register holds in the group its pointer names. ValueError as above."""
        value = self._core.read_register(self._offset(offset))
        if value is None:
            raise ValueError(f"register {offset:#06x} cannot be read")
        return value

    @staticmethod
    def _offset(offset: int) -> int:
        if not 0 <= offset < 1 << 16:
            raise ValueError(f"register offset {offset:#x} has more than 16 bits")
        return offset

    def reset(self) -> None:
        """All registers and pointers to 0, the CBUF without content; memory stays mapped."""
        self._core.reset()
