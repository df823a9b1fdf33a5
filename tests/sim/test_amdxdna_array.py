# SPDX-License-Identifier: MIT
"""The model of the AI Engine array: descriptors, locks, queues, routes, tokens, compute tiles."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npukit.ioctl import ProgramError
from npukit.programs.xdna import designs, registers
from npukit.programs.xdna.registers import (
    LOCAL_LOCK,
    LOCAL_MEMORY_WORD,
    MM2S,
    S2MM,
    BufferDescriptor,
)
from npukit.programs.xdna.txn import Assembler
from npukit.sim.aie import Array, ArrayError, Design, HostMemory, Port, Receive, Send, Stuck
from npukit.sim.aie_designs import DESIGNS


class Memory(HostMemory):
    """One buffer at an address."""

    BASE = 0x10000

    def __init__(self, size: int = 1 << 16) -> None:
        self.bytes = np.zeros(size, np.uint8)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        return self.bytes.view(np.uint32)

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        start = address - self.BASE
        if start < 0 or start + size > len(self.bytes):
            raise ArrayError(f"no memory at {address:#x}")
        return self.bytes[start : start + size]


LOOP = Design(b"loop", {Port(0, 0, MM2S, 0): (Port(0, 0, S2MM, 0),)})
"""What a shim tile sends comes back to it."""


def run(
    build: Callable[[Assembler], None],
    memory: Memory | None = None,
    design: Design | None = LOOP,
    columns: int = 1,
    array: Array | None = None,
) -> tuple[Array, Memory]:
    memory = memory or Memory()
    asm = Assembler()
    build(asm)
    array = array or Array(columns, memory, design)
    array.run(asm.finish(), [Memory.BASE, Memory.BASE + len(memory.bytes) // 2])
    return array, memory


def nest(dimensions: list[tuple[int, int]], length: int) -> list[int]:
    """Word offsets, one after the other, as counters in nested loops give them."""
    counters = [0] * len(dimensions)
    offsets = []
    for _ in range(length):
        offsets.append(sum(c * step for c, (_, step) in zip(counters, dimensions, strict=True)))
        for index, (size, _) in enumerate(dimensions):
            counters[index] += 1
            if size == 0 or counters[index] < size:
                break
            counters[index] = 0
    return offsets


shim_loops = st.tuples(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 5), st.integers(1, 40),
    st.integers(1, 200),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    loops=shim_loops,
    runs=st.integers(1, 4),
    step=st.integers(1, 30),
    wrap=st.integers(1, 3),
    length=st.integers(1, 60),
)
def test_a_shim_descriptor_moves_the_words_that_nested_loops_would(
    loops: tuple[int, ...], runs: int, step: int, wrap: int, length: int
) -> None:
    size0, step0, size1, step1, step2 = loops
    dimensions = [(size0, step0), (size1, step1), (0, step2)]
    memory = Memory(1 << 18)
    memory.words[:] = np.arange(len(memory.words))

    def build(asm: Assembler) -> None:
        bd = BufferDescriptor(length, 0, tuple(dimensions), step, wrap)
        asm.buffer_descriptor(0, 0, 0, bd)
        asm.patch(0, 0, 0, 0)
        asm.buffer_descriptor(0, 0, 1, BufferDescriptor(length * runs))
        asm.patch(0, 0, 1, 1)
        asm.start(0, 0, S2MM, 0, 1, token=True)
        asm.start(0, 0, MM2S, 0, 0, repeat=runs)
        asm.wait(S2MM, 0)

    run(build, memory)
    expected = [
        offset + (index % wrap) * step
        for index in range(runs)
        for offset in nest(dimensions, length)
    ]
    assert memory.words[1 << 15 :][: length * runs].tolist() == expected


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    steps=st.tuples(*[st.integers(1, 40)] * 4),
    length=st.integers(1, 80),
)
def test_a_memory_tile_reads_in_four_dimensions(
    sizes: tuple[int, ...], steps: tuple[int, ...], length: int
) -> None:
    dimensions = [*zip(sizes, steps[:3], strict=True), (0, steps[3])]
    memory = Memory(1 << 17)
    source = np.random.default_rng(0).integers(0, 1 << 32, 1 << 12, np.uint32)
    memory.words[: 1 << 12] = source

    def build(asm: Assembler) -> None:
        designs._through_memory_tile(asm)
        asm.buffer_descriptor(0, 1, 0, BufferDescriptor(1 << 12, LOCAL_MEMORY_WORD))
        out = BufferDescriptor(
            length, LOCAL_MEMORY_WORD, tuple(dimensions), acquire=(LOCAL_LOCK + 5, -1)
        )
        asm.buffer_descriptor(0, 1, 1, out)
        asm.start(0, 1, S2MM, 0, 0, token=True)
        asm.start(0, 1, MM2S, 0, 1)
        for bd, count in ((0, 1 << 12), (1, length)):
            asm.buffer_descriptor(0, 0, bd, BufferDescriptor(count))
            asm.patch(0, 0, bd, bd)
        asm.start(0, 0, MM2S, 0, 0)
        asm.wait(S2MM, 0, 1)
        asm.set_lock(0, 1, 5, 1)
        asm.start(0, 0, S2MM, 0, 1, token=True)
        asm.wait(S2MM, 0)

    run(build, memory)
    found = memory.words[1 << 14 :][:length]
    assert found.tolist() == source[nest(dimensions, length)].tolist()


def test_descriptors_lead_to_others_and_locks_order_them() -> None:
    memory = Memory()
    memory.words[:64] = np.arange(64)

    def build(asm: Assembler) -> None:
        designs._through_memory_tile(asm)
        # Two places, filled and emptied in turn: ping-pong.
        asm.set_lock(0, 1, 0, 2)
        for bd in (0, 1):
            place = LOCAL_MEMORY_WORD + 8 * bd
            asm.buffer_descriptor(
                0,
                1,
                bd,
                BufferDescriptor(8, place, next=1 - bd, acquire=(64, -1), release=(65, 1)),
            )
            asm.buffer_descriptor(
                0, 1, 2 + bd,
                BufferDescriptor(8, place, next=3 - bd, acquire=(65, -1), release=(64, 1)),
            )  # fmt: skip
        asm.start(0, 1, S2MM, 0, 0)
        asm.start(0, 1, MM2S, 0, 2)
        for bd in (0, 1):
            asm.buffer_descriptor(0, 0, bd, BufferDescriptor(64))
            asm.patch(0, 0, bd, bd)
        asm.start(0, 0, S2MM, 0, 1, token=True)
        asm.start(0, 0, MM2S, 0, 0)
        asm.wait(S2MM, 0)

    array, memory = run(build, memory)
    assert memory.words[1 << 13 :][:64].tolist() == list(range(64))
    # The ring goes on for ever: the writer has taken a place already and waits for data.
    assert array.tile(0, 1).locks[:2] == [1, 0]
    assert len(array.busy) == 2


def test_an_equal_acquire_waits_for_the_very_value() -> None:
    def build(value: int) -> Callable[[Assembler], None]:
        def inner(asm: Assembler) -> None:
            asm.set_lock(0, 0, 3, value)
            asm.buffer_descriptor(0, 0, 0, BufferDescriptor(1, acquire=(3, 2), release=(3, 5)))
            asm.patch(0, 0, 0, 0)
            asm.start(0, 0, MM2S, 0, 0, token=True)
            asm.wait(MM2S, 0)

        return inner

    array, _ = run(build(2))
    assert array.tile(0, 0).locks[3] == 5
    with pytest.raises(Stuck, match=r"it waits for lock 3 of shim tile \(0,0\), which is 3"):
        run(build(3))


def test_neighbouring_memory_tiles_are_reached_by_address_and_lock() -> None:
    def build(asm: Assembler) -> None:
        asm.write(registers.address(0, 1, 16), 1234)
        asm.write(registers.address(2, 1, 20), 5678)
        # From the middle tile: word 4 of the western neighbour, word 5 of the eastern one.
        asm.connect(1, 1, "DMA0", "DMA0")
        asm.buffer_descriptor(1, 1, 0, BufferDescriptor(1, 4, acquire=(3, -1)))
        asm.buffer_descriptor(1, 1, 1, BufferDescriptor(1, 2 * LOCAL_MEMORY_WORD + 5))
        asm.buffer_descriptor(
            1, 1, 2, BufferDescriptor(2, LOCAL_MEMORY_WORD, release=(2 * LOCAL_LOCK + 7, 3))
        )
        asm.set_lock(0, 1, 3, 1)
        asm.start(1, 1, S2MM, 0, 2, token=True)
        asm.start(1, 1, MM2S, 0, 0)
        asm.start(1, 1, MM2S, 0, 1)
        asm.wait(S2MM, 1, 1)

    array, _ = run(build, columns=3)
    assert array.tile(1, 1).memory[:2].tolist() == [1234, 5678]
    assert array.tile(0, 1).locks[3] == 0
    assert array.tile(2, 1).locks[7] == 3


def test_a_route_goes_through_switches_and_around_corners() -> None:
    memory = Memory()
    memory.words[:4] = [1, 2, 3, 4]

    def build(asm: Assembler) -> None:
        asm.connect(0, 0, "DMA0", "NORTH2")
        asm.connect(0, 1, "SOUTH2", "NORTH1")
        asm.connect(0, 2, "SOUTH1", "EAST3")
        asm.connect(1, 2, "WEST3", "SOUTH0")
        asm.connect(1, 1, "NORTH0", "SOUTH3")
        asm.connect(1, 0, "NORTH3", "DMA1")
        asm.buffer_descriptor(0, 0, 0, BufferDescriptor(4))
        asm.patch(0, 0, 0, 0)
        asm.buffer_descriptor(1, 0, 1, BufferDescriptor(4))
        asm.patch(1, 0, 1, 1)
        asm.start(0, 0, MM2S, 0, 0)
        asm.start(1, 0, S2MM, 1, 1, token=True)
        asm.wait(S2MM, 1, channel=1)

    run(build, memory, design=None, columns=2)
    assert memory.words[1 << 13 :][:4].tolist() == [1, 2, 3, 4]


def test_a_stream_may_go_to_several_places() -> None:
    memory = Memory()
    memory.words[0] = 9

    def build(asm: Assembler) -> None:
        asm.connect(0, 0, "DMA0", "NORTH0")
        asm.connect(0, 1, "SOUTH0", "DMA1")
        asm.connect(0, 1, "SOUTH0", "DMA2")
        for channel in (1, 2):
            bd = BufferDescriptor(1, LOCAL_MEMORY_WORD + channel)
            asm.buffer_descriptor(0, 1, 24 * (channel % 2), bd)
            asm.start(0, 1, S2MM, channel, 24 * (channel % 2))
        asm.buffer_descriptor(0, 0, 0, BufferDescriptor(1))
        asm.patch(0, 0, 0, 0)
        asm.start(0, 0, MM2S, 0, 0, token=True)
        asm.wait(MM2S, 0)

    array, _ = run(build, memory, design=None)
    assert array.tile(0, 1).memory[:3].tolist() == [0, 9, 9]


def send(asm: Assembler) -> None:
    asm.buffer_descriptor(0, 0, 0, BufferDescriptor(4))
    asm.patch(0, 0, 0, 0)
    asm.start(0, 0, MM2S, 0, 0)


def test_a_missing_route_names_tile_and_channel() -> None:
    with pytest.raises(Stuck, match=r"operation 3: .*shim tile \(0,0\) MM2S channel 0: no route"):
        run(send, design=None)
    with pytest.raises(Stuck, match="port table has none"):
        run(send, design=Design(b"x"))

    def broken(asm: Assembler) -> None:
        asm.connect(0, 0, "DMA0", "NORTH0")
        send(asm)

    with pytest.raises(Stuck, match="no route"):
        run(broken, design=None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda asm: asm.write(registers.address(1, 0, 0), 1), r"tile \(1,0\) is not in the"),
        (lambda asm: asm.write(registers.address(0, 6, 0), 1), r"tile \(0,6\) is not in the"),
        (lambda asm: asm.start(0, 0, MM2S, 0, 3), "descriptor 3 is not valid"),
        (lambda asm: asm.write(0x1A0604, 24), "descriptor 24 is not for this channel"),
        (lambda asm: asm.ddr_patch(0x1D004, 2), "argument 2 is patched in"),
        (lambda asm: asm.wait(S2MM, 0), "S2MM channel 0, which has nothing to do"),
        (lambda asm: asm.wait(S2MM, 0, channel=9), "which the tile does not have"),
        (lambda asm: asm.wait(7, 0), "direction 7"),
        (lambda asm: asm.mask_poll(0x14000, 1, 1), r"shim\(0,0\).LOCK0_VALUE stays 0x0"),
        (lambda asm: asm.load_pdi(1, 4, 0), "LOADPDI is not modelled"),
        (lambda asm: asm.raw(9, 1), "LOAD_PM_START is not modelled"),
        (
            lambda asm: [
                asm.buffer_descriptor(0, 0, 0, BufferDescriptor(4, 0x1000)),
                asm.start(0, 0, MM2S, 0, 0),
            ],
            "no memory at 0x1000",
        ),
        (
            lambda asm: [
                asm.buffer_descriptor(0, 1, 0, BufferDescriptor(9, 3 * LOCAL_MEMORY_WORD)),
                asm.connect(0, 1, "DMA0", "DMA0"),
                asm.start(0, 1, MM2S, 0, 0),
            ],
            "beyond all memory",
        ),
        (
            lambda asm: [
                asm.buffer_descriptor(0, 1, 0, BufferDescriptor(9, 2 * LOCAL_MEMORY_WORD - 4)),
                asm.connect(0, 1, "DMA0", "DMA0"),
                asm.start(0, 1, MM2S, 0, 0),
            ],
            "leaves the memory",
        ),
        (
            lambda asm: [
                asm.block_write(registers.address(0, 1, 0xA0000), [1 << 31 | 1, 0, 0, 0, 0, 0, 0,
                                                                   1 << 31]),
                asm.start(0, 1, MM2S, 0, 0),
            ],
            "uses packet, which is not modelled",
        ),
        (
            lambda asm: [
                asm.buffer_descriptor(0, 0, 0, BufferDescriptor(1)),
                *[asm.start(0, 0, S2MM, 0, 0) for _ in range(6)],
            ],
            "its queue of 4 tasks overflows",
        ),
        (
            lambda asm: [
                asm.set_lock(0, 0, 0, 63),
                asm.buffer_descriptor(0, 0, 0, BufferDescriptor(0, release=(0, 1))),
                asm.start(0, 0, S2MM, 0, 0),
            ],
            "leaves its range",
        ),
    ],
)  # fmt: skip
def test_what_the_array_cannot_do_is_named(
    build: Callable[[Assembler], None], message: str
) -> None:
    with pytest.raises(Stuck, match=message):
        run(build)


def test_a_stream_that_nobody_takes_stops_its_sender() -> None:
    def build(asm: Assembler) -> None:
        asm.buffer_descriptor(0, 0, 0, BufferDescriptor(1 << 15))
        asm.patch(0, 0, 0, 0)
        asm.start(0, 0, MM2S, 0, 0, token=True)
        asm.wait(MM2S, 0)

    with pytest.raises(Stuck, match="16384 of 32768 words of descriptor 0 are moved"):
        run(build, Memory(1 << 18))


def test_what_never_waits_is_found_out() -> None:
    def empty_ring(asm: Assembler) -> None:
        asm.buffer_descriptor(0, 0, 0, BufferDescriptor(0, next=0))
        asm.start(0, 0, MM2S, 0, 0)

    def data_ring(asm: Assembler) -> None:
        asm.connect(0, 1, "DMA0", "DMA0")
        asm.buffer_descriptor(0, 1, 0, BufferDescriptor(8, LOCAL_MEMORY_WORD, next=0))
        asm.start(0, 1, MM2S, 0, 0)
        asm.start(0, 1, S2MM, 0, 0)

    def restless(tile: object) -> object:
        while True:
            yield Receive(0, 0)

    for build, design in (
        (empty_ring, LOOP),
        (data_ring, LOOP),
        (lambda asm: asm.noop(), Design(b"r", {}, {(0, 2): restless})),  # type: ignore[dict-item]
    ):
        array = Array(1, Memory(), design)
        array.max_steps = 1000
        with pytest.raises(Stuck, match="goes in circles"):
            run(build, design=design, array=array)


def test_masks_polls_and_tokens() -> None:
    def build(asm: Assembler) -> None:
        tile = registers.address(0, 2, 0x32000)
        asm.write(tile, 0xF0)
        asm.mask_write(tile, 0x0F, 0x33)
        asm.mask_poll(tile, 0xC3, 0xFF)
        for _ in range(2):
            send(asm)
            asm.start(0, 0, S2MM, 0, 0, token=True)
        asm.wait(S2MM, 0)
        asm.wait(S2MM, 0)

    array, _ = run(build)
    assert not any(array.tokens.values())
    status = array.tile(0, 0).read(0x1D220)
    assert status & (1 << 19) == 0


def test_compute_tiles_are_programs_and_keep_their_state_from_run_to_run() -> None:
    def counter(tile: object) -> object:
        total = 0
        while True:
            data = yield Receive(0, 8)
            total += int(np.frombuffer(data, np.uint32).sum())
            yield Send(0, np.array([total], np.uint32).tobytes())

    design = Design(
        b"c",
        {
            Port(0, 0, MM2S, 0): (Port(0, 3, S2MM, 0),),
            Port(0, 3, MM2S, 0): (Port(0, 0, S2MM, 0),),
        },
        {(0, 3): counter},  # type: ignore[dict-item]
    )
    memory = Memory()
    memory.words[:4] = [1, 2, 3, 4]

    def build(asm: Assembler) -> None:
        asm.buffer_descriptor(0, 0, 0, BufferDescriptor(4))
        asm.patch(0, 0, 0, 0)
        asm.buffer_descriptor(0, 0, 1, BufferDescriptor(2))
        asm.patch(0, 0, 1, 1)
        asm.start(0, 0, S2MM, 0, 1, token=True)
        asm.start(0, 0, MM2S, 0, 0)
        asm.wait(S2MM, 0)

    array, _ = run(build, memory, design)
    assert memory.words[1 << 13 :][:2].tolist() == [3, 10]
    run(build, memory, design, array=array)
    assert memory.words[1 << 13 :][:2].tolist() == [13, 20]


def example_run(example: designs.Example, *inputs: npt.NDArray[np.generic]) -> bytes:
    """Run an example on a bare array: its buffers one behind the other."""
    sizes = [-(-b.nbytes // 4096) * 4096 for b in example.contract.bindings]
    memory = Memory(sum(sizes))
    places = [sum(sizes[:i]) for i in range(len(sizes))]
    for place, data in zip(places, inputs, strict=False):
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        memory.bytes[place : place + len(raw)] = raw
    pdi = next(d for d in DESIGNS if d.pdi in example.xclbin)
    array = Array(1, memory, pdi)
    for _ in range(2):  # again, as the array was left
        array.run(example.instructions, [Memory.BASE + place for place in places])
    last = example.contract.bindings[-1]
    return memory.bytes[places[-1] : places[-1] + last.nbytes].tobytes()


@pytest.mark.parametrize("nbytes", [4, 256, 4096, 1 << 20, 12 * 65536, 4 << 20])
def test_memcpy(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    assert example_run(designs.memcpy(nbytes), data) == data.tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (1, 1023), (1023, 1), (3, 5), (128, 1000)])
def test_transpose(shape: tuple[int, int]) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 32, shape, np.uint32)
    assert example_run(designs.transpose(*shape), data) == data.T.tobytes()


@pytest.mark.parametrize("length", [256, 2048, 1 << 16])
def test_vector_add(length: int) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-(1 << 31), 1 << 31, (2, length)).astype(np.int32)
    assert example_run(designs.vector_add(length), a, b) == (a + b).tobytes()


@pytest.mark.parametrize(
    "shape", [(16, 16, 16), (16, 2048, 32), (64, 48, 1024), (1024, 16, 16), (48, 80, 112)]
)
def test_matmul(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(3)
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    product = a.astype(np.int32) @ b.astype(np.int32)
    assert example_run(designs.matmul(m, k, n), a, b) == product.tobytes()


@pytest.mark.parametrize(
    "build",
    [
        lambda: designs.memcpy(0),
        lambda: designs.memcpy(6),
        lambda: designs.memcpy(8 << 20),
        lambda: designs.memcpy(4 * 65537),
        lambda: designs.transpose(1024, 1),
        lambda: designs.transpose(1000, 1000),
        lambda: designs.vector_add(100),
        lambda: designs.matmul(8, 16, 16),
        lambda: designs.matmul(1040, 16, 16),
        lambda: designs.matmul(16, 65552, 16),
    ],
)
def test_shapes_that_a_design_cannot_take_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ProgramError):
        build()
