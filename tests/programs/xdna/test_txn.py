# SPDX-License-Identifier: MIT
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit.ioctl import ProgramError
from npukit.programs.xdna import registers, txn
from npukit.programs.xdna.registers import MM2S, S2MM, BufferDescriptor
from npukit.programs.xdna.txn import Assembler, Header, Op, Opcode, Patch, Transaction, Wait

GOLDEN = SHARED / "data" / "xdna" / "insts_v1_0.bin"


@needs_shared
def test_the_stream_that_amds_tool_agreed_on_decodes_to_its_five_operations() -> None:
    data = GOLDEN.read_bytes()
    stream = txn.read(data)
    assert stream.header == Header((1, 0), txn.GENERATION_AIE2, 6, 4, 1)
    write, block, patch, mask, wait = stream
    assert (write.code, write.register, write.value) == (Opcode.WRITE, 0x21F000, 1)
    assert (block.code, block.register) == (Opcode.BLOCKWRITE, 0x1D000)
    assert list(block.data) == [1024, 0, 0, 0, 0, 1 << 25, 0, 1 << 25]
    assert patch.patch == Patch(0x1D004, 0, 0)
    assert (mask.register, mask.value, mask.mask) == (0x1D214, 1 << 31, 1 << 31)
    assert wait.wait == Wait(S2MM, 0, 0, 1, 1, 0)
    assert stream.patches() == [Patch(0x1D004, 0, 0)]
    assert stream.arguments() == 1
    assert stream.to_bytes() == data


@needs_shared
def test_its_text_names_registers_and_assembles_to_the_same_bytes() -> None:
    data = GOLDEN.read_bytes()
    text = str(txn.read(data))
    assert text.splitlines() == [
        "txn 1.0 generation=3 rows=6 columns=4 memtile_rows=1",
        "write core(0,2).LOCK0_VALUE 00000001",
        "blockwrite shim(0,0).DMA_BD0_0 00000400 00000000 00000000 00000000 00000000 02000000 "
        "00000000 02000000",
        "ddr_patch shim(0,0).DMA_BD0_1 0 00000000",
        "maskwrite shim(0,0).DMA_MM2S_0_TASK_QUEUE 80000000 80000000",
        "tct s2mm 0 0 1 1 0",
    ]
    assert txn.assemble(text).to_bytes() == data
    assert txn.explain(txn.read(data)) == [
        "core tile (0,2): lock 0 = 1",
        "shim tile (0,0), BD 0: 1024 words",
        "shim(0,0).DMA_BD0_1 becomes the address of argument 0 + 0x0",
        "shim tile (0,0): MM2S channel 0 runs BD 0, then a token",
        "wait until S2MM channel 0 of tile (0,0) has finished a task",
    ]


u32 = st.integers(0, 2**32 - 1)
operations = st.one_of(
    st.tuples(st.just("write"), u32, u32),
    st.tuples(st.just("block_write"), u32, st.lists(u32, max_size=9)),
    st.tuples(st.sampled_from(["mask_write", "mask_poll"]), u32, u32, u32),
    st.tuples(st.just("ddr_patch"), u32, st.integers(0, 255), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("ddr_patch"), u32, u32, st.integers(0, 2**64 - 1), st.just(True)),
    st.tuples(st.just("wait"), st.integers(0, 255), *[st.integers(0, 255)] * 5),
)
new_operations = st.one_of(
    operations,
    st.tuples(st.just("mask_poll_busy"), u32, u32, u32),
    st.tuples(st.just("noop")),
    st.tuples(st.just("preempt"), st.integers(0, 255)),
    st.tuples(st.just("load_pdi"), st.integers(0, 65535), u32, st.integers(0, 2**64 - 1)),
    st.tuples(st.just("raw"), u32.map(lambda v: v & 0xFFFFFF00 | 5)),
    st.tuples(st.just("raw"), st.just(0x84), st.just(12), u32),
    st.tuples(st.just("raw"), u32.map(lambda v: v & 0xFFFFFF00), u32, u32),
    st.tuples(st.just("raw"), st.just(0x80), st.just(16), u32, u32),
    st.tuples(st.just("raw"), st.just(0x81), st.just(24), u32, u32, u32, u32),
    st.tuples(st.just("raw"), st.just(10), u32, u32, u32),
    st.tuples(st.just("raw"), st.just(200)),
)
old_operations = st.one_of(
    operations,
    st.tuples(st.just("raw"), st.just(0), u32, u32, u32, u32, st.just(24)),
    st.tuples(st.just("raw"), u32.map(lambda v: v & 0xFFFFFF00), u32, u32, st.just(0), u32,
              st.just(24)),
    st.tuples(st.just("raw"), u32.map(lambda v: v & 0xFFFFFF00 | 3), u32, u32, u32, u32, u32,
              st.just(28)),
    st.tuples(st.just("raw"), u32.map(lambda v: v & 0xFFFFFF00 | 1), u32, u32, st.just(20), u32),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    old=st.booleans(),
    sizes=st.tuples(*[st.integers(0, 255)] * 4),
    pad=st.integers(0, 65535),
)
def test_every_stream_survives_text_and_hex(
    data: st.DataObject, old: bool, sizes: tuple[int, ...], pad: int
) -> None:
    header = Header((0, 1) if old else (1, 0), *sizes[:4], pad)  # type: ignore[misc]
    asm = Assembler(header)
    calls = data.draw(st.lists(old_operations if old else new_operations, max_size=12))
    for name, *operands in calls:
        getattr(asm, name)(*operands)
    stream = asm.finish()
    assert len(stream) == len(calls) == len(list(stream))
    assert stream.header == header
    raw = stream.to_bytes()
    assert txn.assemble(str(stream)).to_bytes() == raw
    assert txn.read(raw) == txn.read(txn.to_hex(stream).encode()) == stream
    assert txn.read(str(stream).encode()) == stream
    assert len(txn.explain(stream)) == len(stream)


def test_old_and_new_say_the_same() -> None:
    def build(version: tuple[int, int]) -> Transaction:
        asm = Assembler(Header(version))
        asm.write(0x2021D204, 7)
        asm.block_write(0x1D000, [1, 2, 3])
        asm.mask_write(0x1D204, 1, 3)
        asm.mask_poll(0x1D204, 1, 3)
        asm.ddr_patch(0x1D004, 3, 1 << 40)
        asm.wait(MM2S, 5, 4, 3, 2, 1)
        return asm.finish()

    def meaning(op: Op) -> tuple[object, ...]:
        return op.code, op.register, op.value, op.mask, list(op.data), op.patch, op.wait

    old, new = build((0, 1)), build((1, 0))
    assert [meaning(op) for op in old] == [meaning(op) for op in new]
    assert old.to_bytes()[:2] == b"\0\1"
    # The head of version 0.1 repeats the tile: code, column, row.
    assert old.to_bytes()[16:19] == bytes((0, 16, 2))
    assert [len(op.words) for op in old] == [6, 7, 8, 8, 12, 4]
    assert [len(op.words) for op in new] == [3, 6, 4, 4, 6, 4]


def test_both_forms_of_a_patch_are_told_apart_by_their_size() -> None:
    asm = Assembler()
    asm.ddr_patch(0x1D024, 2, 64)
    asm.ddr_patch(0x1D044, 300, 64, long=True)
    assert asm.finish().patches() == [Patch(0x1D024, 2, 64), Patch(0x1D044, 300, 64)]
    assert asm.finish().arguments() == 301


GOOD = Assembler()
GOOD.write(0x1D204, 1)
GOOD.block_write(0x1D000, [1, 2])
BYTES = GOOD.finish().to_bytes()


def changed(offset: int, value: int) -> bytes:
    data = bytearray(BYTES)
    struct.pack_into("<I", data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (BYTES[:-1], "words of 4"),
        (BYTES[:-4], "the header states 48 bytes, there are 44"),
        (changed(0, 2), "version 2.0"),
        (changed(8, 3), "states 3 operations, there are 2"),
        (changed(8, 2**32 - 1), "operations"),
        (changed(12, 2**32 - 4), "states 4294967292 bytes"),
        (changed(36, 2**32 - 4), "is cut off"),
        (changed(36, 8), "makes no sense"),
        (changed(36, 13), "makes no sense"),
        (changed(28, 2), "operation 1 at byte 28 is BLOCKSET"),
        (changed(28, 0x7F), "is op 127"),
        (changed(28, 0x80), "is cut off"),  # the register is taken for a size
    ],
)
def test_a_broken_stream_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(message)):
        txn.read(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("write shim(0,0).DMA_BD0_0 1", "line 1: the first line is"),
        ("txn 2.0", "line 1"),
        ("txn 1.0 rows=256", "line 1: instruction stream: rows 256 does not fit in 8 bits"),
        ("txn 1.0 cows=2", "no part of a header"),
        ("txn 1.0\nwrite shim(0,0).NOTHING 1", "line 2: a shim tile has no register NOTHING"),
        ("txn 1.0\nwrite mem(0,2).DMA_BD0_0 1", "row 2 holds core tiles"),
        ("txn 1.0\nwrite shim(128,0).DMA_BD0_0 1", "no tile"),
        ("txn 1.0\nwrite shim(0,0).0x100000 1", "no tile"),
        ("txn 1.0\nwrite nowhere 1", "is no register"),
        ("txn 1.0\n\nwrite shim(0,0).DMA_BD0_0 100000000", "line 3: "),
        ("txn 1.0\nwrite shim(0,0).DMA_BD0_0", "line 2: write does not take"),
        ("txn 1.0\nfly 1", "there is no operation fly"),
        ("txn 1.0\ntct up 0 0 1 1 0", "neither s2mm nor mm2s"),
        ("txn 1.0\ntct s2mm 0 0 1 1 256", "line 2: "),
        ("txn 1.0\npreempt 256", "line 2: "),
        ("txn 1.0\nraw", "line 2: "),
        ("txn 1.0\nraw 00000001", "makes no sense|cut off"),
        ("txn 0.1\nnoop", "NOOP is not in version 0.1"),
        ("txn 0.1\nwrite shim(0,0).DMA_BD0_0 1 head=1", "head="),
    ],
)
def test_wrong_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        txn.assemble(text)


def test_a_file_is_read_by_its_contents() -> None:
    stream = Transaction(BYTES)
    assert txn.read(b"  " + txn.to_hex(stream).lower().encode() + b"\n\n") == stream
    assert txn.read(("\n" + str(stream)).encode()) == stream
    for junk in (b"hello world, no stream", b"\xff" * 64, b"00000001 zz"):
        with pytest.raises(ProgramError):
            txn.read(junk)


def test_registers_have_the_addresses_of_amds_headers() -> None:
    assert registers.register(0, 0, "DMA_BD1_1") == 0x1D024
    assert registers.register(2, 0, "DMA_MM2S_1_TASK_QUEUE") == 2 << 25 | 0x1D21C
    assert registers.register(0, 1, "DMA_BD47_7") == 1 << 20 | 0xA05FC
    assert registers.register(0, 1, "LOCK63_VALUE") == 1 << 20 | 0xC03F0
    assert registers.register(0, 1, "DMA_S2MM_5_START_QUEUE") == 1 << 20 | 0xA062C
    assert registers.register(0, 2, "STREAM_SWITCH_MASTER_CONFIG_NORTH5") == 2 << 20 | 0x3F048
    assert registers.register(0, 2, "STREAM_SWITCH_SLAVE_CONFIG_AIE_CORE0") == 2 << 20 | 0x3F100
    assert registers.register(0, 0, "STREAM_SWITCH_SLAVE_CONFIG_NORTH_3") == 0x3F144
    assert registers.register(1, 2, "DMA_MM2S_STATUS_1") == 1 << 25 | 2 << 20 | 0x1DF14
    assert registers.name_of(3 << 25 | 1 << 20 | 0x123) == "mem(3,1).0x123"
    assert registers.parse_name("mem(3,1).0x123") == 3 << 25 | 1 << 20 | 0x123
    for kind in registers.KINDS:
        assert len(registers.NAMES[kind]) == len(registers.OFFSETS[kind])


@st.composite
def descriptors(draw: st.DrawFn) -> tuple[str, BufferDescriptor]:
    kind = draw(st.sampled_from(registers.KINDS))
    layout = registers.LAYOUTS[kind]

    def number(name: str) -> int:
        place = layout.fields[name]
        return draw(st.integers(place.bias, (1 << place.width) - 1 + place.bias))

    dimensions = []
    for step, wrap in layout.dimensions:
        size = 0 if wrap is None else draw(st.integers(0, (1 << wrap.width) - 1))
        dimensions.append((size, draw(st.integers(1, 1 << step.width))))
    dimensions = dimensions[: draw(st.integers(0, len(dimensions)))]
    while dimensions and dimensions[-1] == (0, 1):
        dimensions.pop()
    base = draw(st.integers(0, 2**46 - 1)) * 4 if kind == registers.SHIM else number("base")
    lock = st.integers(-64, 63)
    return kind, BufferDescriptor(
        length=number("length"),
        base=base,
        dimensions=tuple(dimensions),
        iteration_step=number("iteration_step"),
        iteration_wrap=number("iteration_wrap"),
        iteration_current=number("iteration_current"),
        next=number("next") if draw(st.booleans()) else None,
        acquire=(number("acquire"), draw(lock)) if draw(st.booleans()) else None,
        release=(number("release"), draw(lock)),
        valid=draw(st.booleans()),
    )


@settings(max_examples=200, deadline=None)
@given(descriptors())
def test_a_descriptor_is_decoded_as_it_was_encoded(case: tuple[str, BufferDescriptor]) -> None:
    kind, bd = case
    words = bd.encode(kind)
    assert len(words) == registers.LAYOUTS[kind].words
    assert BufferDescriptor.decode(kind, words) == bd
    assert bd.describe()


@pytest.mark.parametrize(
    ("kind", "bd", "message"),
    [
        ("mem", BufferDescriptor(1 << 17), "length = 131072: the field has 17 bits"),
        ("core", BufferDescriptor(1 << 14), "length"),
        ("shim", BufferDescriptor(4, base=2), "base"),
        ("shim", BufferDescriptor(4, base=1 << 48), "base"),
        ("mem", BufferDescriptor(4, base=1 << 19), "base"),
        ("shim", BufferDescriptor(4, dimensions=((1024, 1),)), "size 0 = 1024"),
        ("shim", BufferDescriptor(4, dimensions=((2, 0),)), "step 0 = 0"),
        ("shim", BufferDescriptor(4, dimensions=((2, 1), (2, 1), (2, 1))), "last dimension"),
        ("core", BufferDescriptor(4, dimensions=((2, 1),) * 4), "has 3 dimensions"),
        ("shim", BufferDescriptor(4, acquire=(16, 1)), "acquire = 16"),
        ("shim", BufferDescriptor(4, acquire=(1, 64)), "7 signed bits"),
        ("mem", BufferDescriptor(4, next=64), "next = 64"),
        ("mem", BufferDescriptor(4, iteration_wrap=65), "iteration_wrap = 65"),
    ],
)
def test_what_does_not_fit_a_descriptor_is_named(
    kind: str, bd: BufferDescriptor, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        bd.encode(kind)


def test_fields_stand_where_amds_headers_put_them() -> None:
    mem = BufferDescriptor(
        0x1FFFF, 0x7FFFF, ((1023, 131072),), next=63, acquire=(255, -1), release=(255, 1)
    ).encode("mem")
    assert mem == [
        0x1FFFF, 0x03F00000 | 0x80000 | 0x7FFFF, 0x07FE0000 | 0x1FFFF, 0, 0, 0, 0,
        0x80000000 | 0x01000000 | 0x00FF0000 | 0x8000 | 0x7F00 | 0xFF,
    ]  # fmt: skip
    shim = BufferDescriptor(7, 0xFFFF_FFFF_FFFC, ((1023, 1 << 20), (5, 2), (0, 3))).encode("shim")
    assert shim == [7, 0xFFFFFFFC, 0xFFFF, 0x3FF00000 | 0xFFFFF, 5 << 20 | 1, 2, 0, 1 << 25]
    core = BufferDescriptor(3, 5, next=15, release=(15, -1)).encode("core")
    assert core == [5 << 14 | 3, 0, 0, 0, 0, 15 << 27 | 1 << 26 | 1 << 25 | 0x7F << 18 | 15 << 13]


def test_the_assembler_speaks_of_tiles_and_refuses_what_they_lack() -> None:
    asm = Assembler()
    asm.buffer_descriptor(1, 1, 47, BufferDescriptor(4))
    asm.start(1, 1, MM2S, 5, 47, repeat=256, token=True)  # odd channels: from 24 on
    asm.set_lock(1, 1, 63, 2)
    asm.connect(0, 0, "DMA1", "NORTH0")
    asm.connect(0, 0, "NORTH3", "DMA1")
    words = [(op.code, op.register, op.value, op.mask) for op in asm.finish()][1:]
    tile = 1 << 25 | 1 << 20
    assert words == [
        (Opcode.WRITE, tile | 0xA065C, 47 | 255 << 16 | 1 << 31, None),
        (Opcode.WRITE, tile | 0xC03F0, 2, None),
        (Opcode.MASKWRITE, 0x1F000, 1 << 14, 3 << 14),
        (Opcode.WRITE, 0x3F100 + 4 * 9, 1 << 31, None),  # slave SOUTH7
        (Opcode.WRITE, 0x3F000 + 4 * 12, 1 << 31 | 9, None),  # master NORTH0
        (Opcode.MASKWRITE, 0x1F004, 1 << 6, 3 << 6),
        (Opcode.WRITE, 0x3F100 + 4 * 17, 1 << 31, None),  # slave NORTH3
        (Opcode.WRITE, 0x3F000 + 4 * 5, 1 << 31 | 17, None),  # master SOUTH3
    ]
    for call in (
        lambda: asm.buffer_descriptor(0, 0, 16, BufferDescriptor(4)),
        lambda: asm.start(0, 0, S2MM, 2, 0),
        lambda: asm.start(0, 0, S2MM, 0, 16),
        lambda: asm.start(0, 0, S2MM, 0, 0, repeat=257),
        lambda: asm.start(0, 0, S2MM, 0, 0, repeat=0),
        lambda: asm.start(0, 1, S2MM, 1, 23),
        lambda: asm.start(0, 1, S2MM, 2, 24),
        lambda: asm.set_lock(0, 0, 16, 0),
        lambda: asm.set_lock(0, 0, 0, 64),
        lambda: asm.connect(0, 1, "EAST0", "NORTH0"),
        lambda: asm.write(1 << 32, 0),
        lambda: asm.ddr_patch(0, 256),
    ):
        with pytest.raises(ProgramError):
            call()


def test_a_stream_is_read_from_a_mapped_file_without_a_copy() -> None:
    array = np.frombuffer(bytearray(BYTES), np.uint8)
    stream = Transaction(memoryview(array))
    assert np.shares_memory(stream.words, array)
    with pytest.raises(ValueError, match="read-only"):
        stream.words[0] = 0


def as_amd_writes_it(op: Op) -> list[str]:
    """The lines of aiebu-dump for an operation, blanks left out."""
    if op.patch is not None:
        register, argument, plus = op.patch
        return [f"XAIE_IO_CUSTOM_OP_DDR_PATCH@{register:#x},#{argument},+{plus:#x}"]
    if op.wait is not None:
        w = op.wait
        direction = registers.DIRECTIONS[w.direction]
        where = f"R[{w.row}]+{w.rows},C[{w.column}]+{w.columns}"
        return [f"XAIE_IO_CUSTOM_OP_TCT{where},#DMA_{direction},{w.channel}"]
    name = f"XAIE_IO_{Opcode(op.code).name}"
    if op.code == Opcode.WRITE:
        return [f"{name}@{op.register:#x},{op.value:#x}"]
    if op.code == Opcode.BLOCKWRITE:
        words = [f"{name}.{index}{word:#x}" for index, word in enumerate(op.data)]
        return [f"{name}@{op.register:#x},[{len(op.data)}]", *words]
    if op.code == Opcode.MASKWRITE:
        return [f"{name}@{op.register:#x},{op.mask:#x}(),{op.value:#x}"]
    if op.register is not None:
        return [f"{name}@{op.register:#x},{op.mask:#x}()=={op.value:#x}"]
    return [name]


@pytest.mark.skipif(
    shutil.which("aiebu-asm") is None or shutil.which("aiebu-dump") is None,
    reason="AMD's aiebu-asm and aiebu-dump are not installed",
)
@pytest.mark.parametrize("version", txn.VERSIONS)
@pytest.mark.parametrize("seed", range(10))
def test_amds_tools_read_what_we_assemble(
    seed: int, version: tuple[int, int], tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)

    def number(end: int, start: int = 0) -> int:
        return int(rng.integers(start, end))

    asm = Assembler(Header(version, txn.GENERATION_AIE2, columns=4))
    for _ in range(number(20, 1)):
        column, bd = number(4), number(16)
        asm.buffer_descriptor(column, 0, bd, BufferDescriptor(number(4096, 1)))
        asm.patch(column, 0, bd, number(4), number(4096) * 4)
        asm.start(column, 0, MM2S, number(2), bd, repeat=number(9, 1), token=True)
        asm.mask_write(registers.address(column, 2, 0x32000), number(1 << 32), number(1 << 32))
        asm.mask_poll(registers.address(column, 1, 0xC0000), number(64), 63)
        asm.wait(number(2), column, number(6), 1, number(3, 1), number(2))
        if version == (1, 0):
            asm.mask_poll_busy(registers.address(column, 0, 0x1D220), 0, number(1 << 32))
            asm.noop()
    stream = asm.finish()
    source, elf = tmp_path / "insts.bin", tmp_path / "x.elf"
    source.write_bytes(stream.to_bytes())
    subprocess.run(["aiebu-asm", "-t", "aie2txn", "-c", source, "-o", elf], check=True)
    dump = subprocess.run(
        ["aiebu-dump", "-d", elf], capture_output=True, text=True, check=True
    ).stdout
    lines = ["".join(line.split()) for line in dump.splitlines()]
    found = [line for line in lines if line.startswith("XAIE_")]
    assert found == [line for op in stream for line in as_amd_writes_it(op)]
