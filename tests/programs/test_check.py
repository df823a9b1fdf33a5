# SPDX-License-Identifier: MIT
"""The checker of command streams: what runs passes, what does not is named, and it agrees with the
simulated NPU, which has rules of its own making."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim.rk3588_streams import Conv
from support import SHARED, needs_shared, no_leak

import npukit
from npukit.devices import RknpuDevice, RocketDevice, RocketJob
from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import check
from npukit.programs.rk3588.activation import sigmoid
from npukit.programs.rk3588.check import Stream, check_words
from npukit.programs.rk3588.conv import conv2d, depthwise_conv2d
from npukit.programs.rk3588.decode import Access
from npukit.programs.rk3588.elementwise import add, mul
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.pool import avg_pool, max_pool
from npukit.programs.rk3588.program import Program, Task, rknpu_tasks, rocket_tasks
from npukit.programs.rk3588.quantize import Quantization
from npukit.programs.rk3588.registers import (
    CNA,
    CORE,
    DPU,
    DPU_RDMA,
    PC,
    PPU,
    PPU_RDMA,
    REGISTERS,
    Register,
)
from npukit.sim.rk3588 import Npu

Words = npt.NDArray[np.uint64]

FEATURES, WEIGHTS, OUTPUT, ADDEND = 0x100000, 0x200000, 0x300000, 0x400000
MEMORY = 1 << 23
CODE = 0x1000
_Q = Quantization(0.05, 128)


def _weights(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def _operation(op: Any) -> Program:
    inputs = [FEATURES, ADDEND][: len(op.inputs)]
    program: Program = op.program(inputs, WEIGHTS, OUTPUT)
    return program


PROGRAMS = {
    "conv": _operation(conv2d(10, 10, _weights(40, 3, 3, 24), None, _Q, _Q, _Q)),
    "conv and add": _operation(
        conv2d(10, 10, _weights(40, 3, 3, 24), None, _Q, Quantization(0.01, 128), _Q, addend=_Q)
    ),
    "depthwise": _operation(
        depthwise_conv2d(9, 9, _weights(1, 3, 3, 64), None, _Q, _Q, _Q, stride=2)
    ),
    "fp16": _operation(conv2d(6, 6, np.ones((16, 3, 3, 32), np.float16), None)),
    "add": _operation(add(6, 6, 40, _Q, _Q, _Q)),
    "fp16 product by channels": _operation(mul(6, 6, 40, channelwise=True)),
    "maximum of windows": _operation(max_pool(8, 9, 32, _Q, 3, stride=2)),
    "mean of windows": _operation(avg_pool(8, 8, 16, None, 2)),
    "lookup table": _operation(sigmoid(4, 4, 32, _Q, Quantization(1 / 256, 0))),
    "fp16 lookup table": _operation(sigmoid(4, 4, 16)),
    "int8 matmul": matmul_program(8, 64, 64, np.int8, np.int32, FEATURES, WEIGHTS, OUTPUT),
    "fp16 matmul": matmul_program(8, 64, 32, np.float16, np.float16, FEATURES, WEIGHTS, OUTPUT),
}


def _words(words: list[int]) -> Program:
    return Program(words, [Task(0, len(words), words[-1] >> 16 & 0xFFFF)])


_AT = {"features": FEATURES, "weights": WEIGHTS, "output": OUTPUT}
PROGRAMS["int16"] = _words(Conv(dtype="int16", out_dtype="int16", **_AT).words())
PROGRAMS["int16 depthwise"] = _words(
    Conv(dtype="int16", depthwise=True, kernel=(3, 3), pads=(1, 1), **_AT).words()
)
_SPREAD = Conv(kernel=(3, 3), pads=(1, 1), out=(7, 7), **_AT)
PROGRAMS["transposed"] = _words(
    _SPREAD.words(
        CNA__CONV_CON1__DECONV=1,
        CNA__CONV_CON3__DECONV_Y_STRIDE=1,
        CNA__CONV_CON3__DECONV_X_STRIDE=1,
    )
)
PROGRAMS["factors of channels"] = _words(
    Conv(out_dtype="int32", **_AT).words(
        enable=0x1D,
        DPU__BN_CFG__BN_BYPASS=0,
        DPU__BN_CFG__BN_MUL_BYPASS=0,
        DPU__BN_CFG__BN_MUL_PRELU=1,
        DPU__BN_MUL_CFG__BN_MUL_SRC=1,
        DPU_RDMA__RDMA_NRDMA_CFG__NRDMA_DATA_USE=4,
        DPU_RDMA__RDMA_BN_BASE_ADDR__BN_BASE_ADDR=WEIGHTS + (1 << 18),
    )
)
TILED = _operation(conv2d(120, 120, _weights(32, 3, 3, 32), None, _Q, _Q, _Q)).chained(CODE)


def changed(words: Words, register: Register, **fields: int) -> Words:
    """The stream with fields of every write to ``register`` set."""
    words = words.copy()
    for index, word in enumerate(words.tolist()):
        if word & 0xFFFF == register.offset and word >> 48 == register.block.target:
            value = word >> 16 & 0xFFFFFFFF
            for name, given in fields.items():
                field = register.fields[name]
                value = value & ~field.mask | given << field.lo & field.mask
            words[index] = word & ~(0xFFFFFFFF << 16) | value << 16
    return words


def without(words: Words, *registers: Register) -> Words:
    """The stream with the writes to ``registers`` made empty words."""
    offsets = [register.offset for register in registers]
    return np.where(np.isin(words & np.uint64(0xFFFF), offsets), np.uint64(0), words)


# ---- What runs ----------------------------------------------------------------------------------


def _shared(name: str) -> Any:
    path = SHARED / "data" / "rk3588" / name
    return json.loads(path.read_text()) if path.is_file() else {"cases": [], "captures": []}


def as_words(listed: list[str]) -> Words:
    return np.array([int(word, 16) for word in listed], np.uint64)


@needs_shared
@pytest.mark.parametrize("kind", ["fp16_fp32", "fp16_fp16", "int8_int32"])
def test_the_communitys_matmuls_pass(kind: str) -> None:
    cases = [case for case in _shared(f"matmul_{kind}.json")["cases"] if case["rc"] == 0]
    assert len(cases) > 5
    for case in cases:
        # The file's addresses are those of several recordings, and may collide.
        words = changed(as_words(case["regcmd"]), DPU.DST_BASE_ADDR, DST_BASE_ADDR=0x10000000)
        words = changed(words, CNA.DCOMP_ADDR0, DECOMPRESS_ADDR0=0x20000000)
        problems = check_words(words)
        if case["k"] == 32768:
            # One bit more than DATAIN_CHANNEL_REAL has.
            assert [problem.register for problem in problems] == [CNA.DATA_SIZE1]
            assert "reserved bits 0x40000000" in str(problems[0])
        else:
            assert problems == [], case["k"]


@needs_shared
def test_mesas_streams_pass() -> None:
    count = 0
    for case in _shared("mesa_rocket.json")["cases"]:
        for job in case["jobs"]:
            streams = [Stream(int(t["regcmd"], 16), as_words(t["words"])) for t in job["tasks"]]
            numbers = range(len(streams))
            count += len(streams)
            assert check._each(streams) == [], case["name"]
            assert [*check._chain(streams, numbers), *check._reuse(streams, numbers)] == []
    assert count > 30


@needs_shared
def test_the_vendors_captures_pass() -> None:
    captures = _shared("hardware_conv_fp16.json")["captures"]
    assert len(captures) > 4
    for capture in captures:
        tasks = capture["tasks"]
        streams = [
            Stream(int(t["regcmd_addr"], 16), as_words(t["regcmd"]), int(t["int_mask"], 16))
            for t in tasks
        ]
        assert check._each(streams) == [], capture["file"]
        assert [p for i, stream in enumerate(streams) for p in check._interrupt(stream, i)] == []
        # Every link of the captured chains, by itself.
        places = {stream.address: index for index, stream in enumerate(streams)}
        for number, stream in enumerate(streams):
            following = places.get(stream.checked.next_address)
            if following is not None:
                assert list(check._chain(streams, [number, following])) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_our_own_programs_pass(name: str) -> None:
    assert check_words(PROGRAMS[name].words) == []
    assert check.check(PROGRAMS[name], 0x7000) == []


def test_a_chain_passes() -> None:
    assert len(TILED.tasks) > 1
    assert check_words(TILED.words) == []
    assert check.check(TILED, CODE) == []


# ---- What does not ------------------------------------------------------------------------------

FIELDS = [
    ("conv", CNA.CBUF_CON0, "WEIGHT_BANK", 12, "exceeds the 12 banks of the CBUF"),
    ("conv", CNA.CBUF_CON0, "DATA_BANK", 0, "DATA_BANK = 0: has to be at least 1"),
    ("conv", CNA.CBUF_CON0, "WEIGHT_REUSE", 1, "leaves no weights of this shape in these banks"),
    ("conv", CNA.CBUF_CON0, "DATA_REUSE", 1, "leaves no features of this shape in these banks"),
    ("conv", CNA.CBUF_CON1, "DATA_ENTRIES", 1, "less than a row of 320 bytes, 5 units of 64"),
    ("conv", CNA.FEATURE_DATA_ADDR, "FEATURE_BASE_ADDR", FEATURES + 8, "not a multiple of 16"),
    ("conv", CNA.DCOMP_ADDR0, "DECOMPRESS_ADDR0", WEIGHTS + 1, "is not a multiple of 16"),
    ("conv", DPU.DST_BASE_ADDR, "DST_BASE_ADDR", OUTPUT + 4, "is not a multiple of 16"),
    ("conv", DPU.DST_BASE_ADDR, "DST_BASE_ADDR", FEATURES + 64, "lies on the features at 0x100000"),
    ("conv", CNA.DMA_CON1, "LINE_STRIDE", 42, "is four rows, a multiple of 4 atoms"),
    ("conv", CNA.FC_DATA_SIZE0, "DMA_WIDTH", 9, "is DATAIN_WIDTH, which gives 10"),
    ("conv", CNA.WEIGHT_SIZE0, "WEIGHT_BYTES", 1, "is that of all kernels, which gives 18432"),
    ("conv", CNA.WEIGHT_SIZE1, "WEIGHT_BYTES_PER_KERNEL", 5, "which gives 288"),
    ("conv", CNA.DATA_SIZE3, "DATAOUT_ATOMICS", 99, "is the output's area, which gives 100"),
    ("conv", CNA.CONV_CON3, "CONV_X_STRIDE", 0, "has to be at least 1"),
    ("conv", CNA.CONV_CON3, "CONV_Y_STRIDE", 4, "the last of 10 windows at 35, behind the 10"),
    ("conv", CNA.PAD_CON0, "PAD_LEFT", 3, "is not below the kernel, which spans 3"),
    ("conv", CNA.CONV_CON1, "PROC_PRECISION", 2, "is IN_PRECISION, which gives 0"),
    ("conv", CORE.DATAOUT_SIZE_0, "DATAOUT_WIDTH", 5, "is DPU.WIDTH, which gives 9"),
    ("conv", CORE.MISC_CFG, "DW_EN", 1, "is 1 for depthwise alone, which gives 0"),
    ("conv", DPU.BS_OW_CFG, "SIZE_E_1", 3, "is atoms in a row - 1, which gives 1"),
    ("conv", DPU.BS_OW_CFG, "OW_SRC", 1, "is from memory, and BRDMA does not read it"),
    (
        "conv",
        DPU.SURFACE_ADD,
        "SURF_ADD",
        3,
        "is DST_SURF_STRIDE x atoms in a row, which gives 200",
    ),
    ("conv", DPU.DATA_CUBE_CHANNEL, "ORIG_CHANNEL", 64, "is not below the 64 kernels"),
    ("conv", DPU_RDMA.RDMA_DATA_CUBE_WIDTH, "WIDTH", 3, "is DPU.WIDTH, which gives 9"),
    ("conv", DPU_RDMA.RDMA_BRDMA_CFG, "BRDMA_DATA_USE", 0, "from memory, and BRDMA reads nothing"),
    ("conv", DPU_RDMA.RDMA_BS_BASE_ADDR, "BS_BASE_ADDR", 8, "is not a multiple of 16"),
    ("conv and add", DPU_RDMA.RDMA_SURF_NOTCH, "SURF_NOTCH_ADDR", 1, "is EW_SURF_NOTCH"),
    ("fp16 matmul", DPU.OUT_CVT_SCALE, "FP32TOFP16_EN", 0, "is 1 for fp16 output alone"),
    ("int8 matmul", DPU.FEATURE_MODE_CFG, "FLYING_MODE", 1, "nothing reads: start DPU_RDMA"),
    ("depthwise", CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS", 2, "is 1 for depthwise, which gives 1"),
    ("add", DPU.FEATURE_MODE_CFG, "FLYING_MODE", 0, "waits for CORE, which is not started"),
    ("add", DPU_RDMA.RDMA_ERDMA_CFG, "ERDMA_DISABLE", 1, "from memory, and ERDMA reads nothing"),
    ("conv", DPU.DST_BASE_ADDR, "DST_BASE_ADDR", WEIGHTS + 0x4800, "lies on the operands of chan"),
    ("conv", DPU.DST_SURF_STRIDE, "DST_SURF_STRIDE", 99, "the output lies on itself"),
    ("add", DPU.DST_BASE_ADDR, "DST_BASE_ADDR", FEATURES + 16, "the output lies on the main data"),
    ("maximum of windows", PPU.DATA_FORMAT, "INDEX_ADD", 5, "is DST_SURF_STRIDE, which gives 12"),
    ("maximum of windows", PPU_RDMA.RDMA_DATA_FORMAT, "IN_PRECISION", 2, "which gives 1"),
    ("lookup table", DPU.LUT_ACCESS_CFG, "LUT_ADDR", 1, "is entry 513 of a lookup table"),
    ("add", DPU.EW_CFG, "EDATA_SIZE", 2, "is ERDMA_DATA_SIZE, which gives 1"),
]
"""Program, register, field, a wrong value, and what is said of it."""


@pytest.mark.parametrize(
    ("name", "register", "field", "value", "text"),
    FIELDS,
    ids=[f"{name}-{register}.{field}-{value:#x}" for name, register, field, value, _ in FIELDS],
)
def test_a_wrong_field_is_named(
    name: str, register: Register, field: str, value: int, text: str
) -> None:
    problems = check_words(changed(PROGRAMS[name].words, register, **{field: value}))
    assert any(text in str(problem) for problem in problems), [*map(str, problems)]


def replaced(index: int, word: int) -> Words:
    """The convolution with one word changed; ``index`` counts from the end."""
    words = PROGRAMS["conv"].words.copy()
    words[index] = word
    return words


_PAD = next(i for i, w in enumerate(PROGRAMS["conv"].words.tolist()) if w & 0xFFFF == 0x1068)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (replaced(_PAD, 0x0201_0000_0111_1068), "PAD_CON0 = 273: reserved bits 0x100 are set"),
        (replaced(_PAD, 0x0801_0000_0011_1068), "target 0x0801, but its block is 0x0201"),
        (replaced(_PAD, 0x0201_0000_0011_106C), "register 0x106c cannot be reached"),
        (replaced(_PAD, 0x0201_0001_0000_1004), "reserved bits 0x10000 are set"),
        (replaced(_PAD, 0x0201_0000_0000_1000), "register 0x1000 cannot be reached"),
        (replaced(-2, 0), "the marker is missing before the enable word"),
        (replaced(-1, 0x0081_0000_0019_0008), "CNA and CORE start together or not at all"),
        (replaced(-1, 0x0081_0000_0005_0008), "a convolution needs the DPU behind it"),
        (replaced(-1, 0x0081_0000_011D_0008), "enable 0x11d: no such blocks, or none"),
        (replaced(-1, 0x0081_0000_001D_0010), "the enable word names register 0x0010"),
        (
            without(PROGRAMS["conv"].words, CNA.DATA_SIZE0, DPU.DST_BASE_ADDR),
            "keep what ran before: CNA.DATA_SIZE0, DPU.DST_BASE_ADDR",
        ),
    ],
)
def test_a_wrong_word_is_named(words: Words, text: str) -> None:
    problems = check.read_task(words).problems
    assert any(text in str(problem) for problem in problems), [*map(str, problems)]


def test_a_stream_of_nothing() -> None:
    assert check.check(Program([], [])) == []
    for words in (TILED.words[:0], np.zeros(8, np.uint64)):
        assert [str(p) for p in check_words(words)] == ["task 0: no enable word: nothing starts"]
    assert "no enable word" in str(check.read_task(TILED.words[:3]).problems[0])
    with pytest.raises(ProgramError, match="follow the last enable word"):
        check_words(np.append(TILED.words, TILED.words[:1]))


def _trailer_word(task: int, word: int) -> int:
    place = TILED.tasks[task]
    return place.offset + place.count - 4 + word


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        (0, CODE + 8, "no multiple of 16"),
        (0, CODE, "the chain goes on at 0x1000, the next task is at"),
        (1, 3, "the chain fetches 4 pairs of words, the next task has"),
        (0, 0, "would never complete"),
    ],
)
def test_a_broken_link_is_named(word: int, value: int, text: str) -> None:
    words = TILED.words.copy()
    register = (PC.BASE_ADDRESS, PC.REGISTER_AMOUNTS)[word]
    words[_trailer_word(0, word)] = register.block.target << 48 | value << 16 | register.offset
    streams = [
        Stream(CODE + 8 * task.offset, words[task.offset : task.offset + task.count])
        for task in TILED.tasks
    ]
    problems = list(check._chain(streams, range(len(streams))))
    assert [problem.task for problem in problems] == [0]
    assert text in str(problems[0])


# ---- Together with the simulated NPU ------------------------------------------------------------


class Judges:
    """The simulated NPU and the checker, on one job at CODE."""

    def __init__(self) -> None:
        self.memory = np.zeros(MEMORY, np.uint8)
        self.seen: dict[str, int] = {}

    def __call__(self, program: Program) -> tuple[str, list[check.Problem]]:
        """How the job ended ("ok" or a kind of fault), and what the checker says.

        It is run twice, as a job may find the register groups as another has left them.
        """
        npu = Npu(threads=1)
        npu.map(0, self.memory)
        tasks, end = program.tasks, ""
        self.memory[CODE : CODE + program.words.nbytes] = program.words.view(np.uint8)
        for _ in range(2):
            error = npu.run(
                CODE, tasks[0].count, len(tasks), tasks[-1].int_mask, work_limit=1 << 28
            ).error
            end = end or ("" if error is None else f"{error.kind}: {error}")
        kind = end.partition(":")[0] or "ok"
        self.seen[kind] = self.seen.get(kind, 0) + 1
        streams = [
            Stream(CODE + 8 * t.offset, program.words[t.offset : t.offset + t.count], t.int_mask)
            for t in tasks
        ]
        numbers = range(len(tasks))
        return kind, [
            *check._each(streams),
            *check._chain(streams, numbers),
            *check._state(streams, numbers),
            *check._interrupt(streams[-1], numbers[-1]),
            *check._words_kept(streams),
            *check._inside(streams, [(0, MEMORY)]),
        ]


def one_field(words: Words, index: int, rng: random.Random) -> str:
    """Change a field of a word, and say which."""
    register = REGISTERS[int(words[index]) & 0xFFFF]
    field = rng.choice(list(register.fields.values()))
    top = (1 << field.width) - 1
    value = int(words[index]) >> 16 & 0xFFFFFFFF
    old = (value & field.mask) >> field.lo
    new = rng.choice([0, 1, old + 1, old - 1, old ^ 1, 2 * old, top, rng.getrandbits(32)]) & top
    value = value & ~field.mask | new << field.lo
    words[index] = int(words[index]) & ~(0xFFFFFFFF << 16) | value << 16
    return f"{register}.{field.name} = {new}"


def registers_of(program: Program) -> list[list[int]]:
    """Of each task, where its words are that write a register other than the chain's.

    Of a lookup table's entries only some, as they are most of a stream.
    """
    found = []
    for task in program.tasks:
        places = range(task.offset, task.offset + task.count - 4)
        offsets = program.words & np.uint64(0xFFFF)
        entries = [i for i in places if offsets[i] == DPU.LUT_ACCESS_DATA.offset]
        dull = {*entries[1:-1]}
        found.append([i for i in places if program.words[i] and i not in dull])
    return found


CHAINS = {
    name: Program.join([PROGRAMS[part] for part in parts]).chained(CODE)
    for name, parts in {
        "three of a kind": ["conv", "conv", "conv"],
        "all kinds": ["conv", "maximum of windows", "add", "depthwise", "lookup table"],
        "ends in the PPU": ["fp16", "add", "mean of windows"],
    }.items()
}


def test_an_output_may_replace_what_it_is_made_of() -> None:
    """Element by element; not one atom further, and not where a window would see it."""
    words = PROGRAMS["add"].words
    for place, problems in ((FEATURES, 0), (ADDEND, 0), (ADDEND - 16, 1)):
        found = check_words(changed(words, DPU.DST_BASE_ADDR, DST_BASE_ADDR=place))
        assert len(found) == problems, place
    assert check_words(changed(PROGRAMS["conv"].words, DPU.DST_BASE_ADDR, DST_BASE_ADDR=FEATURES))


def test_rows_between_the_rows_of_another_tensor_are_not_on_it() -> None:
    def rows(start: int, pitch: int = 32, size: int = 16, count: int = 100) -> Access:
        end = start + (count - 1) * pitch + size
        return Access("rows", PC.BASE_ADDRESS, start, end, count * size, lines=(count, pitch))

    assert not rows(0).overlaps(rows(16))
    assert rows(0).overlaps(rows(32))
    assert rows(0).overlaps(rows(17))
    assert rows(0, 48).overlaps(rows(16))  # from the second on
    assert not rows(0).overlaps(rows(3200))
    assert rows(0, 16, 32).folded
    assert not rows(0, 32, 32).folded


@pytest.mark.parametrize("name", [*PROGRAMS, *CHAINS])
def test_it_agrees_with_the_simulated_npu(name: str) -> None:
    """One field at a time: what one refuses as wrong the other does, what runs passes.

    ``unsupported`` says that the simulator has no model, and is no verdict.
    """
    program = CHAINS[name] if name in CHAINS else PROGRAMS[name]
    rng, judges = random.Random(name), Judges()
    places = registers_of(program)
    assert judges(program) == ("ok", [])
    for _ in range(250):
        words = program.words.copy()
        what = one_field(words, rng.choice(rng.choice(places)), rng)
        kind, problems = judges(Program(words, program.tasks))
        if kind == "ok":
            assert problems == [], what
        elif kind != "unsupported":
            assert problems, f"{what}: {kind}"
    assert judges.seen["ok"] > 30
    assert sum(judges.seen.values()) - judges.seen["ok"] > 30


@pytest.mark.parametrize("name", [*PROGRAMS, *CHAINS])
def test_a_pointer_that_the_simulated_npu_refuses_is_named(name: str) -> None:
    """Any S_POINTER of any block of any task, among those that a stream may write."""
    program = CHAINS[name] if name in CHAINS else PROGRAMS[name]
    rng, judges = random.Random(name), Judges()
    pointers = [i for task in registers_of(program) for i in task if program.words[i] & 0xFFF == 4]
    for _ in range(60):
        words = program.words.copy()
        for index in rng.sample(pointers, rng.randint(1, min(3, len(pointers)))):
            words[index] = int(words[index]) & ~(0xFFFFFFFF << 16) | rng.getrandbits(6) << 16
        kind, problems = judges(Program(words, program.tasks))
        assert kind in ("ok", "timed out")
        assert bool(problems) == (kind != "ok"), (kind, [*map(str, problems)])
    assert len(judges.seen) == 2


@pytest.mark.parametrize("name", [*PROGRAMS, *CHAINS])
def test_words_that_the_simulated_npu_refuses_are_named(name: str) -> None:
    """Words lost, doubled, moved, swapped or flipped, trailers included.

    The other way round does not hold: what a stream leaves unwritten may happen to be right.
    """
    program = CHAINS[name] if name in CHAINS else PROGRAMS[name]
    rng, judges = random.Random(name), Judges()
    places = [i for task in program.tasks for i in range(task.offset, task.offset + task.count)]
    ends = [task.offset + task.count for task in program.tasks]
    trailers = [i for end in ends for i in range(end - 4, end)]
    for _ in range(120):
        words = program.words.copy()
        one, other = rng.choice(rng.choice([places, trailers])), rng.choice(places)
        how = rng.choice(["lose", "double", "swap", "flip", "other"])
        if how == "lose":
            words[one] = 0
        elif how == "double":
            words[one] = words[other]
        elif how == "swap":
            words[[one, other]] = words[[other, one]]
        elif how == "flip":
            words[one] ^= np.uint64(1 << rng.randrange(64))
        else:
            words[one] = rng.getrandbits(64)
        kind, problems = judges(Program(words, program.tasks))
        assert problems or kind in ("ok", "unsupported"), (how, one, other, kind)


# ---- Before a submit ----------------------------------------------------------------------------


def small(place: int, m: int = 4) -> Program:
    return matmul_program(
        m, 32, 32, np.int8, np.int32, place + 0x4000, place + 0x8000, place + 0xC000
    )


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc", "rocket"])
def test_a_bad_job_never_reaches_the_driver(name: str) -> None:
    with no_leak(), npukit.open(f"sim:{name}") as device:
        assert isinstance(device, RknpuDevice | RocketDevice)
        buffer = device.alloc(1 << 16)
        place = buffer.dma_address

        def submit(program: Program) -> None:
            code = program.chained(place)
            with buffer.access("w") as memory:
                memory[: code.words.nbytes] = code.words.view(np.uint8)
            if isinstance(device, RknpuDevice):
                device.submit(list(rknpu_tasks(code, place)))
            else:
                device.submit([RocketJob(rocket_tasks(code, place), (), (buffer,))])
                buffer.wait(5)

        good = small(place)
        submit(good)
        words = changed(good.words, CNA.CBUF_CON0, DATA_BANK=12)
        bad = Program(words, good.tasks)
        with pytest.raises(ProgramError, match=r"task 0: CNA\.CBUF_CON0\.WEIGHT_BANK = 11"):
            submit(bad)
        away = matmul_program(4, 32, 32, np.int8, np.int32, place, 0x70000000, place + 0xC000)
        with pytest.raises(ProgramError, match=r"reads weights at 0x70000000 .* in no buffer"):
            submit(away)
        device.checker = None
        if not isinstance(device, RknpuDevice):
            submit(bad)  # the driver takes it, and says nothing
        buffer.close()


def test_an_interrupt_that_cannot_come_is_refused() -> None:
    with no_leak(), npukit.open("sim:rknpu") as device:
        assert isinstance(device, RknpuDevice)
        buffer = device.alloc(1 << 16)
        code = small(buffer.dma_address).chained(buffer.dma_address)
        with buffer.access("w") as memory:
            memory[: code.words.nbytes] = code.words.view(np.uint8)
        del memory
        tasks = list(rknpu_tasks(code, buffer.dma_address))
        tasks[0].int_mask = 0xC00
        with pytest.raises(ProgramError, match="waits for more than the 0x3ff"):
            device.submit(tasks)
        buffer.close()


def test_more_words_than_can_be_fetched_are_refused() -> None:
    with no_leak(), npukit.open("sim:rknpu") as device:
        assert isinstance(device, RknpuDevice)
        buffer = device.alloc(2 << 20)
        tasks = list(rknpu_tasks(small(buffer.dma_address), buffer.dma_address))
        tasks[0].regcfg_amount = (2 << 16) - 3
        with pytest.raises(ProgramError, match="131073 words: the NPU fetches at most 131072"):
            device.submit(tasks)
        buffer.close()


def test_a_mask_that_would_not_be_heard_is_named() -> None:
    words = PROGRAMS["conv"].words
    said = {
        0x300: "",
        0x3FF: "",
        0: "waits for nothing",
        0x100: "one of two register groups",
        0xF00: "waits for more than the 0x3ff",
    }
    for mask, text in said.items():
        problems = [str(p) for p in check._interrupt(Stream(CODE, words, mask), 0)]
        assert len(problems) == (text != "")
        assert text in "".join(problems)
    tail = PROGRAMS["maximum of windows"].words
    assert list(check._interrupt(Stream(CODE, tail, 0xC00), 0)) == []
    assert list(check._interrupt(Stream(CODE, tail, 0x300), 0)) != []


def test_what_is_remembered_is_bounded() -> None:
    """Long streams are read each time; short ones are the same object again."""
    words = PROGRAMS["conv"].words
    assert check.read_task(words) is check.read_task(words.copy())
    long = np.concatenate([np.zeros(4096, np.uint64), words])
    assert check.read_task(long) is not check.read_task(long)
    assert check.read_task(long).problems == ()


def test_threads_check_at_once() -> None:
    programs = [PROGRAMS[name] for name in PROGRAMS] * 8
    check._remembered.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert all(found == [] for found in pool.map(lambda p: check.check(p, 0x7000), programs))


def test_it_can_be_left_out() -> None:
    with npukit.open("sim:rknpu", check=False) as device:
        assert isinstance(device, RknpuDevice)
        assert device.checker is None
    with npukit.open("sim:rocket") as device:
        assert isinstance(device, RocketDevice)
        assert device.checker is check.checker
