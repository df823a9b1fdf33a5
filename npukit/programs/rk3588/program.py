# SPDX-License-Identifier: MIT
"""Command streams: assembling them, joining them, and the task tables that hand them to a driver.

A command word is 64 bits: 63:48 target, 47:16 value, 15:0 register offset. A task is a body of
register writes and four words of trailer:

    PC.BASE_ADDRESS      address of the next task, 0 after the last
    PC.REGISTER_AMOUNTS  128-bit pairs of the next task, trailer included, minus one
    marker               must precede the enable word
    enable               the blocks that start

The kernel tells the NPU only the first task of a job; it finds the others by this chain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.abi.rknpu import rknpu_task
from npukit.abi.rocket import drm_rocket_task
from npukit.ioctl import ProgramError

from .registers import ENABLE_BITS, ENABLE_TARGET, MARKER_TARGET, PC, Register

Words = npt.NDArray[np.uint64]

TRAILER_WORDS = 4
TASK_ALIGN = 64
"""Bytes to which every task of a joined program is aligned. The PC itself needs 16."""

INT_MASK_DPU = 0x300
"""Interrupts of the DPU's two register groups: what a task that ends in the DPU waits for."""
INT_MASK_PPU = 0xC00
INT_CLEAR = 0x1FFFF


def encode(register: Register, fields: dict[str, int]) -> int:
    """The value of ``register`` with ``fields`` set and all else 0.

    ProgramError names register, field, value and width when a field is missing or too narrow.
    """
    value = 0
    for name, given in fields.items():
        field = register.fields.get(name)
        if field is None:
            raise ProgramError(
                message=f"{register} has no field {name}; it has {', '.join(register.fields)}"
            )
        given = int(given)
        lowest = -(1 << (field.width - 1)) if field.signed else 0
        if not lowest <= given < 1 << field.width:
            raise ProgramError(
                message=f"{register}.{name} = {given} ({given:#x}) does not fit in "
                f"{field.width} {'signed ' if field.signed else ''}bits"
            )
        value |= (given << field.lo) & field.mask
    return value


@dataclass(frozen=True, slots=True)
class Task:
    """Where one task stands in a program, in 64-bit words, and how it starts and ends."""

    offset: int
    count: int
    """Words, the trailer included (rocket's regcmd_count; the vendor's regcfg_amount is 4 less)."""
    enable_mask: int
    int_mask: int = INT_MASK_DPU

    @property
    def amount(self) -> int:
        """What PC.REGISTER_AMOUNTS must hold to fetch this task."""
        return (self.count + 1) // 2 - 1


class Program:
    """One or more tasks. Immutable: it can be compared, stored and printed without a device.

    ``words`` is a read-only array of uint64; ``tasks`` says where each task stands in it;
    ``unproven`` lists what the program does that no hardware capture shows (empty: all is proven).
    ``str()`` disassembles it.
    """

    __slots__ = ("tasks", "unproven", "words")

    def __init__(
        self,
        words: Words | Sequence[int],
        tasks: Iterable[Task],
        unproven: Iterable[str] = (),
    ) -> None:
        self.words: Words = np.array(words, dtype=np.uint64)
        self.words.setflags(write=False)
        self.tasks = tuple(tasks)
        self.unproven = tuple(unproven)

    @classmethod
    def join(cls, programs: Sequence[Program]) -> Program:
        """All tasks one after another, each aligned to TASK_ALIGN; the gaps hold empty words."""
        step = TASK_ALIGN // 8
        words: list[npt.NDArray[np.uint64]] = []
        tasks: list[Task] = []
        offset = 0
        for program in programs:
            for task in program.tasks:
                gap = -offset % step
                offset += gap
                tasks.append(Task(offset, task.count, task.enable_mask, task.int_mask))
                body = program.words[task.offset : task.offset + task.count]
                words += [np.zeros(gap, np.uint64), body]
                offset += task.count
        unproven = dict.fromkeys(reason for program in programs for reason in program.unproven)
        return cls(np.concatenate(words) if words else [], tasks, unproven)

    def chained(self, address: int) -> Program:
        """The same program with the chain words set for a place at DMA ``address``.

        ProgramError when the address is not 16-byte aligned or the program passes 4 GiB.
        """
        if address % 16 or not 0 <= address <= (1 << 32) - 8 * len(self.words):
            raise ProgramError(
                message=f"a program of {8 * len(self.words)} bytes cannot stand at {address:#x}: "
                "tasks are 16-byte aligned and below 4 GiB"
            )
        words = self.words.copy()
        for task, following in zip_longest(self.tasks, self.tasks[1:]):
            trailer = task.offset + task.count - TRAILER_WORDS
            start = address + 8 * following.offset if following else 0
            amount = following.amount if following else 0
            words[trailer] = _word(PC.BASE_ADDRESS, start)
            words[trailer + 1] = _word(PC.REGISTER_AMOUNTS, amount)
        return Program(words, self.tasks, self.unproven)

    def state(self, task: int = 0) -> dict[int, int]:
        """Register offset -> the value that the task's words leave in it before the enable word."""
        place = self.tasks[task]
        body = self.words[place.offset : place.offset + place.count - TRAILER_WORDS]
        _targets, values, registers = _fast.decode_regcmds(body)
        return dict(zip(registers.tolist(), values.tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return self.tasks == other.tasks and np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Program of {len(self.tasks)} tasks, {len(self.words)} words>"

    def __str__(self) -> str:
        from .text import disassemble

        return disassemble(self.words)


def _word(register: Register, value: int) -> int:
    return register.block.target << 48 | value << 16 | register.offset


class Assembler:
    """Collects the register writes of one task.

    asm = Assembler()
    asm.write(CNA.CONV_CON3, CONV_Y_STRIDE=1, CONV_X_STRIDE=1)
    program = asm.finish("CNA", "CORE", "DPU")
    """

    def __init__(self) -> None:
        self._targets: list[int] = []
        self._values: list[int] = []
        self._offsets: list[int] = []

    def write(self, register: Register, /, **fields: int) -> None:
        """Write ``register``: the named fields, 0 elsewhere. ProgramError when one does not fit."""
        self.write_value(register, encode(register, fields))

    def write_value(self, register: Register, value: int) -> None:
        """Write a whole value; ProgramError when it sets a reserved bit."""
        if not 0 <= value < 1 << 32 or value & ~register.mask:
            raise ProgramError(
                message=f"{register} = {value:#x} sets bits that are reserved "
                f"(legal: {register.mask:#010x})"
            )
        if not register.block.target:
            raise ProgramError(message=f"{register} cannot be reached from a command stream")
        self._targets.append(register.block.target)
        self._values.append(value)
        self._offsets.append(register.offset)

    def finish(
        self, *blocks: str, int_mask: int = INT_MASK_DPU, unproven: Iterable[str] = ()
    ) -> Program:
        """Add the trailer that starts ``blocks`` ("CNA", "CORE", ...) and give the program."""
        try:
            enable = sum(1 << ENABLE_BITS[block] for block in blocks)
        except KeyError as error:
            raise ProgramError(
                message=f"no block {error} can be enabled; there are {', '.join(ENABLE_BITS)}"
            ) from None
        trailer = (
            (PC.BASE_ADDRESS.block.target, 0, PC.BASE_ADDRESS.offset),
            (PC.REGISTER_AMOUNTS.block.target, 0, PC.REGISTER_AMOUNTS.offset),
            (MARKER_TARGET, 0, 0),
            (ENABLE_TARGET, enable, PC.OPERATION_ENABLE.offset),
        )
        targets, values, offsets = (
            [*written, *(row[column] for row in trailer)]
            for column, written in enumerate((self._targets, self._values, self._offsets))
        )
        words = _fast.encode_regcmds(
            np.array(targets, np.uint16), np.array(values, np.uint32), np.array(offsets, np.uint16)
        )
        return Program(words, [Task(0, len(words), enable, int_mask)], unproven)


def rknpu_tasks(program: Program, address: int) -> ctypes.Array[rknpu_task]:
    """The vendor driver's task table for ``program`` standing at DMA ``address``."""
    rows = (
        rknpu_task(
            op_idx=index,
            enable_mask=task.enable_mask,
            int_mask=task.int_mask,
            int_clear=INT_CLEAR,
            regcfg_amount=task.count - TRAILER_WORDS,
            regcmd_addr=address + 8 * task.offset,
        )
        for index, task in enumerate(program.tasks)
    )
    return (rknpu_task * len(program.tasks))(*rows)


def rocket_tasks(program: Program, address: int) -> ctypes.Array[drm_rocket_task]:
    """The mainline driver's task table for ``program`` standing at DMA ``address``."""
    rows = (
        drm_rocket_task(regcmd=address + 8 * task.offset, regcmd_count=task.count)
        for task in program.tasks
    )
    return (drm_rocket_task * len(program.tasks))(*rows)
