# SPDX-License-Identifier: MIT
import errno
import gc
import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import no_leak

import npukit.devices.amdxdna
import npukit.devices.drm
from npukit.abi import amdxdna as abi
from npukit.abi import drm
from npukit.devices.amdxdna import (
    CMD_BYTES,
    HEAP_CHUNK,
    AmdxdnaDevice,
    BoKind,
    HwContext,
    PowerMode,
    Priority,
    Quirks,
)
from npukit.ioctl import (
    DeviceBusy,
    DeviceClosed,
    Fault,
    FaultyKernel,
    Kernel,
    KernelCall,
    NpuError,
    ProgramError,
    TracingKernel,
    WaitTimeout,
)
from npukit.programs.xdna import designs, smoke
from npukit.programs.xdna.program import NpuProgram
from npukit.sim import SimKernel

NAMES = ["amdxdna", "amdxdna-npu1"]
CODES = [
    errno.E2BIG,
    errno.EACCES,
    errno.EAGAIN,
    errno.EALREADY,
    errno.EBUSY,
    errno.EFAULT,
    errno.EINTR,
    errno.EINVAL,
    errno.EIO,
    errno.ENODEV,
    errno.ENOENT,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.ETIME,
]
"""All that the driver and DRM's core answer to a request."""
CREATE = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX"
SYNC, EXEC = abi.DRM_IOCTL_AMDXDNA_SYNC_BO, abi.DRM_IOCTL_AMDXDNA_EXEC_CMD


@pytest.fixture(params=NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[AmdxdnaDevice]:
    with no_leak():
        with npukit.open(f"sim:{request.param}") as device:
            assert isinstance(device, AmdxdnaDevice)
            yield device
        del device


@pytest.fixture
def strix() -> Iterator[AmdxdnaDevice]:
    with no_leak():
        with npukit.open("sim:amdxdna") as device:
            assert isinstance(device, AmdxdnaDevice)
            yield device
        del device


def test_what_the_device_is(device: AmdxdnaDevice) -> None:
    phoenix = device.columns == 5
    assert device.columns in (5, 8)
    assert device.core_rows == 4
    assert device.version.name == "amdxdna_accel_driver"
    assert device.quirks == Quirks(needs_arguments=False, has_get_array=True)
    assert device.heap_size == HEAP_CHUNK
    assert device.heap_max == (HEAP_CHUNK if phoenix else 8 * HEAP_CHUNK)
    assert device.clocks() == {
        "MP-NPU Clock": 847 if phoenix else 1267,
        "H Clock": 1600 if phoenix else 1800,
    }
    sensors = device.sensors()
    assert sensors is not None
    assert (sensors[0].label, sensors[0].units) == ("Total Power", "W")
    # 300 mW while nothing runs.
    assert sensors[0].value == pytest.approx(0.3)
    assert all((sensor.value, sensor.units) == (0, "%") for sensor in sensors[1:])
    assert len(sensors) == 1 + device.columns
    resources = device.resources()
    assert resources is not None
    assert (resources.contexts_max, resources.contexts) == (6 if phoenix else 16, 0)
    assert device.firmware_version() is not None
    telemetry = device.telemetry()
    assert telemetry is not None
    assert len(telemetry) == 4096
    head = 16 + 4 * device.contexts_max
    for size in (0, head, head + (4 << 20) + 1):
        with pytest.raises(ValueError, match=f"{size} bytes of telemetry: .* take {head}, "):
            device.telemetry(size)
    assert len(device.telemetry(head + 1) or b"") == head + 1
    assert device.power_mode is PowerMode.DEFAULT
    usage = device.memory_usage(os.getpid())
    assert usage == (HEAP_CHUNK, HEAP_CHUNK, 0)
    if os.geteuid() == 0:
        device.set_power_mode(PowerMode.TURBO)
        assert device.power_mode is PowerMode.TURBO


def test_questions_that_an_older_driver_does_not_know_have_no_answer() -> None:
    request = abi.DRM_IOCTL_AMDXDNA_GET_INFO
    with no_leak():
        kernel = SimKernel(["amdxdna"])
        faulty = FaultyKernel(
            kernel, [Fault(errno.EOPNOTSUPP, request=request, after=1, times=None)]
        )
        with AmdxdnaDevice("/dev/accel/accel0", faulty) as device:
            assert device.resources() is device.clocks() is device.sensors() is None
            assert device.telemetry() is device.firmware_version() is None
            with pytest.raises(NpuError, match="does not know the question"):
                _ = device.power_mode
    assert Quirks.of((0, 0)) == Quirks(needs_arguments=True, has_get_array=False)
    assert Quirks.of((1, 0)) == Quirks(needs_arguments=False, has_get_array=True)


def test_numbers_that_make_no_sense_are_refused(device: AmdxdnaDevice) -> None:
    for kind in (BoKind.SHARE, BoKind.DEV, BoKind.CMD):
        for size in (0, -1, -(1 << 64)):
            with pytest.raises(ValueError, match=f"a buffer of {size} bytes"):
                device.alloc(size, kind)
        for size in (1.5, math.nan, math.inf):
            with pytest.raises(TypeError):
                device.alloc(size, kind)  # type: ignore[arg-type]
    names = ("gops", "fps", "dma_bandwidth", "latency", "frame_exec_time", "ops_per_cycle")
    for name in names:
        for wish in (-1, 1 << 32):
            with pytest.raises(ValueError, match=f"{name}={wish}"):
                device.context(1, **{name: wish})
    with pytest.raises(TypeError):
        device.context(1.5)  # type: ignore[arg-type]
    for pid in (0, -1, 1 << 63):
        with pytest.raises(ValueError, match=f"process {pid}"):
            device.memory_usage(pid)
    with device.context(1) as context:
        for seq in (-1, 1 << 64):
            with pytest.raises(ValueError, match=f"command {seq}"):
                context.wait(seq, 0)
    for heap_size in (math.nan, float(HEAP_CHUNK)):
        with pytest.raises(TypeError):
            AmdxdnaDevice(device.path, device.kernel, heap_size=heap_size)  # type: ignore[arg-type]


def test_buffers_are_mapped_and_have_an_address(device: AmdxdnaDevice) -> None:
    with device.alloc(5000) as data, device.alloc(100, BoKind.DEV) as code:
        assert (data.size, data.kind) == (8192, BoKind.SHARE)
        assert data.dma_address == data.map().address
        assert code.dma_address == 0x4000000
        with data.access("w") as memory:
            memory[:4] = [1, 2, 3, 4]
        assert data.array(np.uint32, 1)[0] == 0x04030201
        code.write(b"hello", offset=3)
        assert code.array(offset=3, shape=5).tobytes() == b"hello"
        assert code.views == 0
        del memory
        for wrong in (
            lambda: code.array(np.uint8, 4097),
            lambda: code.array(offset=-1),
            lambda: code.write(bytes(4097)),
            lambda: data.write(b"x", offset=8192),
            lambda: data.flush(0, 8193),
            lambda: data.flush(-1),
        ):
            with pytest.raises(ValueError, match=r"not|fit"):
                wrong()
    with pytest.raises(DeviceClosed):
        code.array()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.alloc(0),
        lambda d: d.alloc(4096, BoKind.HEAP),
        lambda d: d.alloc(4096, 9),
        lambda d: d.alloc(d.heap_max + 1, BoKind.DEV),
        lambda d: AmdxdnaDevice("/dev/accel/accel0", d.kernel, heap_size=4096),
    ],
)
def test_what_the_driver_would_refuse_is_said_before(
    device: AmdxdnaDevice, wrong: Callable[[AmdxdnaDevice], object]
) -> None:
    with pytest.raises(ValueError, match=r"heap|bytes|valid"):
        wrong(device)


def test_the_heap_is_aligned_and_grows_in_one_piece(strix: AmdxdnaDevice) -> None:
    slices = [strix.alloc(40 << 20, BoKind.DEV) for _ in range(12)]
    assert strix.heap_size == strix.heap_max == 512 << 20
    bases = [piece.map().address for piece in strix._heap]
    assert bases == [bases[0] + HEAP_CHUNK * i for i in range(8)]
    assert bases[0] % HEAP_CHUNK == 0
    crossing = next(
        s
        for s in slices
        if s.dma_address // HEAP_CHUNK != (s.dma_address + s.size - 1) // HEAP_CHUNK
    )
    with pytest.raises(ValueError, match="crosses two pieces"):
        crossing.array()
    pattern = np.arange(crossing.size // 4, dtype=np.uint32)
    crossing.write(pattern.tobytes())
    piece, place = strix._heap_at(crossing.dma_address)
    head = piece.array(np.uint32, offset=place)
    assert np.array_equal(head, pattern[: len(head)])
    del head
    with pytest.raises(NpuError, match=r"large as this NPU allows|no room left"):
        strix.alloc(40 << 20, BoKind.DEV)
    with pytest.raises(NpuError, match="512 of 512 MiB"):
        strix.grow_heap()
    for buffer in slices:
        buffer.close()
    strix.alloc(400 << 20, BoKind.DEV).close()


def test_a_large_heap_can_be_asked_for_at_once_but_not_on_phoenix() -> None:
    with no_leak():
        kernel = SimKernel(["amdxdna"])
        with AmdxdnaDevice("/dev/accel/accel0", kernel, heap_size=4 * HEAP_CHUNK) as device:
            assert device.heap_size == 4 * HEAP_CHUNK
            device.alloc(200 << 20, BoKind.DEV).close()
        with pytest.raises(NpuError, match="as large as this NPU allows"):
            AmdxdnaDevice(
                "/dev/accel/accel0", SimKernel(["amdxdna-npu1"]), heap_size=2 * HEAP_CHUNK
            )


def test_contexts(device: AmdxdnaDevice) -> None:
    with device.context(2, [(b"a pdi", 0), (b"another", 1), (b"a pdi", 2)]) as context:
        assert device.contexts() == [context]
        assert len(context.units) == 2  # one buffer for each image
        (row,) = device.context_status()
        assert (row.context_id, row.priority) == (context.handle, Priority.NORMAL)
        with pytest.raises(ProgramError, match="only once"):
            context.configure([(b"x", 0)])
        assert context.reached() == 0
        with pytest.raises(WaitTimeout, match="makes no progress"):
            context.wait(3, 0.01)
    assert context.closed
    context.close()
    with pytest.raises(DeviceClosed):
        context.wait(0)
    for columns in (0, 9):
        with pytest.raises(ProgramError, match=f"{columns} columns"):
            device.context(columns)
    for units, message in (
        ([(b"", 0)], "0 bytes"),
        ([(b"x", 256)], "function 256"),
        ([(b"x", 0)] * 33, "33 compute units"),
    ):
        with pytest.raises(ProgramError, match=message):
            device.context(1, units)
    assert device.contexts() == []
    assert device.resources().contexts == 0  # type: ignore[union-attr]


def test_when_all_contexts_are_taken_the_error_says_so(device: AmdxdnaDevice) -> None:
    limit = device.resources().contexts_max  # type: ignore[union-attr]
    contexts = [device.context(1) for _ in range(limit)]
    with pytest.raises(DeviceBusy, match=f"all {limit} hardware contexts"):
        device.context(1)
    contexts.pop().close()
    contexts.append(device.context(1))
    for context in contexts:
        context.close()


def test_a_command_is_checked_before_the_driver_sees_it(strix: AmdxdnaDevice) -> None:
    with (
        strix.context(1) as bare,
        strix.context(1, [(b"pdi", 0)]) as context,
        strix.alloc(CMD_BYTES, BoKind.CMD) as command,
        strix.alloc(64, BoKind.DEV) as code,
        npukit.open("sim:amdxdna") as other,
    ):
        cases: list[tuple[HwContext, Any, list[Any], str]] = [
            (bare, command, [code], "not configured"),
            (context, code, [code], "cannot hold a packet"),
            (context, command, [code, code], "named twice"),
            (context, command, [other.alloc(64)], "per open file"),  # type: ignore[attr-defined]
        ]
        for where, packet, buffers, message in cases:
            with pytest.raises(NpuError, match=message):
                where.submit(packet, buffers)
        old = Quirks(needs_arguments=True, has_get_array=False)
        strix.quirks = old
        with pytest.raises(ProgramError, match="without a buffer"):
            context.submit(command, [])
        assert strix.context_status() == []


def test_a_buffer_in_use_is_closed_when_it_no_longer_is(strix: AmdxdnaDevice) -> None:
    seen: list[str] = []
    buffer = strix.alloc(4096)
    buffer.when_closed(lambda: seen.append("gone"))
    buffer.hold()
    buffer.hold()
    buffer.close()
    assert buffer.in_use
    assert not buffer.closed
    with pytest.raises(DeviceClosed, match="when the NPU is done"):
        buffer.array()
    buffer.release()
    assert seen == []
    buffer.release()
    assert buffer.closed
    assert seen == ["gone"]


def test_closing_the_device_ends_contexts_before_buffers() -> None:
    calls: list[int] = []

    class Watching(FaultyKernel):
        def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
            calls.append(int(request))
            return super().ioctl(fd, request, arg)

    with no_leak():
        device = AmdxdnaDevice("/dev/accel/accel0", Watching(SimKernel(["amdxdna"])))
        context = device.context(1, [(b"pdi", 0)])
        buffer = device.alloc(4096)
        buffer.hold()
        calls.clear()
        device.close()
        device.close()
        assert context.closed
        assert buffer.closed
        first = [drm.DRM_IOCTL_SYNCOBJ_DESTROY, abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX]
        assert calls[:2] == [int(request) for request in first]
        assert set(calls[2:]) == {int(drm.DRM_IOCTL_GEM_CLOSE)}
        del device, context, buffer


def test_strict_closing_leaves_all_as_it_was(strix: AmdxdnaDevice) -> None:
    context = strix.context(1)
    buffer = strix.alloc(4096)
    array = buffer.array()
    with pytest.raises(BufferError, match="AmdxdnaBuffer"):
        strix.close(strict=True)
    assert not context.closed
    del array
    strix.close(strict=True)
    assert context.closed


def test_what_the_npu_reads_is_flushed_and_what_it_wrote_is_forgotten() -> None:
    """In the order of the requests: SYNC_BO of each input before the command, of the output after.

    The simulated caches are coherent, so a flush that is missing shows nowhere else.
    """
    calls: list[tuple[Any, int]] = []

    def note(call: KernelCall) -> None:
        if call.name == "ioctl" and call.arguments[1] in (SYNC, EXEC):
            request, arg = call.arguments[1:3]
            calls.append((request, arg.handle if request == SYNC else arg.cmd_handles))

    example = designs.vector_add(256)
    with (
        AmdxdnaDevice("/dev/accel/accel0", TracingKernel(SimKernel(["amdxdna"]), note)) as device,
        NpuProgram.load(device, example.xclbin) as program,
        program.kernel(example.instructions, example.contract) as kernel,
    ):
        context = device.contexts()[0]
        (image,) = context.units
        assert calls == [(SYNC, image.handle), (SYNC, kernel._code.handle)]
        a, b, out = kernel.alloc_all()
        for buffer in (a, b):
            with buffer.access("w") as memory:
                memory[:] = 1
        assert calls[2:] == [(SYNC, a.handle), (SYNC, b.handle)]
        kernel(a, b, out)
        assert calls[4][0] == EXEC
        with out.access("r"):
            assert calls[5:] == [(SYNC, out.handle)]
        with out.access("rw"):
            pass
        assert calls[6:] == [(SYNC, out.handle)] * 2
        for buffer in (a, b, out):
            buffer.close()


def questions(device: AmdxdnaDevice) -> None:
    """What a program may ask beside its work, and what gives a descriptor or a piece of heap."""
    for question in (
        device.clocks,
        device.sensors,
        device.firmware_version,
        device.telemetry,
        device.context_status,
        lambda: device.memory_usage(os.getpid()),
        lambda: device.capability(drm.DRM_CAP_SYNCOBJ_TIMELINE),
    ):
        question()
    device.set_power_mode(device.power_mode)
    device.set_client_name("sweep")
    device.grow_heap()
    with device.alloc(4096) as shared:
        device.export(shared).close()


def scenario(kernel: Kernel, ask: bool = True) -> None:
    """All that a program does once: open, ask, load, run, read, close."""
    with AmdxdnaDevice("/dev/accel/accel0", kernel) as device:
        if ask:
            questions(device)
        data = np.arange(64, dtype=np.uint8)
        result = smoke.run_example(device, designs.memcpy(64), data)
        assert np.array_equal(result, data)
        example = designs.vector_add(256)
        with (
            NpuProgram.load(device, example.xclbin) as program,
            program.kernel(example.instructions, example.contract) as add,
        ):
            buffers = add.alloc_all()
            runs = [add.start(*buffers) for _ in range(2)]
            for run in runs:
                run.wait(5)
            assert device.contexts()[0].reached() == 1
            for buffer in buffers:
                buffer.close()


def attempt(simulated: SimKernel, fault: Fault) -> int:
    """The scenario with a fault; how many calls could fail. Errors are as they must be."""
    kernel = FaultyKernel(simulated, [fault])
    with warnings.catch_warnings():
        # What the failure kept from being closed may say so when it is collected.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            # A descriptor or a piece of heap whose number was lost is out of anybody's reach.
            scenario(kernel, ask=not fault.done)
        except OSError as error:
            if error.errno != fault.errno:
                # ENODEV of this one request says that no columns are free.
                assert isinstance(error, DeviceBusy)  # noqa: PT017
                assert (fault.errno, error.request) == (errno.ENODEV, CREATE)  # noqa: PT017
        gc.collect()
    return kernel.calls


@pytest.fixture
def small_garbage() -> Iterator[None]:
    """Collections look only at what comes from now on: there are hundreds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_the_sweep_makes_every_request_that_the_device_makes() -> None:
    seen = set()

    def note(call: KernelCall) -> None:
        if call.name == "ioctl":
            seen.add(call.arguments[1])

    with no_leak():
        scenario(TracingKernel(SimKernel(["amdxdna"]), note))
    source = inspect.getsource(npukit.devices.amdxdna) + inspect.getsource(npukit.devices.drm)
    names = set(re.findall(r"\b(?:drm_)?abi\.(DRM_IOCTL_\w+)", source))
    assert len(names) > 15
    assert {request.name for request in seen} == names


@pytest.mark.usefixtures("small_garbage")
@pytest.mark.parametrize(
    ("code", "call"),
    [
        *((code, {}) for code in CODES),
        # Carried out, and the answer lost.
        (errno.EINTR, {"call": "ioctl", "done": True}),
        (errno.EFAULT, {"call": "ioctl", "done": True}),
    ],
)
def test_each_call_failing_leaves_nothing_behind(code: int, call: dict[str, Any]) -> None:
    calls = attempt(SimKernel(["amdxdna"]), Fault(code, after=1 << 20))
    for index in range(calls):
        with no_leak():
            simulated = SimKernel(["amdxdna"])
            attempt(simulated, Fault(code, after=index, **call))
            sim: Any = simulated.devices[0]
            where = f"call {index}"
            assert not [text for text in simulated.log if "while a command uses" in text], where
            assert (sim.contexts(), sim.files_of()) == ([], []), where
            del sim, simulated
