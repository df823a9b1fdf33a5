# SPDX-License-Identifier: MIT
import contextlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import registers, text
from npukit.programs.rk3588.program import (
    Assembler,
    Program,
    Task,
    encode,
    rknpu_tasks,
    rocket_tasks,
)
from npukit.programs.rk3588.registers import CNA, CORE, DDMA, DPU, PC, REGISTERS, Register

RK3588 = SHARED / "data" / "rk3588"


@needs_shared
def test_every_register_and_field_is_the_manuals() -> None:
    blocks = json.loads((RK3588 / "registers.json").read_text())["blocks"]
    expected = {
        (block, name, int(row["offset"], 16)): {
            field: tuple(bits)
            for field, bits in row["fields"].items()
            if not field.startswith("RESERVED")
        }
        for block, rows in blocks.items()
        for name, row in rows.items()
    }
    found = {
        (register.block.__name__, register.name, register.offset): {
            field.name: (field.hi, field.lo)
            for field in register.fields.values()
            if not field.undocumented
        }
        for register in REGISTERS.values()
        if not register.undocumented
    }
    assert found == expected


def test_what_no_manual_describes_is_marked() -> None:
    undocumented = {str(register) for register in REGISTERS.values() if register.undocumented} | {
        f"{register}.{field.name}"
        for register in REGISTERS.values()
        for field in register.fields.values()
        if field.undocumented
    }
    assert undocumented == {
        "CORE.UNDOC_3030",
        "DPU.UNDOC_40C4",
        "CNA.S_POINTER.UNDOC_CORE",
        "CNA.CONV_CON2.UNDOC_CORE_VARIANT",
        "CNA.CBUF_CON1.UNDOC_MORE_ENTRIES",
        "CORE.S_POINTER.UNDOC_CORE",
        "DPU.LUT_ACCESS_DATA.UNDOC_SIGN",
        "PC.REGISTER_AMOUNTS.UNDOC_CORE_SYNC",
    }


def test_fields_of_a_register_do_not_overlap() -> None:
    for register in REGISTERS.values():
        assert sum(f.width for f in register.fields.values()) == register.mask.bit_count()


def test_a_field_that_does_not_fit_names_register_field_value_and_width() -> None:
    with pytest.raises(ProgramError) as caught:
        encode(CNA.DATA_SIZE0, {"DATAIN_WIDTH": 2048})
    assert "CNA.DATA_SIZE0.DATAIN_WIDTH = 2048 (0x800) does not fit in 11 bits" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ProgramError, match="has no field DATAIN_WITH"):
        encode(CNA.DATA_SIZE0, {"DATAIN_WITH": 1})
    with pytest.raises(ProgramError, match=r"-1 .* does not fit in 11 bits"):
        encode(CNA.DATA_SIZE0, {"DATAIN_WIDTH": -1})
    assert encode(CNA.DMA_CON2, {"SURF_STRIDE": -3}) == 0x0FFFFFFD
    with pytest.raises(ProgramError, match="28 signed bits"):
        encode(CNA.DMA_CON2, {"SURF_STRIDE": -(1 << 27) - 1})


def test_reserved_bits_and_unreachable_blocks_are_refused() -> None:
    asm = Assembler()
    with pytest.raises(ProgramError, match="reserved"):
        asm.write_value(CNA.CONV_CON3, 1 << 31)
    with pytest.raises(ProgramError, match="cannot be reached"):
        asm.write(DDMA.CFG_STATUS)
    with pytest.raises(ProgramError, match="no block 'NPU' can be enabled"):
        asm.finish("NPU")


@given(st.sampled_from(sorted(REGISTERS)), st.data())
def test_encoding_agrees_with_shifting_by_hand(offset: int, data: st.DataObject) -> None:
    register = REGISTERS[offset]
    values = {}
    expected = 0
    for field in register.fields.values():
        low = -(1 << (field.width - 1)) if field.signed else 0
        values[field.name] = data.draw(st.integers(low, (1 << field.width) - 1))
        for bit in range(field.width):
            expected |= (values[field.name] >> bit & 1) << field.lo + bit
    assert encode(register, values) == expected
    for field in register.fields.values():
        back = field.get(expected)
        assert (back - values[field.name]) % (1 << field.width) == 0


def three_tasks() -> Program:
    programs = []
    for extra in range(3):
        asm = Assembler()
        for index in range(3 + 5 * extra):
            asm.write(DPU.EW_OP_VALUE_0, EW_OPERAND_0=index)
        programs.append(asm.finish("CNA", "CORE", "DPU"))
    return Program.join(programs)


def test_a_chain_leads_from_task_to_task() -> None:
    program = three_tasks()
    address = 0xFFF00000
    chained = program.chained(address)
    assert [task.offset for task in program.tasks] == [0, 8, 24]
    assert [task.count for task in program.tasks] == [7, 12, 17]
    seen = [0]
    offset, count = 0, program.tasks[0].count
    while True:
        trailer = [int(word) for word in chained.words[offset + count - 4 : offset + count]]
        assert trailer[2] == 0x0041 << 48
        assert trailer[3] == 0x0081 << 48 | 0x0D << 16 | 0x0008
        assert trailer[0] & 0xFFFF == PC.BASE_ADDRESS.offset
        following = trailer[0] >> 16 & 0xFFFFFFFF
        if not following:
            break
        pairs = (trailer[1] >> 16 & 0xFFFF) + 1
        offset = (following - address) // 8
        count = next(task.count for task in program.tasks if task.offset == offset)
        assert pairs == (count + 1) // 2
        seen.append(offset)
    assert seen == [0, 8, 24]


def test_task_tables_of_both_drivers() -> None:
    program = three_tasks()
    vendor = rknpu_tasks(program, 0x10000)
    mainline = rocket_tasks(program, 0x10000)
    for task, row, other in zip(program.tasks, vendor, mainline, strict=True):
        assert row.regcmd_addr == other.regcmd == 0x10000 + 8 * task.offset
        assert row.regcfg_amount + 4 == other.regcmd_count == task.count
        assert (row.enable_mask, row.int_mask, row.int_clear) == (0x0D, 0x300, 0x1FFFF)


@pytest.mark.parametrize("address", [8, 0x100000008, (1 << 32) - 64, -16])
def test_a_place_that_the_pc_cannot_reach_is_refused(address: int) -> None:
    with pytest.raises(ProgramError, match="cannot stand"):
        three_tasks().chained(address)


def test_programs_are_values() -> None:
    one, two = three_tasks(), three_tasks()
    assert one == two
    assert one != two.chained(0x1000)
    assert one != "something else"
    with pytest.raises(ValueError, match="read-only"):
        one.words[0] = 0
    assert repr(one) == "<Program of 3 tasks, 41 words>"
    assert Program([], []) == Program.join([])


def register_words() -> st.SearchStrategy[int]:
    def word(register: Register) -> st.SearchStrategy[int]:
        return st.integers(0, 0xFFFFFFFF).map(
            lambda value: (
                register.block.target << 48 | (value & register.mask) << 16 | register.offset
            )
        )

    reachable = [r for r in REGISTERS.values() if r.block.target]
    return st.sampled_from(reachable).flatmap(word)


@settings(max_examples=200)
@given(st.lists(st.one_of(register_words(), st.integers(0, (1 << 64) - 1)), max_size=20))
def test_a_listing_assembles_back_to_the_same_words(words: list[int]) -> None:
    array = np.array(words, dtype=np.uint64)
    assert text.assemble(text.disassemble(array)).tolist() == words


@given(st.binary(max_size=64))
def test_any_text_is_assembled_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProgramError):
        text.assemble(data.decode("latin-1"))


def test_a_wrong_line_is_named() -> None:
    for line, reason in (
        ("CNA.NOTHING 1", "there is no register CNA.NOTHING"),
        ("CNA.DATA_SIZE0 DATAIN_WIDTH=4096", "does not fit in 11 bits"),
        ("CNA.DATA_SIZE0 DATAIN_WIDTH=1 DATAIN_WIDTH=1", "given twice"),
        ("CNA.CONV_CON3 0x80000000", "reserved"),
        ("DDMA.CFG_STATUS 0", "cannot be reached"),
        ("enable", "no block"),
        ("word 0x10000000000000000", "64 bits"),
    ):
        with pytest.raises(ProgramError, match="line 2: .*" + reason):
            text.assemble("nop ; fine\n" + line)


@needs_shared
def test_every_captured_stream_assembles_back_unchanged() -> None:
    captures = json.loads((RK3588 / "hardware_conv_fp16.json").read_text())["captures"]
    tasks = [task for capture in captures for task in capture["tasks"]]
    assert len(tasks) > 50
    for task in tasks:
        words = np.array([int(word, 16) for word in task["regcmd"]], dtype=np.uint64)
        listing = text.disassemble(words)
        assert np.array_equal(text.assemble(listing), words)
        # Every word of real streams has a name.
        assert "word 0x" not in listing


@needs_shared
def test_chain_words_of_captured_streams_agree_with_the_rule() -> None:
    links = 0
    for capture in json.loads((RK3588 / "hardware_conv_fp16.json").read_text())["captures"]:
        tasks = capture["tasks"]
        for task, following in itertools.pairwise(tasks):
            words = [int(word, 16) for word in task["regcmd"]]
            if len(words) != task["regcfg_amount"] + 4:
                continue
            chain, amount = words[-4], words[-3]
            if chain >> 16 & 0xFFFFFFFF == 0:
                continue
            assert chain & 0xFFFF == PC.BASE_ADDRESS.offset
            assert chain >> 16 & 0xFFFFFFFF == int(following["regcmd_addr"], 16)
            expected = Task(0, following["regcfg_amount"] + 4, 0).amount
            assert amount >> 16 & 0xFFFF == expected
            links += 1
    assert links == 44


def test_words_are_read_from_binary_and_from_hexadecimal() -> None:
    words = three_tasks().words
    assert np.array_equal(text.read_words(words.astype("<u8").tobytes()), words)
    lines = "\n".join(f"{int(word):016x}" for word in words)
    assert np.array_equal(text.read_words(lines.encode()), words)
    with pytest.raises(ProgramError, match="9 bytes"):
        text.read_words(b"\xff" * 9)


def test_tasks_are_found_by_their_enable_words() -> None:
    program = three_tasks()
    found = text.split_tasks(program.words)
    assert found == [(task.offset, task.count) for task in program.tasks]
    with pytest.raises(ProgramError, match="follow the last enable"):
        text.split_tasks(program.words[:-1])


def test_registers_are_found_by_name() -> None:
    assert registers.find("CORE.MISC_CFG") is CORE.MISC_CFG
    for name in ("CORE.NOTHING", "NOTHING.MISC_CFG", "CORE", "", "CORE.registers"):
        with pytest.raises(KeyError):
            registers.find(name)


def test_what_no_stream_can_reach_is_shown_as_a_word() -> None:
    words = np.array([0x8000, 0xF008, 0x9000], dtype=np.uint64)
    listing = text.disassemble(words)
    assert listing.count("word 0x") == 3
    assert np.array_equal(text.assemble(listing), words)
    with pytest.raises(ProgramError, match="not hexadecimal"):
        text.read_words(b"nop\nnop\n")
