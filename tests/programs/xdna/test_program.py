# SPDX-License-Identifier: MIT
"""Programs, kernels, runs, budgets and contexts, on simulated devices."""

import errno
import gc
import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import no_leak, wait_until

import npukit
from npukit._fast import PAGE_SIZE
from npukit.abi import amdxdna as abi
from npukit.abi import drm
from npukit.devices.amdxdna import HEAP_CHUNK, AmdxdnaBuffer, AmdxdnaDevice, BoKind
from npukit.ioctl import (
    DeviceBusy,
    DeviceClosed,
    DeviceLost,
    Fault,
    FaultyKernel,
    NpuError,
    ProgramError,
    WaitTimeout,
)
from npukit.programs.xdna import designs, ert, smoke, xclbin
from npukit.programs.xdna.program import (
    Binding,
    KernelContract,
    MemoryBudget,
    NpuKernel,
    NpuProgram,
    Run,
    quarantined,
)
from npukit.programs.xdna.txn import Assembler
from npukit.programs.xdna.xclbin import SectionKind, Xclbin, build_npu
from npukit.sim import SimKernel

NODE = "/dev/accel/accel0"
BYTES = 256
SLICE = 32 << 10
"""Slices of the heap begin at multiples of it."""
DATA = np.arange(BYTES, dtype=np.uint8)


def open_device(*faults: Fault, name: str = "amdxdna", tdr: int = 50) -> AmdxdnaDevice:
    kernel = SimKernel([name])
    kernel.devices[0].tdr_timeout_ms = tdr  # type: ignore[attr-defined]
    return AmdxdnaDevice(NODE, FaultyKernel(kernel, faults) if faults else kernel)


@pytest.fixture
def device() -> Iterator[AmdxdnaDevice]:
    with no_leak():
        with open_device() as device:
            yield device
        del device


def sim_of(device: AmdxdnaDevice) -> Any:
    kernel: Any = device.kernel
    return getattr(kernel, "kernel", kernel)


class Copy:
    """The memcpy design, loaded, with its buffers filled."""

    def __init__(self, device: AmdxdnaDevice, **options: Any) -> None:
        example = designs.memcpy(BYTES)
        self.program = NpuProgram.load(device, example.xclbin, **options)
        self.kernel = self.program.kernel(example.instructions, example.contract)
        self.source, self.target = self.kernel.alloc_all()
        with self.source.access("w") as memory:
            memory[:BYTES] = DATA

    def copied(self) -> bool:
        with self.target.access("r") as memory:
            return np.array_equal(memory[:BYTES], DATA)

    def hang(self) -> NpuKernel:
        """A kernel that waits for ever."""
        asm = Assembler()
        asm.wait(0, 0)
        return self.program.kernel(asm.finish(), self.kernel.contract)

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, *exception: object) -> None:
        self.source.close()
        self.target.close()
        self.kernel.close()
        self.program.close()


def test_a_kernel_runs_again_and_again(device: AmdxdnaDevice) -> None:
    with Copy(device) as copy:
        for _ in range(3):
            copy.target.array()[:] = 0
            copy.kernel(copy.source, copy.target)
            assert copy.copied()
        runs = [copy.kernel.start(copy.source, copy.target) for _ in range(6)]
        for run in runs:
            run.wait(5)
            run.wait()
            assert run.done
            assert run.state is ert.State.COMPLETED
        # Packets are used again: never more than ran at a time.
        assert 1 <= len(copy.program._resident._commands) <= 6
    assert sim_of(device).log == []


@pytest.mark.parametrize("name", ["amdxdna", "amdxdna-npu1"])
def test_the_smoke_steps_pass_on_both_generations(name: str) -> None:
    with no_leak(), npukit.open(f"sim:{name}") as device:
        assert isinstance(device, AmdxdnaDevice)
        for _name, check in smoke.steps(device):
            passed, detail = check(device)
            assert passed, detail


def test_one_container_is_one_program_while_it_lives(device: AmdxdnaDevice) -> None:
    data = designs.memcpy(BYTES).xclbin
    with NpuProgram.load(device, data) as one:
        for same in (bytearray(data), Xclbin(data)):
            with NpuProgram.load(device, same) as again:
                assert again._resident is one._resident
                assert len(device.contexts()) == 1
        assert len(device.contexts()) == 1
        assert one.identity == Xclbin(data).digest
        budget = MemoryBudget(1 << 20)
        with NpuProgram.load(device, data, budget=budget) as other:
            assert other._resident is not one._resident
    assert device.contexts() == []
    with NpuProgram.load(device, data) as two:
        assert two._resident is not one._resident
        with open_device() as second, NpuProgram.load(second, data) as three:
            assert three._resident is not two._resident
    with pytest.raises(DeviceClosed):
        one.alloc(10)


@pytest.mark.parametrize("path", ["design.xclbin", Path("design.xclbin")], ids=["str", "Path"])
def test_a_path_is_no_container(device: AmdxdnaDevice, path: Any) -> None:
    with pytest.raises(TypeError, match=r"bytes of an xclbin are needed, not .*read_bytes\(\)"):
        NpuProgram.load(device, path)
    assert device.contexts() == []


def test_one_that_closes_its_program_leaves_the_others_alone() -> None:
    example = designs.memcpy(BYTES)
    with no_leak(), open_device(tdr=1500) as device, Copy(device) as mine:
        theirs = NpuProgram.load(device, example.xclbin)
        kernel = theirs.kernel(example.instructions, example.contract)
        with theirs.alloc(BYTES) as target:
            stuck = mine.hang().start(mine.source, mine.target)
            left = kernel.start(mine.source, target)
            theirs.close()
            theirs.close()
            with pytest.raises(DeviceClosed):
                kernel.start(mine.source, target)
            with pytest.raises(DeviceClosed):
                theirs.alloc(1)
            assert not stuck.done
            assert target.in_use
            with pytest.raises(DeviceLost, match="TIMEOUT"):
                stuck.wait(10)
            # The driver's reset took all that was behind it.
            with pytest.raises(DeviceLost):
                left.wait(10)
        mine.kernel(mine.source, mine.target)
        assert mine.copied()
        # A program that is forgotten does not keep the context from going with the last.
        NpuProgram.load(device, example.xclbin)
        gc.collect()
        mine.program.close()
        assert device.contexts() == []


def test_a_context_whose_runs_nobody_awaited_can_be_given_up() -> None:
    with no_leak(), open_device(name="amdxdna-npu1") as device, Copy(device) as copy:
        copy.kernel.start(copy.source, copy.target)
        wait_until(lambda: not sim_of(device).devices[0].contexts()[0].jobs)
        programs = [NpuProgram.load(device, named(i)) for i in range(6)]
        assert not copy.source.in_use
        assert copy.copied()
        for program in programs:
            program.close()


def test_a_container_that_changes_while_it_is_loaded_is_refused() -> None:
    data = bytearray(designs.memcpy(BYTES).xclbin)
    kernel = SimKernel(["amdxdna"])

    class Changing(FaultyKernel):
        def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
            if request == abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX:
                data[-1] ^= 1
            return super().ioctl(fd, request, arg)

    with no_leak(), AmdxdnaDevice(NODE, Changing(kernel)) as device:
        with pytest.raises(ProgramError, match="changed while it was loaded"):
            NpuProgram.load(device, data)
        assert device.contexts() == []


def container(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {"column_width": 1, **changes}
    kernels = arguments.pop("kernels", [xclbin.NpuKernel("K", b"pdi", 2)])
    return build_npu(kernels, **arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (xclbin.build([]), "no AIE_PARTITION"),
        (container(column_width=9), "takes 9 columns, this NPU has 8"),
        (container(column_width=0), "takes 0 columns"),
        (container(kernels=[]), "no compute unit"),
        (
            container(kernels=[xclbin.NpuKernel("K", b"p", 1, tuple(map(str, range(33))))]),
            "33 compute units",
        ),
        (b"no container at all", "are no container"),
    ],
)
def test_a_container_that_this_npu_cannot_take(
    device: AmdxdnaDevice, data: bytes, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        NpuProgram.load(device, data)


def test_a_unit_that_no_pdi_serves(device: AmdxdnaDevice) -> None:
    file = Xclbin(container())
    metadata = file.metadata.replace("0x901", "0x902").encode()
    sections = [
        (s.kind, s.name, metadata if s.kind == SectionKind.EMBEDDED_METADATA else s.data)
        for s in file.sections
    ]
    with pytest.raises(ProgramError, match="no PDI serves the compute unit K:MLIRAIE"):
        NpuProgram.load(device, xclbin.build(sections))


TWO = KernelContract(Binding("a", (16,), np.int32, "r"), Binding("b", (16,), np.int32, "w"))


def stream(build: Any) -> bytes:
    asm = Assembler()
    build(asm)
    return asm.finish().to_bytes()


@pytest.mark.parametrize(
    ("instructions", "contract", "name", "message"),
    [
        (b"", TWO, None, "0 bytes of instructions"),
        (b"123", TWO, None, "3 bytes of instructions"),
        (b"1234", TWO, None, "words of 4 and a header"),
        (bytes(64), TWO, None, "version 0.0"),
        (stream(lambda a: a.ddr_patch(0, 2)), TWO, None, "patches argument 2, the contract has 2"),
        (stream(lambda a: a.write(1 << 25, 0)), TWO, None, "reaches column 1; the design has 1"),
        (stream(lambda a: a.wait(0, 0, columns=3)), TWO, None, "reaches column 2"),
        (stream(lambda a: a.noop()), TWO, "other", "which compute unit"),
        (
            stream(lambda a: a.noop()),
            KernelContract(*(Binding(c, (1,), np.int8) for c in "abc")),
            None,
            "has 2 buffer arguments, the contract 3",
        ),
    ],
)
def test_a_stream_that_could_not_run_is_refused(
    device: AmdxdnaDevice, instructions: bytes, contract: KernelContract, name: str, message: str
) -> None:
    with (
        NpuProgram.load(device, container()) as program,
        pytest.raises(ProgramError, match=message),
    ):
        program.kernel(instructions, contract, name)


@pytest.mark.parametrize(
    "bindings",
    [
        (),
        (Binding("a", (1,), np.int8), Binding("a", (1,), np.int8)),
        (Binding("a", (0,), np.int8),),
    ],
)
def test_a_contract_makes_sense(bindings: tuple[Binding, ...]) -> None:
    with pytest.raises(ValueError, match="contract"):
        KernelContract(*bindings)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (((1,), np.int8, "x"), ValueError),
        (((-1, -2), np.int8), ValueError),
        (((2,), object), ValueError),
        (((2,), np.dtype([("a", object)])), ValueError),
        (((1.5,), np.int8), TypeError),
        (((math.nan,), np.int8), TypeError),
        (((1,), "no type"), TypeError),
    ],
)
def test_a_binding_makes_sense(fields: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Binding("a", *fields)


def test_buffers_keep_the_contract(device: AmdxdnaDevice) -> None:
    with Copy(device) as copy, device.alloc(64, BoKind.DEV) as slice_of_heap:
        kernel, source, target = copy.kernel, copy.source, copy.target
        large = designs.memcpy(1 << 16)
        with copy.program.kernel(large.instructions, large.contract) as big:
            cases: list[tuple[NpuKernel, list[AmdxdnaBuffer], str]] = [
                (kernel, [source], "1 buffers are given for source, destination"),
                (kernel, [source, slice_of_heap], "destination: .* is no data buffer"),
                (kernel, [source, source], "source and destination are one buffer"),
                (big, [source, target], "source needs 65536 bytes"),
            ]
            for which, buffers, message in cases:
                with pytest.raises(ProgramError, match=message):
                    which(*buffers)
        with (
            open_device() as other,
            other.alloc(BYTES) as foreign,
            pytest.raises(NpuError, match="per open file"),
        ):
            kernel(source, foreign)
        gone = device.alloc(BYTES)
        gone.close()
        with pytest.raises(DeviceClosed):
            kernel(source, gone)
        # Read twice is no aliasing.
        both = KernelContract(Binding("a", (4,), np.int8, "r"), Binding("b", (4,), np.int8, "r"))
        with copy.program.kernel(stream(lambda a: a.noop()), both) as reader:
            reader(source, source)
        assert not source.in_use
    with pytest.raises(DeviceClosed):
        kernel(source, target)


def test_a_hang_names_the_place_in_the_stream(device: AmdxdnaDevice) -> None:
    with Copy(device) as copy, copy.hang() as kernel:
        with pytest.raises(DeviceLost) as caught:
            kernel(copy.source, copy.target)
        text = str(caught.value)
        assert "state TIMEOUT: stopped at operation 0" in text
        assert "wait until S2MM channel 0 of tile (0,0) has finished a task" in text
        # The driver has made the context anew: the program goes on.
        copy.kernel(copy.source, copy.target)
        assert copy.copied()


def test_what_the_firmware_refuses_is_an_error_and_no_loss(device: AmdxdnaDevice) -> None:
    with Copy(device) as copy:
        packet = bytearray(copy.kernel._packet)
        packet[8] = 9
        copy.kernel._packet = bytes(packet)
        with pytest.raises(NpuError, match="state ERROR") as caught:
            copy.kernel(copy.source, copy.target)
        assert not isinstance(caught.value, DeviceLost)
        packet[3] = 0x0F
        copy.kernel._packet = bytes(packet)
        with pytest.raises(NpuError, match="could not start the packet"):
            copy.kernel(copy.source, copy.target)


def test_a_run_that_is_awaited_too_shortly_goes_on_and_keeps_its_buffers() -> None:
    with no_leak(), open_device(tdr=1500) as device, Copy(device) as copy, copy.hang() as kernel:
        source = copy.program.alloc(BYTES)
        run = kernel.start(source, copy.target)
        with pytest.raises(WaitTimeout):
            run.wait(0.01)
        assert run.state is None
        assert not run.done
        source.close()
        assert not source.closed
        with pytest.raises(DeviceLost, match="TIMEOUT"):
            run.wait(10)
        assert source.closed
        log = sim_of(device).log
        assert not [text for text in log if "while a command uses" in text]


def test_the_first_run_of_a_context_does_not_wait_for_those_behind_it() -> None:
    """Its number is 0, and point 0 of a timeline stands for the newest one."""
    with no_leak(), open_device(tdr=1500) as device, Copy(device) as copy, copy.hang() as kernel:
        target = copy.program.alloc(BYTES)
        first = copy.kernel.start(copy.source, copy.target)
        stuck = kernel.start(copy.source, target)
        first.wait(1)
        assert first.seq == 0
        assert first.state is ert.State.COMPLETED
        with pytest.raises(DeviceLost):
            stuck.wait(10)
        target.close()


def test_a_call_that_takes_too_long_is_aborted() -> None:
    with no_leak(), open_device(tdr=60_000) as device, Copy(device) as copy:
        with copy.hang() as kernel:
            with pytest.raises(WaitTimeout):
                kernel(copy.source, copy.target, timeout=0.02)
            assert not copy.source.in_use
        assert device.contexts() == []
        copy.kernel(copy.source, copy.target)
        assert copy.copied()


class Late(FaultyKernel):
    """What one thread's requests answer reaches it only once ``go`` is set."""

    def __init__(self, kernel: SimKernel) -> None:
        super().__init__(kernel, [])
        self.late: threading.Thread | None = None
        self.answered, self.go = threading.Event(), threading.Event()

    def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
        try:
            return super().ioctl(fd, request, arg)
        finally:
            if threading.current_thread() is self.late:
                self.answered.set()
                self.go.wait(10)


@pytest.mark.parametrize("early", [False, True])
def test_a_wait_that_is_aborted_tells_of_the_abort(early: bool) -> None:
    """Its packet has served other runs and its context is gone before it looks."""
    simulated = SimKernel(["amdxdna"])
    simulated.devices[0].tdr_timeout_ms = 60_000  # type: ignore[attr-defined]
    late = Late(simulated)
    with no_leak(), AmdxdnaDevice(NODE, late) as device, Copy(device) as copy:
        outcome: list[tuple[type[BaseException] | None, ert.State | None]] = []
        with copy.hang() as kernel:
            run = kernel.start(copy.source, copy.target)

            def waiting(run: Run) -> None:
                try:
                    run.wait(0 if early else 20)
                    outcome.append((None, run.state))
                except NpuError as error:
                    outcome.append((type(error), run.state))

            thread = threading.Thread(target=waiting, args=(run,))
            late.late = thread
            thread.start()
            if early:
                # Its time is over, and it does not know yet.
                assert late.answered.wait(10)
            assert run.abort()
            copy.kernel(copy.source, copy.target)
            late.go.set()
            thread.join(20)
            assert outcome == [(DeviceLost, ert.State.ABORT)]
            with pytest.raises(DeviceLost, match="state ABORT"):
                run.wait()
        assert copy.copied()
        del run


def test_threads_wait_for_one_run_and_another_aborts_it() -> None:
    with no_leak(), open_device(tdr=60_000) as device, Copy(device) as copy, copy.hang() as kernel:
        for _ in range(5):
            run = kernel.start(copy.source, copy.target)
            outcomes: list[str] = []

            def waiting(run: Run = run, outcomes: list[str] = outcomes) -> None:
                try:
                    run.wait(20)
                except NpuError as error:
                    outcomes.append(f"{type(error).__name__} {run.state}")

            threads = [threading.Thread(target=waiting) for _ in range(4)]
            threads += [threading.Thread(target=run.abort) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert outcomes == [f"DeviceLost {ert.State.ABORT}"] * 4
            copy.kernel(copy.source, copy.target)
        assert copy.copied()
        assert not copy.source.in_use


def test_a_start_that_is_overtaken_by_an_abort_tells_of_it() -> None:
    """Its context goes while it waits for a place in the queue."""
    with no_leak(), open_device(tdr=60_000) as device, Copy(device) as copy, copy.hang() as kernel:
        runs = [kernel.start(copy.source, copy.target) for _ in range(4)]
        errors: list[BaseException] = []

        def fifth() -> None:
            try:
                copy.kernel(copy.source, copy.target)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=fifth)
        thread.start()
        context = next(iter(sim_of(device).devices[0].contexts()))
        wait_until(lambda: context.waiting, 10)
        assert runs[2].abort()
        thread.join(10)
        assert list(map(type, errors)) == [DeviceLost]
        assert all(run.state is ert.State.ABORT for run in runs)
        assert copy.program._resident._runs == set()
        copy.kernel(copy.source, copy.target)
        assert copy.copied()


class Interrupt(Exception):
    pass


class Interrupting(FaultyKernel):
    """Sends a signal while a command is awaited."""

    armed = False

    def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
        if self.armed and request == drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        return super().ioctl(fd, request, arg)


def test_a_call_that_is_interrupted_is_aborted() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    simulated = SimKernel(["amdxdna"])
    simulated.devices[0].tdr_timeout_ms = 60_000  # type: ignore[attr-defined]
    kernel = Interrupting(simulated, [])
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with no_leak(), AmdxdnaDevice(NODE, kernel) as device, Copy(device) as copy:
            kernel.armed = True
            with copy.hang() as hanging, pytest.raises(Interrupt):
                hanging(copy.source, copy.target)
            assert not copy.source.in_use
            assert copy.program._resident._runs == set()
            copy.kernel(copy.source, copy.target)
            assert copy.copied()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("timeout", [math.nan, -math.inf, -1.0, -1])
def test_a_timeout_that_is_none_submits_nothing(device: AmdxdnaDevice, timeout: float) -> None:
    with Copy(device) as copy:
        with pytest.raises(ValueError, match="a timeout of"):
            copy.kernel(copy.source, copy.target, timeout=timeout)
        assert device.contexts()[0].reached() == 0
        assert not copy.source.in_use
        copy.kernel(copy.source, copy.target, timeout=math.inf)
        copy.kernel(copy.source, copy.target, timeout=10**400)
        assert copy.copied()
        run = copy.kernel.start(copy.source, copy.target)
        for wait in (run.wait, lambda t: device.contexts()[0].wait(0, t)):
            with pytest.raises(ValueError, match="a timeout of"):
                wait(timeout)
        run.wait(math.inf)


def test_a_run_that_cannot_be_ended_is_quarantined_and_stays_charged() -> None:
    destroy = abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX
    with no_leak():
        budget = MemoryBudget(1 << 20)
        device = open_device(Fault(errno.ENODEV, request=destroy), tdr=60_000)
        with device:
            copy = Copy(device, budget=budget)
            kernel = copy.hang()
            run = kernel.start(copy.source, copy.target)
            assert run.abort() is False
            assert not run.done
            assert {copy.source, copy.target} < set(quarantined(device))
            copy.__exit__()
            kernel.close()
            assert not copy.source.closed
            assert copy.source.in_use
            # Two buffers, the instructions, the packet, and the PDI of the context that stays.
            assert budget.used == 2 * PAGE_SIZE + SLICE + PAGE_SIZE + SLICE
        # With the device's file all is over.
        assert copy.source.closed
        assert budget.used == 0
        log = sim_of(device).log
        assert not [text for text in log if "TDR" in text]
        del device, copy, kernel, run


def test_a_budget_is_charged_from_allocation_to_the_end(device: AmdxdnaDevice) -> None:
    budget = MemoryBudget(1 << 18)
    with Copy(device, budget=budget) as copy:
        # The PDI and the instructions are slices of the heap, the rest is of pages.
        assert budget.used == 2 * SLICE + 2 * PAGE_SIZE
        copy.kernel(copy.source, copy.target)
        assert budget.used == 2 * SLICE + 3 * PAGE_SIZE
        for kind, size, taken in (
            (BoKind.SHARE, 1, PAGE_SIZE),
            (BoKind.SHARE, PAGE_SIZE + 1, 2 * PAGE_SIZE),
            (BoKind.DEV, 1, SLICE),
            (BoKind.DEV, SLICE + 1, 2 * SLICE),
        ):
            before = budget.used
            with copy.program.alloc(size, kind):
                assert budget.used == before + taken
            assert budget.used == before
        text = f"a buffer needs {1 << 18} bytes; {(1 << 18) - before} of {1 << 18} are left"
        with pytest.raises(NpuError, match=text) as caught:
            copy.program.alloc(1 << 18)
        assert caught.value.errno == errno.ENOMEM
        for nothing, expected in ((0, ValueError), (-1, ValueError), (math.nan, TypeError)):
            with pytest.raises(expected):
                copy.program.alloc(nothing)  # type: ignore[arg-type]
            assert budget.used == before
    assert budget.used == 0
    with pytest.raises(NpuError, match="the program's PDIs needs"):
        NpuProgram.load(device, designs.memcpy(BYTES).xclbin, budget=MemoryBudget(SLICE - 1))
    reservation = budget.reserve(10)
    reservation.release()
    reservation.release()
    assert budget.used == 0


@pytest.mark.parametrize(
    ("size", "error"), [(-1, ValueError), (math.nan, TypeError), (1.5, TypeError)]
)
def test_a_budget_is_of_whole_bytes(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        MemoryBudget(size)
    budget = MemoryBudget(10)
    with pytest.raises(error):
        budget.reserve(size)
    assert budget.used == 0


def test_units_of_one_image_are_charged_once(device: AmdxdnaDevice) -> None:
    kernels = [xclbin.NpuKernel(f"K{i}", b"pdi", 1, dpu_kernel_id=i + 1) for i in range(3)]
    budget = MemoryBudget(1 << 20)
    with NpuProgram.load(device, build_npu(kernels, column_width=1), budget=budget):
        assert budget.used == SLICE
        # The driver's own count, in pages: the image, and the context's four slots.
        usage = device.memory_usage(os.getpid())
        assert usage is not None
        assert usage[2] == PAGE_SIZE + 4 * PAGE_SIZE


def named(index: int) -> bytes:
    """A container of its own identity, with the memcpy image."""
    kernel = xclbin.NpuKernel("MLIR_AIE", designs.MEMCPY_PDI, 2, (f"I{index}",))
    return build_npu([kernel], column_width=1)


@pytest.mark.parametrize("name", ["amdxdna", "amdxdna-npu1"])
@pytest.mark.parametrize("widths", [(4, 1), (1, 4), (2, 2, 3)])
def test_idle_contexts_give_way_where_columns_are_short(name: str, widths: tuple[int, ...]) -> None:
    example = designs.memcpy(BYTES)
    with no_leak(), open_device(name=name) as device:
        programs = []
        for index, width in enumerate(widths):
            kernel = xclbin.NpuKernel("MLIR_AIE", designs.MEMCPY_PDI, 2, (f"I{index}",))
            programs.append(NpuProgram.load(device, build_npu([kernel], column_width=width)))
        for program in programs:
            with program.kernel(example.instructions, example.contract) as run_kernel:
                source, target = run_kernel.alloc_all()
                run_kernel(source, target)
                source.close()
                target.close()
        for program in programs:
            program.close()


@pytest.mark.parametrize("name", ["amdxdna", "amdxdna-npu1"])
def test_contexts_are_given_up_least_recently_used_first(name: str) -> None:
    with no_leak(), open_device(name=name) as device:
        limit = device.resources().contexts_max  # type: ignore[union-attr]
        example = designs.memcpy(BYTES)
        programs = [NpuProgram.load(device, named(i)) for i in range(limit)]
        kernels = [p.kernel(example.instructions, example.contract) for p in programs]
        source, target = kernels[0].alloc_all()
        assert len(device.contexts()) == limit
        kernels[0](source, target)  # now the second is the one used longest ago
        extra = NpuProgram.load(device, named(limit))
        assert len(device.contexts()) == limit
        alive = [p._resident._context is not None for p in programs]
        assert alive == [True, False, *[True] * (limit - 2)]
        # Used again, it gets a context again.
        kernels[1](source, target)
        assert len(device.contexts()) == limit
        for program in (*programs, extra):
            program.close()
        source.close()
        target.close()
        assert device.contexts() == []


def test_contexts_that_run_are_never_given_up() -> None:
    with no_leak(), open_device(tdr=3000) as device:
        copies = []
        runs: list[Run] = []
        example = designs.memcpy(BYTES)
        asm = Assembler()
        asm.wait(0, 0)
        for index in range(16):
            program = NpuProgram.load(device, named(index))
            kernel = program.kernel(asm.finish(), example.contract)
            buffers = kernel.alloc_all()
            runs.append(kernel.start(*buffers))
            copies.append((program, buffers))
        with pytest.raises(DeviceBusy, match="all 16 hardware contexts run"):
            NpuProgram.load(device, named(99))
        for run in runs:
            with pytest.raises(DeviceLost):
                run.wait(20)
        NpuProgram.load(device, named(99)).close()
        for program, buffers in copies:
            program.close()
            for buffer in buffers:
                buffer.close()


def test_contexts_of_others_make_ours_give_way() -> None:
    kernel = SimKernel(["amdxdna-npu1"])
    with no_leak(), AmdxdnaDevice(NODE, kernel) as other, AmdxdnaDevice(NODE, kernel) as device:
        theirs = [other.context(1) for _ in range(4)]
        ours = [NpuProgram.load(device, named(i)) for i in range(2)]
        third = NpuProgram.load(device, named(3))
        assert ours[0]._resident._context is None
        theirs += [other.context(1) for _ in range(0)]
        for program in (*ours, third):
            program.close()
        theirs.append(other.context(1))
        theirs.append(other.context(1))
        with pytest.raises(DeviceBusy, match="counting those of other processes"):
            NpuProgram.load(device, named(4))
        for context in theirs:
            context.close()


def test_threads_share_a_kernel(device: AmdxdnaDevice) -> None:
    example = designs.vector_add(256)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            buffers = kernel.alloc_all()
            for _ in range(10):
                a, b = rng.integers(-1000, 1000, (2, 256)).astype(np.int32)
                buffers[0].array(np.int32, 256)[:] = a
                buffers[1].array(np.int32, 256)[:] = b
                kernel(*buffers, timeout=20)
                assert np.array_equal(buffers[2].array(np.int32, 256), a + b)
            for buffer in buffers:
                buffer.close()
        except BaseException as error:
            errors.append(error)

    with (
        NpuProgram.load(device, example.xclbin) as program,
        program.kernel(example.instructions, example.contract) as kernel,
    ):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert sim_of(device).log == []


def test_a_device_closed_first_takes_all_with_it() -> None:
    with no_leak():
        device = open_device(tdr=60_000)
        copy = Copy(device)
        run = copy.hang().start(copy.source, copy.target)
        device.close()
        assert copy.source.closed
        with pytest.raises(DeviceClosed):
            copy.kernel(copy.source, copy.target)
        copy.__exit__()
        assert not [t for t in sim_of(device).log if "while a command uses" in t]
        del device, copy, run
        gc.collect()


def test_a_large_program_makes_the_heap_grow(device: AmdxdnaDevice) -> None:
    kernels = [
        xclbin.NpuKernel(f"K{i}", bytes([i]) * (40 << 20), 2, dpu_kernel_id=i + 1) for i in range(3)
    ]
    with NpuProgram.load(device, build_npu(kernels, column_width=1)) as program:
        assert device.heap_size == 2 * HEAP_CHUNK
        assert [unit.name for unit in program.xclbin.compute_units][2] == "K2:MLIRAIE"
