# SPDX-License-Identifier: MIT
"""Command streams as text: a listing that can be read, edited and assembled back to the same words.

One word a line; what follows a semicolon is a comment:

    CNA.CONV_CON1 PROC_PRECISION=2 IN_PRECISION=2
    CNA.FEATURE_DATA_ADDR 0xffc00000
    marker
    enable CNA CORE DPU
    nop
    word 0x0801000000001004     ; what has no name, or has reserved bits set
"""

from __future__ import annotations

import numpy as np

from npukit import _fast
from npukit.ioctl import ProgramError

from .program import Words, encode
from .registers import ENABLE_BITS, ENABLE_TARGET, MARKER_TARGET, PC, REGISTERS, Register, find

_MARKER = MARKER_TARGET << 48
_BLOCK_OF_BIT = {bit: name for name, bit in ENABLE_BITS.items()}


def _whole(register: Register) -> bool:
    """Is the register one 32-bit number (an address, an operand), and better shown as such?"""
    return len(register.fields) == 1 and register.mask == 0xFFFFFFFF


def disassemble_word(word: int) -> str:
    """One line for one word, without a comment."""
    target, value, offset = word >> 48, word >> 16 & 0xFFFFFFFF, word & 0xFFFF
    if word == 0:
        return "nop"
    if word == _MARKER:
        return "marker"
    if target == ENABLE_TARGET and offset == PC.OPERATION_ENABLE.offset:
        bits = [bit for bit in range(32) if value >> bit & 1]
        if bits and all(bit in _BLOCK_OF_BIT for bit in bits):
            return "enable " + " ".join(_BLOCK_OF_BIT[bit] for bit in bits)
        return f"enable {value:#x}"
    register = REGISTERS.get(offset)
    reachable = register is not None and register.block.target == target != 0
    if register is None or not reachable or value & ~register.mask:
        return f"word {word:#018x}"
    if value == 0 or _whole(register):
        return f"{register} {value:#x}"
    fields = " ".join(
        f"{field.name}={_number(field.get(value))}"
        for field in register.fields.values()
        if value & field.mask
    )
    return f"{register} {fields}"


def _number(value: int) -> str:
    return str(value) if -4096 < value < 4096 else hex(value)


def disassemble(words: Words) -> str:
    """A line a word; ``assemble`` gives the same words back."""
    return "".join(disassemble_word(int(word)) + "\n" for word in words)


def assemble(text: str) -> Words:
    """The words of a listing. ProgramError names the line that is wrong and why."""
    words: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.partition(";")[0].split()
        if not parts:
            continue
        try:
            words.append(_assemble(parts))
        except (ProgramError, ValueError, KeyError) as error:
            reason = error.strerror if isinstance(error, ProgramError) else error
            if isinstance(error, KeyError):
                reason = f"there is no register {error.args[0]}"
            raise ProgramError(message=f"line {number}: {reason}") from None
    return np.array(words, dtype=np.uint64)


def _assemble(parts: list[str]) -> int:
    name, *rest = parts
    if name == "nop" and not rest:
        return 0
    if name == "marker" and not rest:
        return _MARKER
    if name == "word" and len(rest) == 1:
        return _bounded(int(rest[0], 0), 64)
    if name == "enable":
        return ENABLE_TARGET << 48 | _enable(rest) << 16 | PC.OPERATION_ENABLE.offset
    register = find(name)
    if not register.block.target:
        raise ProgramError(message=f"{register} cannot be reached from a command stream")
    if len(rest) == 1 and "=" not in rest[0]:
        value = _bounded(int(rest[0], 0), 32)
        if value & ~register.mask:
            raise ProgramError(message=f"{register} = {value:#x} sets bits that are reserved")
    else:
        pairs = [field.partition("=") for field in rest]
        value = encode(register, {field: int(number, 0) for field, _, number in pairs})
        if len({field for field, _, _ in pairs}) != len(pairs):
            raise ProgramError(message=f"{register}: a field is given twice")
    return register.block.target << 48 | value << 16 | register.offset


def _bounded(value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{value:#x} does not fit in {bits} bits")
    return value


def _enable(names: list[str]) -> int:
    if len(names) == 1 and names[0] not in ENABLE_BITS:
        return _bounded(int(names[0], 0), 32)
    unknown = [name for name in names if name not in ENABLE_BITS]
    if unknown or not names:
        raise ValueError(f"no block {' '.join(unknown) or '(none)'} can be enabled")
    return sum(1 << ENABLE_BITS[name] for name in dict.fromkeys(names))


def split_tasks(words: Words) -> list[tuple[int, int]]:
    """(first word, words with trailer) of each task: each ends with an enable word.

    Empty words before a task belong to none. ProgramError when words remain after the last enable.
    """
    targets, _values, registers = _fast.decode_regcmds(np.ascontiguousarray(words, np.uint64))
    ends = np.flatnonzero(
        (targets == ENABLE_TARGET) & (registers == PC.OPERATION_ENABLE.offset)
    ).tolist()
    tasks = []
    start = 0
    for end in ends:
        while start < end and words[start] == 0:
            start += 1
        tasks.append((start, end + 1 - start))
        start = end + 1
    if not ends and words.any():
        raise ProgramError(message=f"no enable word in {len(words)} words: nothing starts")
    if words[start:].any():
        raise ProgramError(message=f"{len(words) - start} words follow the last enable word")
    return tasks


def read_words(data: bytes) -> Words:
    """The words of a file: one hexadecimal word a line, or else 64-bit little-endian binary.

    ProgramError when it is neither.
    """
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data):
        try:
            lines = data.decode("ascii").split()
            return np.array([_bounded(int(line, 16), 64) for line in lines], dtype=np.uint64)
        except ValueError as error:
            raise ProgramError(message=f"text that is not hexadecimal words: {error}") from None
    if len(data) % 8:
        raise ProgramError(message=f"{len(data)} bytes are neither hexadecimal nor 64-bit words")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)
