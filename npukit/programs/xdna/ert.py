# SPDX-License-Identifier: MIT
"""ERT packets: what a command buffer holds when an XDNA context is told to run something.

A packet is a header word, CU mask words (but for a chain) and a body:

    header: state 3:0 | custom 9:4 | extra CU masks 11:10 | count 22:12 | opcode 27:23 | type 31:28

``count`` is the number of words behind the header. After a failure the driver overwrites all of
them, with ones or with a health record, so a packet must be built anew before it is sent again.

Sources: XRT's ert.h; drivers/accel/amdxdna (amdxdna_ctx.h, aie2_message.c).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from npukit.ioctl import ProgramError

from .xclbin import ComputeUnit


class State(IntEnum):
    """enum ert_cmd_state."""

    NEW = 1
    """Set when the driver takes the packet up; found after the fence it means: never started."""
    QUEUED = 2
    RUNNING = 3
    COMPLETED = 4
    ERROR = 5
    ABORT = 6
    SUBMITTED = 7
    TIMEOUT = 8
    NORESPONSE = 9


FAILED = frozenset({State.ERROR, State.ABORT, State.TIMEOUT, State.NORESPONSE})


class PacketOpcode(IntEnum):
    """The opcodes that the driver takes on XDNA1 and XDNA2."""

    START_CU = 0
    CMD_CHAIN = 19
    START_NPU = 20
    NPU_PREEMPT = 21
    NPU_PREEMPT_ELF = 22


TYPE_CU = 3
MAX_COUNT = (1 << 11) - 1
MAX_CUS = 32
"""Of one context (MAX_NUM_CUS). One mask word names them all; the driver looks at no other."""
SLOT_BYTES = 4096
"""What the driver has to hand the commands of a packet, or of a whole chain, to the firmware."""
MAX_NPU_ARGUMENT_WORDS = 26
"""34 with firmware that has no NPU command, which cannot be told from outside."""
OPCODE_TXN = 3
"""First value of a stream kernel's register map: an instruction stream, addresses to be patched."""
_HEADS = {
    PacketOpcode.START_CU: 0,
    PacketOpcode.START_NPU: 16,
    PacketOpcode.NPU_PREEMPT: 40,
    PacketOpcode.NPU_PREEMPT_ELF: 40,
}
_SLOT_HEAD_BYTES = 52
"""struct cmd_chain_slot_npu, the larger of the two forms."""


def _bad(text: str) -> ProgramError:
    return ProgramError(message=f"packet: {text}")


def header(opcode: int, count: int, state: int = State.NEW) -> int:
    """A header word with one CU mask word. ProgramError when ``count`` is out of range."""
    if not 0 < count <= MAX_COUNT:
        raise _bad(f"{count} words behind the header; 1 to {MAX_COUNT} are possible")
    return state | count << 12 | opcode << 23 | TYPE_CU << 28


def _mask(cu: int) -> bytes:
    if not 0 <= cu < MAX_CUS:
        raise _bad(f"compute unit {cu}: a context has at most {MAX_CUS}")
    return struct.pack("<I", 1 << cu)


def _packet(opcode: PacketOpcode, body: bytes) -> bytes:
    if len(body) % 4:
        raise _bad(f"a body of {len(body)} bytes is not one of words")
    return struct.pack("<I", header(opcode, len(body) // 4)) + body


def _pack(layout: str, what: str, *values: int) -> bytes:
    try:
        return struct.pack(layout, *values)
    except struct.error:
        shown = ", ".join(f"{value:#x}" for value in values)
        raise _bad(f"{what} does not fit: {shown}") from None


def _arguments(words: Sequence[int]) -> bytes:
    if len(words) > MAX_NPU_ARGUMENT_WORDS:
        raise _bad(f"{len(words)} argument words; the most is {MAX_NPU_ARGUMENT_WORDS}")
    return _pack(f"<{len(words)}I", "an argument", *words)


def start_cu(cu: int, register_map: bytes) -> bytes:
    """START_CU: compute unit ``cu`` (its index) gets ``register_map``, whole words of it.

    ProgramError for a map that is empty or that the driver's 4 KiB slot cannot hold.
    """
    if not register_map or len(register_map) > SLOT_BYTES - _SLOT_HEAD_BYTES:
        most = SLOT_BYTES - _SLOT_HEAD_BYTES
        raise _bad(f"a register map of {len(register_map)} bytes; 4 to {most} are possible")
    return _packet(PacketOpcode.START_CU, _mask(cu) + register_map)


def start_npu(
    cu: int, instructions: int, size: int, arguments: Sequence[int] = (), properties: int = 0
) -> bytes:
    """START_NPU: run ``size`` bytes of instructions at a device address. Arguments are words."""
    _check_stream("the instructions", instructions, size)
    body = _pack("<QII", "an operand", instructions, size, properties)
    return _packet(PacketOpcode.START_NPU, _mask(cu) + body + _arguments(arguments))


def _check_stream(what: str, address: int, size: int) -> None:
    if size == 0 or size % 4 or address % 4:
        raise _bad(f"{what}: {size} bytes at {address:#x} are no words")


def preempt(
    cu: int,
    instructions: tuple[int, int],
    save: tuple[int, int],
    restore: tuple[int, int],
    arguments: Sequence[int] = (),
    properties: int = 0,
    *,
    elf: bool = False,
) -> bytes:
    """NPU_PREEMPT: instructions with what saves and restores the array, each (address, bytes).

    With ``elf`` the driver passes no arguments on but the stream opcode.
    """
    parts = (instructions, save, restore)
    for what, (address, size) in zip(("instructions", "save", "restore"), parts, strict=True):
        _check_stream(what, address, size)
    addresses, sizes = zip(*parts, strict=True)
    body = _pack("<QQQIIII", "an operand", *addresses, *sizes, properties)
    opcode = PacketOpcode.NPU_PREEMPT_ELF if elf else PacketOpcode.NPU_PREEMPT
    return _packet(opcode, _mask(cu) + body + _arguments(arguments))


def chain(handles: Sequence[int]) -> bytes:
    """CMD_CHAIN: the packets in the command buffers ``handles``, all of one opcode, in order.

    ProgramError when there is none, one of handle 0, or more than fit into 4 KiB of slots.
    """
    if not handles or any(not 0 < handle < 1 << 32 for handle in handles):
        raise _bad(f"a chain of {len(handles)} buffers, none of handle 0, is needed")
    if len(handles) * _SLOT_HEAD_BYTES > SLOT_BYTES:
        raise _bad(f"a chain of {len(handles)}: the most is {SLOT_BYTES // _SLOT_HEAD_BYTES}")
    body = struct.pack(f"<6I{len(handles)}Q", len(handles), *([0] * 5), *handles)
    return _packet(PacketOpcode.CMD_CHAIN, body)


def check_chain(packets: Sequence[bytes]) -> None:
    """Refuse packets that cannot be chained: mixed opcodes, or together too large for the driver's
    slots, which it would find out only when it starts the chain (state NEW remains)."""
    if len({packet_header(packet).opcode for packet in packets}) > 1:
        raise _bad("the packets of a chain must have one opcode")
    total = sum(slot_size(packet) for packet in packets)
    if total > SLOT_BYTES:
        raise _bad(f"the packets of a chain need {total} bytes of slots; there are {SLOT_BYTES}")


def slot_size(packet: bytes) -> int:
    """Bytes that a packet takes of the driver's slots."""
    head = packet_header(packet)
    opcode = PacketOpcode(head.opcode)
    return _SLOT_HEAD_BYTES + 4 * (head.count - 1 - head.extra_masks) - _HEADS.get(opcode, 0)


def register_map(unit: ComputeUnit, values: dict[str, int]) -> bytes:
    """A kernel's register map: each argument's value at the offset that the container states.

    ProgramError for an argument that is missing, unknown, or too large for its size.
    """
    arguments = {argument.name: argument for argument in unit.kernel.arguments}
    if arguments.keys() != values.keys():
        odd = sorted(arguments.keys() ^ values.keys())
        raise _bad(f"{unit.name} takes {', '.join(arguments)}; wrong are {', '.join(odd)}")
    end = max((a.offset + a.size for a in arguments.values()), default=0)
    if end > SLOT_BYTES:
        raise _bad(f"{unit.name} has a register map of {end} bytes; the most is {SLOT_BYTES}")
    out = bytearray(-(-end // 4) * 4)
    for name, value in values.items():
        argument = arguments[name]
        if not 0 <= value < 1 << 8 * argument.size:
            raise _bad(f"{unit.name}: {name} = {value:#x} does not fit in {argument.size} bytes")
        place = slice(argument.offset, argument.offset + argument.size)
        out[place] = value.to_bytes(argument.size, "little")
    return bytes(out)


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """The fields of a header word."""

    state: int
    custom: int
    extra_masks: int
    count: int
    opcode: int
    type: int


def packet_header(packet: bytes | bytearray | memoryview) -> PacketHeader:
    """Take the header of a packet apart. ProgramError when there is none."""
    if len(packet) < 4:
        raise _bad(f"{len(packet)} bytes hold no header")
    (word,) = struct.unpack_from("<I", packet)
    return PacketHeader(
        word & 15, word >> 4 & 63, word >> 10 & 3, word >> 12 & 0x7FF, word >> 23 & 31, word >> 28
    )


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet taken apart: ``cu`` None where none is named; ``operands`` in the opcode's order."""

    opcode: int
    state: int
    cu: int | None
    operands: dict[str, int]
    body: bytes
    """What stands behind the operands: register map, arguments, or handles of a chain."""


_OPERANDS = {
    PacketOpcode.START_NPU: ("<QII", ("instructions", "size", "properties")),
    PacketOpcode.NPU_PREEMPT: (
        "<QQQIIII",
        ("instructions", "save", "restore", "size", "save_size", "restore_size", "properties"),
    ),
    PacketOpcode.CMD_CHAIN: ("<6I", ("commands", "submit_index", "error_index", "", "", "")),
}
_OPERANDS[PacketOpcode.NPU_PREEMPT_ELF] = _OPERANDS[PacketOpcode.NPU_PREEMPT]


def decode(data: bytes | bytearray | memoryview) -> Packet:
    """Read a packet as the driver does. ProgramError for one that it would not start."""
    head = packet_header(data)
    if head.opcode not in PacketOpcode._value2member_map_:
        raise _bad(f"opcode {head.opcode}: the driver takes no such packet")
    opcode = PacketOpcode(head.opcode)
    masks = 0 if opcode is PacketOpcode.CMD_CHAIN else 1 + head.extra_masks
    end = 4 + 4 * head.count
    if head.count <= masks or end > len(data):
        raise _bad(f"count {head.count} with {masks} mask words in {len(data)} bytes")
    cu = None
    # The first mask word that is not zero decides, and the driver forgets which word it was.
    for (mask,) in struct.iter_unpack("<I", bytes(data[4 : 4 + 4 * masks])):
        if mask:
            cu = (mask & -mask).bit_length() - 1
            break
    if cu is None and opcode not in (PacketOpcode.CMD_CHAIN, PacketOpcode.NPU_PREEMPT_ELF):
        raise _bad("no compute unit is named: the mask is empty")
    payload = bytes(data[4 + 4 * masks : end])
    layout, names = _OPERANDS.get(opcode, ("<", ()))
    size = struct.calcsize(layout)
    if len(payload) < size:
        raise _bad(f"{opcode.name} needs {size} bytes, {len(payload)} are there")
    values = struct.unpack_from(layout, payload)
    operands = {name: value for name, value in zip(names, values, strict=True) if name}
    body = payload[size:]
    if opcode is PacketOpcode.CMD_CHAIN:
        commands = operands["commands"]
        if len(body) < 8 * commands:
            raise _bad(f"a chain of {commands} commands in {len(body)} bytes")
        body = body[: 8 * commands]
    return Packet(head.opcode, head.state, cu, operands, body)


_HEALTH = struct.Struct("<8I")
HEALTH_VERSION = 1
GENERATION_AIE2 = 0


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What the firmware said of a context that hung, in a packet of state TIMEOUT.

    ``txn_op_idx`` is the operation of the instruction stream at which it stopped.
    """

    txn_op_idx: int
    ctx_pc: int
    fatal_error_type: int
    fatal_error_exception_type: int
    fatal_error_exception_pc: int
    fatal_error_app_module: int

    def encode(self) -> bytes:
        return _HEALTH.pack(
            HEALTH_VERSION,
            GENERATION_AIE2,
            self.txn_op_idx,
            self.ctx_pc,
            self.fatal_error_type,
            self.fatal_error_exception_type,
            self.fatal_error_exception_pc,
            self.fatal_error_app_module,
        )

    def __str__(self) -> str:
        text = f"stopped at operation {self.txn_op_idx}, controller at {self.ctx_pc:#x}"
        if self.fatal_error_type:
            text += (
                f", fatal error {self.fatal_error_type:#x} "
                f"(exception {self.fatal_error_exception_type:#x} at "
                f"{self.fatal_error_exception_pc:#x}, module {self.fatal_error_app_module:#x})"
            )
        return text


def health(packet: bytes | bytearray | memoryview) -> HealthRecord | None:
    """The record in a packet that failed; None where there is none (all ones, or another form)."""
    if len(packet) < 4 + _HEALTH.size or packet_header(packet).state not in FAILED:
        return None
    version, generation, *rest = _HEALTH.unpack_from(packet, 4)
    if (version, generation) != (HEALTH_VERSION, GENERATION_AIE2):
        return None
    return HealthRecord(*rest)


def state_of(packet: bytes | bytearray | memoryview) -> State:
    """The state of a packet. ProgramError for a number that is none."""
    number = packet_header(packet).state
    if number not in State._value2member_map_:
        raise _bad(f"state {number} is none that the driver sets")
    return State(number)
