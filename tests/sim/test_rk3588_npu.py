# SPDX-License-Identifier: MIT
"""The face of the simulated core: memory, chains, register groups, the CBUF, bad arguments."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sim.rk3588_streams import ENABLE, FILL, MARKER, Conv, Rig, array, trailer, word
from support import ROOT

from npukit.programs.rk3588.registers import CNA, CORE, DPU, REGISTERS, find
from npukit.sim import _rk3588
from npukit.sim.rk3588 import WORK_LIMIT, AddressSpace, Completion, Npu, NpuFault

PAGE = 4096


# ---------------------------------------------------------------- memory


def test_mappings_may_not_overlap_or_pass_4_gib() -> None:
    space = AddressSpace()
    space.map(PAGE, bytearray(PAGE))
    for iova in (1, PAGE, 2 * PAGE - 1):
        with pytest.raises(ValueError, match="overlap"):
            space.map(iova, bytearray(PAGE))
    space.map(0, bytearray(PAGE))
    space.map(2 * PAGE, bytearray(1))
    space.map((1 << 32) - 8, bytearray(8))
    for iova in (-1, (1 << 32) - 7, 1 << 32, 1 << 64):
        with pytest.raises(ValueError, match="4 GiB"):
            space.map(iova, bytearray(8))
    with pytest.raises(ValueError, match="empty"):
        space.map(1 << 20, b"")


def test_only_what_starts_there_is_unmapped() -> None:
    space = AddressSpace()
    space.map(PAGE, bytearray(PAGE))
    for iova in (-1, 0, PAGE + 1, 2 * PAGE, 1 << 33):
        with pytest.raises(ValueError, match="no mapping starts at"):
            space.unmap(iova)
    space.unmap(PAGE)
    with pytest.raises(ValueError, match="no mapping starts at"):
        space.unmap(PAGE)
    space.map(PAGE, bytearray(PAGE))


def test_a_mapped_buffer_stays_exported() -> None:
    space = AddressSpace()
    buffer = bytearray(16)
    space.map(0, buffer)
    with pytest.raises(BufferError):
        buffer.append(0)
    space.unmap(0)
    buffer.append(0)
    space.map(0, buffer)
    del space
    gc.collect()
    buffer.append(0)


def test_nothing_keeps_a_buffer_after_unmapping() -> None:
    space = AddressSpace()
    data = np.zeros(16, np.uint8)
    gone = weakref.ref(data)
    space.map(0, data)
    with pytest.raises(ValueError, match="overlap"):
        space.map(8, data)
    del data
    assert gone() is not None
    space.unmap(0)
    assert gone() is None


def test_what_is_no_buffer_is_refused() -> None:
    space = AddressSpace()
    with pytest.raises(TypeError, match="buffer"):
        space.map(0, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="C-contiguous"):
        space.map(0, np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(ValueError, match="C-contiguous"):
        space.map(0, memoryview(bytes(16))[::2])


def test_any_dtype_and_shape_is_bytes() -> None:
    conv = Conv()
    rig = Rig()
    rng = np.random.default_rng(0)
    rig.npu.map(conv.features, rng.integers(0, 9, (4, 4, 4), np.int64))
    structured = np.zeros(256, np.dtype([("a", "<u2"), ("b", "<u2")]))
    rig.npu.map(conv.weights, structured)
    out = np.ones((16, 32), np.float32)
    rig.npu.map(conv.output, out)
    assert rig.run(conv.words()).error is None
    assert not out.any()


@pytest.mark.parametrize("part", [1, 7, 16, 24, 512])
def test_a_range_may_span_mappings(part: int) -> None:
    """Every atom is found whatever the cuts, at any alignment of the host's memory."""
    conv = Conv(height=5, width=6, channels=48, kernels=40, kernel=(3, 2), out=(3, 5))
    whole, cut = Rig(), Rig()
    whole.place(conv, np.random.default_rng(1))
    words = conv.words()
    assert whole.run(words).error is None
    pieces = []
    for iova, data in [*whole.memory.mappings[:3], (0x1000, array(words).view(np.uint8))]:
        bounds = [*range(0, len(data), part * 64), len(data)]
        for start, end in pairwise(bounds):
            # One byte off, so that nothing is aligned.
            piece = np.empty(end - start + 1, np.uint8)[1:]
            piece[:] = FILL if iova == conv.output else data[start:end]
            cut.npu.map(iova + start, piece)
            if iova == conv.output:
                pieces.append(piece)
    assert cut.npu.run(0x1000, len(words)).error is None
    np.testing.assert_array_equal(np.concatenate(pieces), whole.memory.mappings[2][1])


@pytest.mark.parametrize("name", ["features", "weights", "output"])
@pytest.mark.parametrize("missing", ["first", "middle", "last"])
def test_unmapped_memory_is_named(name: str, missing: str) -> None:
    conv = Conv(height=9, width=7, channels=64, kernels=64, kernel=(3, 3), out=(7, 5))
    iova, size = conv.spans()[name]
    hole = {"first": 0, "middle": size // 2 // 16 * 16, "last": size - 16}[missing]
    rig = Rig()
    for other, (start, length) in conv.spans().items():
        if other != name:
            rig.npu.map(start, bytearray(length))
    if hole:
        rig.npu.map(iova, bytearray(hole))
    if hole + 16 < size:
        rig.npu.map(iova + hole + 16, bytearray(size - hole - 16))
    completion = rig.run(conv.words())
    register, field, access, status = {
        "features": ("FEATURE_DATA_ADDR", "FEATURE_BASE_ADDR", "read", 0x1000),
        "weights": ("DCOMP_ADDR0", "DECOMPRESS_ADDR0", "read", 0x1000),
        "output": ("DST_BASE_ADDR", "DST_BASE_ADDR", "write", 0x2000),
    }[name]
    block = "DPU" if name == "output" else "CNA"
    assert completion == Completion(
        status,
        0,
        NpuFault(
            "access", f"{access} of unmapped memory", block, register, field, iova, iova + hole
        ),
    )
    assert str(completion.error) == (
        f"access: {block}.{register}.{field} = {iova:#x}: {access} of unmapped memory"
        f" (at {iova + hole:#x})"
    )


@pytest.mark.parametrize(
    ("name", "start"),
    [("features", (1 << 32) - 0x400), ("weights", (1 << 32) - 0x400), ("output", 0xFFFFFF00)],
)
def test_memory_past_4_gib(name: str, start: int) -> None:
    conv = replace(Conv(kernels=64), **{name: start})
    rig = Rig()
    for other, (iova, size) in conv.spans().items():
        rig.npu.map(iova, bytearray(min(size, (1 << 32) - iova) if other == name else size))
    fault = rig.run(conv.words()).error
    if conv.spans()[name][1] <= (1 << 32) - start:
        assert fault is None
        return
    assert fault is not None
    assert (fault.kind, fault.iova, fault.value) == ("access", 1 << 32, start)
    assert fault.text.endswith("past 4 GiB")


def test_memory_below_0() -> None:
    conv = Conv(channels=64, surface_pitch=-64, features=0)
    rig = Rig()
    rig.npu.map(0, bytearray(4096))
    rig.npu.map(conv.weights, bytearray(2 * conv.spans()["weights"][1]))
    rig.npu.map(conv.output, bytearray(conv.spans()["output"][1]))
    fault = rig.run(conv.words(), 0x80000).error
    assert fault is not None
    assert (fault.kind, fault.text, fault.iova) == ("access", "read below address 0", -1024)


def test_output_may_not_be_read_only() -> None:
    conv = Conv()
    rig = Rig()
    for name, (iova, size) in conv.spans().items():
        rig.npu.map(iova, bytes(size) if name == "output" else bytearray(size))
    completion = rig.run(conv.words())
    assert completion.raw_status == 0x2000
    fault = completion.error
    assert fault is not None
    assert (fault.kind, fault.iova, fault.field) == ("access", conv.output, "DST_BASE_ADDR")
    assert fault.text == "write to read-only memory"


def test_input_may_be_read_only() -> None:
    conv = Conv()
    rig = Rig()
    for name, (iova, size) in conv.spans().items():
        frozen = np.ones(size, np.uint8)
        frozen.flags.writeable = name == "output"
        rig.npu.map(iova, frozen)
    assert rig.run(conv.words()).error is None


def test_output_over_input_is_refused() -> None:
    base = 0x100000
    conv = Conv(features=base, weights=base + 0x1000)
    npu = Npu()
    npu.map(base - 0x1000, bytearray(0x4000))
    for output, what in (
        (base - 0x800, None),
        (base - 0x7F0, "the features"),
        (base + 0x1F0, "the features"),
        (base + 0x200, None),
        (base + 0x810, "the weights"),
        (base + 0x13F0, "the weights"),
        (base + 0x1400, None),
    ):
        words = replace(conv, output=output).words()
        npu.map(0x1000, array([*words, 0]))
        fault = npu.run(0x1000, len(words)).error
        npu.unmap(0x1000)
        if what is None:
            assert fault is None
            continue
        assert fault is not None
        assert (fault.kind, fault.text) == ("inconsistent", f"the output overlaps {what}")
        assert (fault.field, fault.value) == ("DST_BASE_ADDR", output)


def test_output_between_the_rows_of_the_input() -> None:
    """Spans that overlap are fine as long as no byte is shared: columns of one wider matrix."""
    base, m, columns = 0x100000, 16, 12
    conv = Conv(
        height=m, width=1, channels=32, kernels=32, out=(m, 1), off=True, row_pitch=columns,
        surface_pitch=1, out_line_pitch=columns, out_surface_pitch=1, features=base,
        output=base + 2 * 16,
    )  # fmt: skip
    rig = Rig()
    matrix = rig.blank(base, m * columns * 16)
    rng = np.random.default_rng(2)
    rig.add(conv.weights, rng.integers(0, 256, 1024, np.uint8))
    words = conv.words()
    assert rig.run(words).error is None
    rows = matrix.reshape(m, columns * 16)
    assert (rows[:, :32] == FILL).all()
    assert (rows[:, 160:] == FILL).all()
    rig.check(words)
    shifted = replace(conv, output=base + 16).words()
    fault = rig.run(shifted, 0x8000).error
    assert fault is not None
    assert fault.text == "the output overlaps the features"


def test_output_over_itself_is_refused() -> None:
    for change in ({"out_surface_pitch": 15}, {"out_surface_pitch": 0}):
        conv = Conv(**change)  # type: ignore[arg-type]
        rig = Rig()
        rig.npu.map(conv.features, bytearray(512))
        rig.npu.map(conv.weights, bytearray(1024))
        rig.npu.map(conv.output, bytearray(2048))
        fault = rig.run(conv.words()).error
        assert fault is not None
        assert fault.text == "the output overlaps itself"


# ---------------------------------------------------------------- arguments


def test_bad_arguments() -> None:
    npu = Npu()
    with pytest.raises(ValueError, match="regcmd_iova"):
        npu.run(1 << 32, 4)
    with pytest.raises(ValueError, match="regcmd_iova"):
        npu.run(-16, 4)
    for count in (0, -1, (1 << 17) + 1):
        with pytest.raises(ValueError, match="count"):
            npu.run(0, count)
    for tasks in (0, 4096):
        with pytest.raises(ValueError, match="tasks"):
            npu.run(0, 4, tasks)
    with pytest.raises(ValueError, match="int_mask"):
        npu.run(0, 4, int_mask=-1)
    npu.threads = 0
    with pytest.raises(ValueError, match="threads"):
        npu.run(0, 4)
    with pytest.raises(TypeError):
        Npu(space=5).run(0, 4)  # type: ignore[arg-type]


def test_unmapped_commands() -> None:
    npu = Npu()
    completion = npu.run(0x2000, 108)
    assert completion.raw_status == 0x1000
    fault = completion.error
    assert fault is not None
    assert (fault.kind, fault.block, fault.register) == ("access", "PC", "BASE_ADDRESS")
    assert (fault.value, fault.iova) == (0x2000, 0x2000)
    npu.map(0x2000, bytearray(107 * 8))
    # 107 words are 54 pairs.
    fault = npu.run(0x2000, 107).error
    assert fault is not None
    assert fault.iova == 0x2000 + 107 * 8
    fault = npu.run(0x2008, 4).error
    assert fault is not None
    assert (fault.kind, fault.value) == ("illegal", 0x2008)


# ---------------------------------------------------------------- chains


def chain(rig: Rig, convs: list[Conv], start: int = 0x1000) -> int:
    """Load a chain of convolutions; returns the count of words of the first."""
    lengths = [len(conv.words()) for conv in convs]
    for i, conv in enumerate(convs):
        last = i + 1 == len(convs)
        words = conv.words() if last else conv.words(start + 0x1000 * (i + 1), lengths[i + 1])
        rig.load(words, start + 0x1000 * i)
    return lengths[0]


def several(count: int) -> list[Conv]:
    """Convolutions with memory of their own."""
    return [
        Conv(
            height=3 + i, width=2, out=(3 + i, 2), kernels=32 + i,
            features=0x10000000 + i * 0x10000, weights=0x20000000 + i * 0x10000,
            output=0x30000000 + i * 0x10000,
        )
        for i in range(count)
    ]  # fmt: skip


def test_a_chain_is_followed() -> None:
    convs = several(5)
    rig = Rig()
    for i, conv in enumerate(convs):
        rig.place(conv, np.random.default_rng(i))
    count = chain(rig, convs)
    assert rig.npu.run(0x1000, count, 5) == Completion(0x155, 5, None)
    rig.check(*(conv.words() for conv in convs))


def test_fewer_tasks_than_the_chain_has() -> None:
    convs = several(3)
    rig = Rig()
    for conv in convs:
        rig.place(conv, np.random.default_rng(3))
    count = chain(rig, convs)
    assert rig.npu.run(0x1000, count, 2).tasks_done == 2
    rig.check(*(conv.words() for conv in convs[:2]))
    assert (rig.memory.mappings[8][1] == FILL).all()


@pytest.mark.parametrize("cores", [2, 3])
def test_a_run_ends_where_the_chain_waits_for_other_cores(cores: int) -> None:
    """The upper half of REGISTER_AMOUNTS, which Rockchip's compiler sets in links of several cores'
    tasks: how many others there are."""
    convs = several(3)
    rig = Rig()
    for conv in convs:
        rig.place(conv, np.random.default_rng(5))
    words = [conv.words() for conv in convs]
    words[0] = convs[0].words(0x2000, len(words[1]))
    words[1] = convs[1].words(0x3000, len(words[2]))
    words[1][-3] |= (cores - 1) << 32
    for i, stream in enumerate(words):
        rig.load(stream, 0x1000 * (i + 1))
    count = len(words[2]) + len(words[2]) % 2
    assert rig.npu.run(0x1000, len(words[0]), 3) == Completion(0x155, 3, None)
    ended = rig.npu.run(0x1000, len(words[0]), 3, meets=True)
    assert ended == Completion(0x155, 2, None, (0x3000, count))
    assert rig.npu.run(0x3000, count, meets=True) == Completion(0x255, 1, None)
    # The last task that is asked for leads to nothing.
    assert rig.npu.run(0x1000, len(words[0]), 2, meets=True).link is None
    rig.check(*words)


def test_more_tasks_than_the_chain_holds_time_out() -> None:
    convs = several(2)
    rig = Rig()
    for conv in convs:
        rig.place(conv, np.random.default_rng(4))
    completion = rig.npu.run(0x1000, chain(rig, convs), 3)
    assert completion.tasks_done == 2
    assert str(completion.error).startswith("timed out: PC.BASE_ADDRESS = 0: the chain ends after")
    rig.check(*(conv.words() for conv in convs))


def test_a_chain_that_loops_runs_as_often_as_it_is_told() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(5))
    words = conv.words(0x1000, len(conv.words()))
    rig.load(words)
    assert rig.npu.run(0x1000, len(words), 100) == Completion(0x255, 100, None)


def test_a_fault_in_a_later_task() -> None:
    convs = several(3)
    convs[1] = replace(convs[1], stride=(0, 1))
    rig = Rig()
    for conv in (convs[0], convs[2]):
        rig.place(conv, np.random.default_rng(6))
    completion = rig.npu.run(0x1000, chain(rig, convs), 3)
    assert (completion.raw_status, completion.tasks_done) == (0, 1)
    assert completion.error is not None
    assert completion.error.field == "CONV_Y_STRIDE"


def test_the_interrupt_has_to_be_one_that_is_waited_for() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(7))
    words = conv.words()
    rig.load(words)
    for mask in (0, 0x300, 0x100, 0x340, 0x3FF):
        rig.npu.reset()
        assert rig.npu.run(0x1000, len(words), int_mask=mask).error is None
    for mask in (0xC00, 0x200, 0xF00, 0x202):
        rig.npu.reset()
        completion = rig.npu.run(0x1000, len(words), int_mask=mask)
        assert completion.tasks_done == 1
        assert completion.raw_status == 0x155
        assert str(completion.error).startswith("timed out: the last task raised 0x155")


def test_work_is_bounded() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(8))
    words = conv.words()
    rig.load(words)
    work = 16 * 32 * 32 + 8 * (512 + 1024 + 2048)
    assert rig.npu.run(0x1000, len(words), work_limit=work).error is None
    completion = rig.npu.run(0x1000, len(words), work_limit=work - 1)
    assert completion.tasks_done == 0
    assert str(completion.error).startswith("timed out: 16384 products and 3584 bytes exceed")
    loop = conv.words(0x4000, len(words))
    rig.load(loop, 0x4000)
    assert rig.npu.run(0x4000, len(loop), 9, work_limit=4 * work).tasks_done == 4
    assert WORK_LIMIT >= 8192 * 8192 * 8192


# ---------------------------------------------------------------- words


def test_a_word_that_fills_up_the_last_pair_is_not_looked_at() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(9))
    words = conv.words()
    if len(words) % 2 == 0:
        words.insert(0, 0)
    rig.load([*words, (1 << 64) - 1])
    assert rig.npu.run(0x1000, len(words)).error is None
    rig.check(words)


def test_a_word_behind_the_enable_word_is_refused() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(10))
    words = conv.words()
    assert rig.run([*words, 0, 0, 0]).error is None
    fault = rig.run([*words, 0, words[0]], 0x8000).error
    assert fault is not None
    assert fault.kind == "command"
    assert fault.iova == 0x8000 + 8 * (len(words) + 1)


def test_no_words_between_marker_and_enable() -> None:
    body = Conv().words()[:-2]
    enable = ENABLE | 0x0D << 16
    for tail, text in (
        ([MARKER, 0, enable], "between the marker and the enable word"),
        ([MARKER, MARKER, enable], "between the marker and the enable word"),
        ([enable], "without the marker"),
        ([0, enable], "without the marker"),
        ([MARKER], "no enable word"),
        ([], "no enable word"),
        ([MARKER, enable & ~0xFFFF | 0x10], "names register 0x0010"),
    ):
        nop = [0] * (len(body + tail) % 2)
        fault = Rig().run(nop + body + tail).error
        assert fault is not None
        assert fault.kind == "command"
        assert text in fault.text
        assert fault.iova is not None


@pytest.mark.parametrize("enable", [0, 2, 0x80, 0x10000000, 0x0F])
def test_blocks_that_do_not_exist(enable: int) -> None:
    fault = Rig().run(Conv().words(enable=enable)).error
    assert fault is not None
    assert (fault.kind, fault.block, fault.register) == ("illegal", "PC", "OPERATION_ENABLE")


@pytest.mark.parametrize("enable", [0x01, 0x04, 0x05, 0x08, 0x09, 0x20, 0x7D])
def test_blocks_that_are_not_modelled(enable: int) -> None:
    fault = Rig().run(Conv().words(enable=enable)).error
    assert fault is not None
    assert (fault.kind, fault.register, fault.value) == ("unsupported", "OPERATION_ENABLE", enable)


def test_the_excerpt_of_the_register_map_agrees_with_the_map() -> None:
    text = (ROOT / "csrc" / "rk3588_regs.h").read_text()
    pattern = r"#define (\w+) NPU_FIELD\((0x[0-9a-f]{4}), (\d+), (\d+)\)"
    found = re.findall(pattern, text)
    assert len(found) > 100
    for name, offset, hi, lo in found:
        register = REGISTERS[int(offset, 16)]
        assert name.startswith(f"{register.block.__name__}_")
        name = name.removeprefix(f"{register.block.__name__}_")
        field_name = name.removeprefix(f"{register.name}_")
        fields = register.fields
        field = fields.get(name) or fields[field_name]
        assert (field.hi, field.lo) == (int(hi), int(lo)), name


# ---------------------------------------------------------------- register groups


def without(words: list[int], name: str) -> list[int]:
    return [word for word in words if word & 0xFFFF != find(name).offset]


def test_groups_alternate_and_keep_their_values() -> None:
    """A stream that leaves out a register finds what its group holds, not the last value."""
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(11))
    words = conv.words()
    rig.load(words)
    for name in ("DPU.BS_OW_CFG", "DPU.WDMA_SIZE_1"):
        rig.npu.reset()
        assert rig.npu.run(0x1000, len(words)).raw_status == 0x155
        # The DPU is at its other group now, which nobody has set.
        shorter = without(words, name)
        rig.load(shorter, 0x4000)
        fault = rig.npu.run(0x4000, len(shorter)).error
        assert fault is not None
        assert (f"{fault.block}.{fault.register}", fault.value) == (name, 0)
        assert rig.npu.run(0x1000, len(words)).raw_status == 0x255
        # Back at the first group, where the value of the first task is left.
        assert rig.npu.run(0x4000, len(shorter)).raw_status == 0x155
        rig.npu.unmap(0x4000)
    # CNA stays with one group.
    shorter = without(words, "CNA.CBUF_CON1")
    rig.load(shorter, 0x4000)
    assert rig.npu.run(0x4000, len(shorter)).raw_status == 0x255
    rig.check(words)


def test_pointers_as_the_vendors_driver_sets_them() -> None:
    conv = Conv()
    rig = Rig(core=2)
    rig.place(conv, np.random.default_rng(12))
    words = conv.words()
    rig.load(words)
    statuses = []
    for _ in range(3):
        for register in (CNA.S_POINTER, CORE.S_POINTER):
            rig.npu.write_register(register.offset, 0xE + (rig.npu.core << 28))
        statuses.append(rig.npu.run(0x1000, len(words)).raw_status)
    assert statuses == [0x155, 0x2AA, 0x155]
    assert rig.npu.read_register(CNA.S_POINTER.offset) == 0x1000F
    rig.npu.reset()
    assert rig.npu.read_register(CNA.S_POINTER.offset) == 0
    assert rig.npu.run(0x1000, len(words)).raw_status == 0x155


def test_pointers_as_the_vendors_streams_set_them() -> None:
    """Task lists that are written for one core name it, as the driver does."""
    conv = Conv()
    rig = Rig(core=1)
    rig.place(conv, np.random.default_rng(12))
    words = [word(register, 0x1000000E) for register in (CNA.S_POINTER, CORE.S_POINTER)]
    words += conv.words()
    rig.load(words)
    statuses = [rig.npu.run(0x1000, len(words)).raw_status for _ in range(3)]
    assert statuses == [0x155, 0x2AA, 0x155]
    rig.check(words)
    rig.load([word(DPU.S_POINTER, 0x1000000E), *words], 0x4000)
    fault = rig.npu.run(0x4000, len(words) + 1).error
    assert fault is not None
    assert (fault.kind, fault.text) == ("illegal", "reserved bits 0x10000000 are set")


def test_a_failed_task_leaves_the_pointers() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(13))
    rig.load(conv.words())
    bad = conv.words(CNA__CONV_CON1__CONV_MODE=3)
    rig.load(bad, 0x4000)
    assert rig.npu.run(0x4000, len(bad)).error is not None
    assert rig.npu.run(0x1000, len(bad)).raw_status == 0x155
    assert rig.npu.run(0x4000, len(bad)).error is not None
    assert rig.npu.run(0x1000, len(bad)).raw_status == 0x255


def test_without_ping_pong_the_pointer_is_written() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(14))
    words = conv.words()
    for pointer, status in ((1, 0x255), (1, 0x255), (0, 0x155)):
        words[0] = word(DPU.S_POINTER, pointer)
        rig.load(words)
        assert rig.npu.run(0x1000, len(words)).raw_status == status
        rig.npu.unmap(0x1000)


def test_pointer_and_executer_out_of_step_never_start() -> None:
    conv = Conv()
    rig = Rig()
    rig.place(conv, np.random.default_rng(15))
    words = conv.words()
    words[0] = word(DPU.S_POINTER, 0x4)  # the executer alternates, the pointer does not
    rig.load(words)
    assert rig.npu.run(0x1000, len(words)).raw_status == 0x155
    completion = rig.npu.run(0x1000, len(words))
    assert str(completion.error).startswith("timed out: DPU.S_POINTER = 4: group 0 is enabled")
    words[0] = word(DPU.S_POINTER, 0x34)  # clears both
    rig.load(words, 0x4000)
    assert rig.npu.run(0x4000, len(words)).raw_status == 0x155


def test_registers_from_the_host() -> None:
    npu = Npu()
    npu.write_register(DPU.BS_CFG.offset, 0x53)
    assert npu.read_register(DPU.BS_CFG.offset) == 0x53
    npu.write_register(DPU.S_POINTER.offset, 1)
    assert npu.read_register(DPU.S_POINTER.offset) == 1
    assert npu.read_register(DPU.BS_CFG.offset) == 0
    for offset, value in (
        (DPU.BS_CFG.offset, 4),  # a reserved bit
        (DPU.BS_CFG.offset, 0xF0000053),  # the core's number is for S_POINTER alone
        (DPU.BS_CFG.offset, 1 << 32),
        (DPU.BS_CFG.offset, -1),
        (DPU.OPERATION_ENABLE.offset, 1),
        (DPU.S_STATUS.offset, 0),
        (0x0008, 1),  # PC.OPERATION_ENABLE
        (0x4002, 0),
        (0x40B0, 0),
        (0xF008, 0xD),
        (0x10000, 0),
        (-4, 0),
    ):
        with pytest.raises(ValueError, match="register"):
            npu.write_register(offset, value)
        if value != 4 and offset != DPU.BS_CFG.offset:
            with pytest.raises(ValueError, match="register"):
                npu.read_register(offset)


# ---------------------------------------------------------------- CBUF


def test_weights_are_reused() -> None:
    """As Mesa splits a convolution by rows: the first task fetches, the others reuse."""
    parts = [
        Conv(height=6, width=5, out=(6, 5), data_banks=2),
        Conv(
            height=3, width=5, out=(3, 5), data_banks=2, weight_reuse=True,
            features=0x11000000, output=0x31000000,
        ),
    ]  # fmt: skip
    rig = Rig()
    rig.place(parts[0], np.random.default_rng(16))
    rig.add(parts[1].features, np.arange(480, dtype=np.uint16).astype(np.uint8))
    rig.blank(parts[1].output, parts[1].spans()["output"][1])
    count = chain(rig, parts)
    assert rig.npu.run(0x1000, count, 2) == Completion(0x251, 2, None)
    rig.check(*(part.words() for part in parts))
    # It is the CBUF that is used, also by a later run: memory may change meanwhile.
    before = rig.memory.mappings[4][1].copy()
    rig.memory.mappings[1][1][:] ^= 0x55
    words = parts[1].words()
    assert rig.npu.run(0x2000, len(words)).error is None
    np.testing.assert_array_equal(rig.memory.mappings[4][1], before)


def test_features_are_reused() -> None:
    parts = [
        Conv(height=7, width=5, out=(3, 5), stride=(2, 1)),
        Conv(
            height=7, width=5, out=(5, 3), kernel=(3, 3), kernels=7, data_reuse=True,
            weights=0x21000000, output=0x31000000,
        ),
    ]  # fmt: skip
    rig = Rig()
    rng = np.random.default_rng(17)
    rig.place(parts[0], rng)
    rig.add(parts[1].weights, rng.integers(0, 256, parts[1].spans()["weights"][1], np.uint8))
    rig.blank(parts[1].output, parts[1].spans()["output"][1])
    # Rows that the first convolution has no window on are there as well.
    assert rig.npu.run(0x1000, chain(rig, parts), 2) == Completion(0x254, 2, None)
    rig.check(*(part.words() for part in parts))


def test_reuse_needs_what_is_reused() -> None:
    conv = Conv(channels=64, data_banks=2)
    rig = Rig()
    rig.place(conv, np.random.default_rng(18))

    def run(conv: Conv) -> NpuFault | None:
        rig.load(conv.words())
        error = rig.npu.run(0x1000, len(conv.words())).error
        rig.npu.unmap(0x1000)
        return error

    reuse = replace(conv, weight_reuse=True, data_reuse=True)
    fault = run(reuse)
    assert fault is not None
    assert (fault.kind, fault.register) == ("inconsistent", "CBUF_CON0")
    for change in (
        {"channels": 32, "surface_pitch": 16},
        {"height": 3, "out": (3, 4)},
        {"width": 2, "out": (4, 2)},
    ):
        assert run(conv) is None
        fault = run(replace(reuse, weight_reuse=False, **change))  # type: ignore[arg-type]
        assert fault is not None
        assert fault.field == "DATA_REUSE"
    for change in ({"kernels": 16}, {"data_banks": 3}, {"channels": 32}):
        assert run(conv) is None
        fault = run(replace(reuse, data_reuse=False, **change))  # type: ignore[arg-type]
        assert fault is not None
        assert fault.field == "WEIGHT_REUSE"
    assert run(conv) is None
    assert run(reuse) is None
    assert run(reuse) is None
    rig.npu.reset()
    assert run(reuse) is not None
    # A failed task may have overwritten part of it.
    assert run(conv) is None
    assert run(replace(conv, weights=0x50000000)) is not None
    assert run(reuse) is not None


def test_what_did_not_fit_cannot_be_reused() -> None:
    conv = Conv(height=110, width=10, out=(1, 1), data_banks=1, weight_banks=1, kernels=1200)
    rig = Rig()
    rig.place(conv, np.random.default_rng(19))
    rig.load(conv.words())
    assert rig.npu.run(0x1000, len(conv.words())).error is None
    for number, change in enumerate(({"data_reuse": True}, {"weight_reuse": True})):
        again = replace(conv, **change)  # type: ignore[arg-type]
        fault = rig.run(again.words(), 0x10000 * (number + 1)).error
        assert fault is not None
        assert fault.kind == "inconsistent"
    rig.check(conv.words())


# ---------------------------------------------------------------- threads


def test_cores_share_a_space_side_by_side() -> None:
    space = AddressSpace()
    convs = [
        Conv(
            height=64, width=32, channels=64, kernels=64, out=(64, 32), kernel=(3, 3),
            pads=(1, 1), features=0x10000000 * (i + 1), weights=0x40000000 + 0x1000000 * i,
            output=0x80000000 + 0x10000000 * i,
        )
        for i in range(3)
    ]  # fmt: skip
    rigs = [Rig(core=i, space=space, threads=1) for i in range(3)]
    for i, (rig, conv) in enumerate(zip(rigs, convs, strict=True)):
        rig.place(conv, np.random.default_rng(i))
        rig.load(conv.words(), 0x100000 * (i + 1))
    results: list[Completion] = []
    workers = [
        threading.Thread(
            target=lambda i=i: results.extend(
                rigs[i].npu.run(0x100000 * (i + 1), len(convs[i].words())) for _ in range(5)
            )
        )
        for i in range(3)
    ]
    for worker in workers:
        worker.start()
    for number in range(50):  # the domain changes meanwhile
        space.map(0xF0000000 + number * PAGE, bytearray(PAGE))
        space.unmap(0xF0000000 + number * PAGE)
    for worker in workers:
        worker.join()
    assert len(results) == 15
    assert all(result.error is None for result in results)
    for rig, conv in zip(rigs, convs, strict=True):
        rig.check(conv.words())


def test_one_core_is_for_one_thread_at_a_time() -> None:
    conv = Conv(
        height=300, width=100, channels=64, kernels=256, kernel=(3, 3), out=(298, 98), data_banks=6
    )
    npu = Npu(threads=1)
    for iova, size in conv.spans().values():
        npu.map(iova, bytearray(size))
    words = conv.words()
    npu.map(0x1000, array(words))
    started = threading.Event()
    results: list[Completion] = []

    def work() -> None:
        started.set()
        results.append(npu.run(0x1000, len(words)))

    refused = 0
    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    while worker.is_alive():
        try:
            npu.reset()
        except RuntimeError:
            refused += 1
    worker.join()
    assert results[0].error is None
    assert refused


def test_simd_levels() -> None:
    levels = _rk3588.simd_available()
    assert "portable" in levels
    assert _rk3588.simd_level() in levels
    with pytest.raises(ValueError, match="no SIMD variant 'mmx'"):
        _rk3588.simd_set("mmx")


def test_trailer_of_a_single_task_is_that_of_the_recorded_streams() -> None:
    assert trailer() == [0, 0x0101000000000014, 0x0041000000000000, 0x00810000000D0008]
