# SPDX-License-Identifier: MIT
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.ioctl import ProgramError
from npukit.programs.xdna import ert
from npukit.programs.xdna.xclbin import NpuKernel, Xclbin, build_npu

UNIT = Xclbin(build_npu([NpuKernel("K", b"pdi", 2)], column_width=1)).compute_unit()


def words(packet: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packet) // 4}I", packet))


def test_the_register_map_of_a_stream_kernel_packs_its_addresses() -> None:
    values = {"opcode": 3, "instr": 0x4000000, "ninstr": 32, "bo0": 0x1122334455667788, "bo1": 7}
    packet = ert.start_cu(0, ert.register_map(UNIT, values))
    # count = 6 + 2n and data = mask + 5 + 2n words, as mlir-aie's packets have.
    assert words(packet) == [
        0x30000000 | 10 << 12 | 1, 1, 3, 0, 0x4000000, 0, 32, 0x55667788, 0x11223344, 7, 0,
    ]  # fmt: skip
    assert ert.packet_header(packet) == ert.PacketHeader(1, 0, 0, 10, 0, 3)
    found = ert.decode(packet)
    assert (found.cu, found.opcode, found.state) == (0, 0, ert.State.NEW)
    assert found.body == packet[8:]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"opcode": 3}, "wrong are bo0, bo1, instr, ninstr"),
        ({"opcode": 3, "instr": 0, "ninstr": 1 << 32, "bo0": 0, "bo1": 0}, "in 4 bytes"),
        ({"opcode": 3, "instr": 0, "ninstr": 1, "bo0": -1, "bo1": 0}, "bo0"),
        ({"opcode": 3, "instr": 0, "ninstr": 1, "bo0": 0, "bo1": 0, "x": 1}, "wrong are x"),
    ],
)
def test_a_register_map_is_checked(values: dict[str, int], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        ert.register_map(UNIT, values)


@given(
    cu=st.integers(0, 31),
    address=st.integers(0, 2**62 - 1).map(lambda v: 4 * v),
    size=st.integers(1, 2**30 - 1).map(lambda v: 4 * v),
    arguments=st.lists(st.integers(0, 2**32 - 1), max_size=26),
    properties=st.integers(0, 2**32 - 1),
    elf=st.booleans(),
)
def test_packets_are_read_as_they_were_built(
    cu: int, address: int, size: int, arguments: list[int], properties: int, elf: bool
) -> None:
    raw = struct.pack(f"<{len(arguments)}I", *arguments)
    found = ert.decode(ert.start_npu(cu, address, size, arguments, properties))
    assert (found.opcode, found.cu, found.body) == (20, cu, raw)
    assert found.operands == {"instructions": address, "size": size, "properties": properties}
    packet = ert.preempt(cu, (address, size), (0, 4), (8, 12), arguments, properties, elf=elf)
    found = ert.decode(packet)
    assert (found.opcode, found.cu, found.body) == (22 if elf else 21, cu, raw)
    assert found.operands == {
        "instructions": address, "save": 0, "restore": 8, "size": size, "save_size": 4,
        "restore_size": 12, "properties": properties,
    }  # fmt: skip
    assert ert.slot_size(packet) == 52 + len(raw)


def test_a_chain_names_command_buffers() -> None:
    packet = ert.chain([5, 6, 7])
    assert words(packet) == [
        0x30000000 | 19 << 23 | 12 << 12 | 1,
        3,
        0,
        0,
        0,
        0,
        0,
        5,
        0,
        6,
        0,
        7,
        0,
    ]
    found = ert.decode(packet)
    assert (found.cu, found.operands["commands"]) == (None, 3)
    assert struct.unpack("<3Q", found.body) == (5, 6, 7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ert.start_cu(32, bytes(4)), "compute unit 32"),
        (lambda: ert.start_cu(-1, bytes(4)), "compute unit -1"),
        (lambda: ert.start_cu(0, b""), "0 bytes"),
        (lambda: ert.start_cu(0, bytes(4048)), "4048 bytes"),
        (lambda: ert.start_cu(0, bytes(5)), "not one of words"),
        (lambda: ert.start_npu(0, 2, 4), "no words"),
        (lambda: ert.start_npu(0, 0, 0), "no words"),
        (lambda: ert.start_npu(0, 0, 4, [0] * 27), "27 argument words"),
        (lambda: ert.start_npu(0, 0, 4, [1 << 32]), "an argument"),
        (lambda: ert.start_npu(0, 1 << 64, 4), "an operand"),
        (lambda: ert.preempt(0, (0, 4), (0, 4), (0, 0)), "restore"),
        (lambda: ert.chain([]), "chain of 0"),
        (lambda: ert.chain([1, 0]), "handle 0"),
        (lambda: ert.chain([1] * 79), "chain of 79"),
        (lambda: ert.header(0, 0), "0 words"),
        (lambda: ert.header(0, 2048), "2048 words"),
        (
            lambda: ert.check_chain([ert.start_npu(0, 0, 4), ert.start_cu(0, bytes(4))]),
            "one opcode",
        ),
        (lambda: ert.check_chain([ert.start_cu(0, bytes(4000))] * 2), "8104 bytes"),
    ],
)
def test_what_the_driver_would_not_start_is_refused(build: object, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no header"),
        (struct.pack("<II", 1 | 1 << 12 | 18 << 23, 1), "opcode 18"),
        (struct.pack("<II", 1 | 1 << 12, 1), "count 1 with 1 mask"),
        (struct.pack("<III", 1 | 3 << 12, 1, 1), "count 3"),
        (struct.pack("<III", 1 | 2 << 12, 0, 1), "mask is empty"),
        (struct.pack("<III", 1 | 2 << 12 | 20 << 23, 1, 1), "START_NPU needs 16"),
        (struct.pack("<9I", 1 | 8 << 12 | 19 << 23, 2, *[0] * 7), "chain of 2"),
        (struct.pack("<9I", 1 | 8 << 12 | 19 << 23, 2**32 - 1, *[0] * 7), "chain of 4294967295"),
    ],
)
def test_a_broken_packet_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        ert.decode(data)


def test_the_first_mask_word_that_is_set_names_the_unit_by_its_bit_alone() -> None:
    packet = struct.pack("<5I", 1 | 4 << 12 | 2 << 10, 0, 0b1100, 1, 9)
    found = ert.decode(packet)
    assert (found.cu, found.body) == (2, struct.pack("<I", 9))


def test_state_and_health_of_a_failed_packet() -> None:
    record = ert.HealthRecord(17, 0x2000, 3, 4, 0x500, 6)
    packet = bytearray(ert.start_cu(0, bytes(64)))
    assert ert.health(packet) is None
    assert ert.state_of(packet) is ert.State.NEW
    packet[0] = packet[0] & 0xF0 | ert.State.TIMEOUT
    packet[4:] = b"\xff" * (len(packet) - 4)
    assert ert.health(packet) is None
    packet[4 : 4 + 32] = record.encode()
    assert ert.health(packet) == record
    assert ert.state_of(packet) in ert.FAILED
    assert "operation 17" in str(record)
    assert "exception 0x4" in str(record)
    packet[0] = packet[0] & 0xF0 | 12
    with pytest.raises(ProgramError, match="state 12"):
        ert.state_of(packet)
