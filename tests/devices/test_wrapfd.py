# SPDX-License-Identifier: MIT
"""/dev/wrapfd from Python, on every generation of the interface."""

import contextlib
import errno
import gc
import mmap
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import no_leak

from npukit.abi import wrapfd as abi
from npukit.devices import DmaBuf, DmaHeap
from npukit.devices.wrapfd import Wrap, Wrapfd, WrapState
from npukit.ioctl import AbiMismatch, DeviceBusy, DeviceClosed, Fault, FaultyKernel, NpuError
from npukit.sim import SimKernel
from npukit.sim.wrapfd import WrapfdSim

PAGE = mmap.PAGESIZE
SIZE = 3 * PAGE
VARIANTS = {"1": "generation-1", "1-reserved": "generation-1-reserved", "2": None, "3": None}


def machine(generation: str) -> SimKernel:
    kernel = SimKernel(["dma_heap"])
    kernel.devices.append(WrapfdSim(kernel, ("/dev/wrapfd",), generation))
    return kernel


@pytest.fixture(params=VARIANTS)
def kernel(request: pytest.FixtureRequest) -> Iterator[SimKernel]:
    with no_leak():
        yield machine(request.param)


def wrap(kernel: Any, writable: bool, size: int = SIZE) -> tuple[Wrapfd, Wrap]:
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(Wrapfd(kernel))
        heap = stack.enter_context(DmaHeap(kernel=kernel))
        with heap, heap.alloc(size) as buffer:
            held = device.wrap(buffer, writable)
        stack.pop_all()
        return device, held


@pytest.mark.parametrize("generation", VARIANTS)
def test_the_interface_is_found_out(generation: str) -> None:
    with no_leak(), Wrapfd(machine(generation)) as device:
        assert device.variant == VARIANTS[generation]


def test_another_node_is_no_wrapfd() -> None:
    with no_leak(), pytest.raises(AbiMismatch, match="no /dev/wrapfd that"):
        Wrapfd(SimKernel(["udmabuf"]), "/dev/udmabuf")


def test_states_and_protection(kernel: SimKernel) -> None:
    device, first = wrap(kernel, writable=True)
    with device, first:
        assert first.state is WrapState.RDWR
        first.array(np.uint32)[:] = 7
        gc.collect()
        first._unmap()
        with first.owned():
            second = first.rewrap(writable=False)
        with second:
            assert (first.state, second.state) == (WrapState.EMPTY, WrapState.RDONLY)
            assert second.array(np.uint32)[-1] == 7
            assert not second.array().flags.writeable
            with second.access("r") as array:
                assert array[0] == 7
            del array
            with pytest.raises(PermissionError):
                kernel.mmap(second.fd, PAGE)
            second._unmap()
            second.acquire()
            second.empty()
            second.release()
            assert second.state is WrapState.EMPTY
            with pytest.raises(NpuError, match="ENOENT"):
                second.map()


def test_errors_name_the_rule(kernel: SimKernel) -> None:
    device, held = wrap(kernel, writable=True)
    with device, held:
        with pytest.raises(DeviceBusy, match="needs ownership first"):
            held.empty()
        held.map()
        with pytest.raises(NpuError, match="somebody has the wrap mapped") as caught:
            held.acquire()
        assert caught.value.errno == errno.EINVAL
        held._unmap()
        held.acquire()
        held.allow_guests()
        held.allow_guests(False)
        held.empty()
        with pytest.raises(NpuError, match="its content was taken away"):
            held.empty()
        held.release()
        with (
            DmaBuf(kernel, kernel.dup(device.fileno()), PAGE) as other,
            pytest.raises(NpuError, match="is not a dma-buf"),
        ):
            device.wrap(other)
    with pytest.raises(DeviceClosed):
        held.acquire()


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    data = np.random.default_rng(8).bytes(SIZE - 100)
    (tmp_path / "weights").write_bytes(data)
    fd = os.open(tmp_path / "weights", os.O_RDONLY)
    yield fd, data
    os.close(fd)


@pytest.mark.parametrize(
    ("length", "file_offset", "offset"),
    [(PAGE, 0, 0), (SIZE - 100, 0, 0), (10, 3, 5), (0, 0, 0), (PAGE + 1, PAGE, PAGE)],
)
def test_any_range_can_be_loaded(
    kernel: SimKernel, weights: tuple[int, bytes], length: int, file_offset: int, offset: int
) -> None:
    file, data = weights
    device, held = wrap(kernel, writable=True)
    with device, held:
        held.array()[:] = 0xAA
        held._unmap()
        with held.owned():
            held.load(file, length, file_offset, offset)
        expected = bytearray(b"\xaa" * SIZE)
        expected[offset : offset + length] = data[file_offset : file_offset + length]
        assert held.array().tobytes() == bytes(expected)
        held._unmap()


def test_a_file_without_direct_io_can_be_loaded(kernel: SimKernel) -> None:
    file = os.memfd_create("weights")
    os.write(file, b"w" * PAGE)
    device, held = wrap(kernel, writable=True)
    with device, held:
        with held.owned():
            held.load(file, PAGE, 0, PAGE)
        assert held.array()[PAGE : 2 * PAGE].tobytes() == b"w" * PAGE
        held._unmap()
    os.close(file)


def test_loads_that_are_refused(kernel: SimKernel, weights: tuple[int, bytes]) -> None:
    file, data = weights
    device, held = wrap(kernel, writable=True)
    with device, held:
        for length, file_offset, offset in (
            (len(data) + 1, 0, 0),
            (1, len(data), 0),
            (PAGE, 0, SIZE - 1),
            (-1, 0, 0),
            (1, -1, 0),
            (1, 0, -1),
        ):
            with pytest.raises(NpuError) as caught:
                held.load(file, length, file_offset, offset)
            assert caught.value.errno == errno.EINVAL
        with held.owned():
            read_only = held.rewrap(writable=False)
        with read_only, pytest.raises(NpuError, match="read-only") as caught:
            read_only.load(file, 1)
        assert caught.value.errno == errno.EACCES


def test_a_wrap_that_is_never_closed_warns() -> None:
    with no_leak():
        device, held = wrap(machine("3"), writable=False)
        device.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del held
            gc.collect()
        assert [each.category for each in caught] == [ResourceWarning]


def everything(kernel: Any, file: int) -> None:
    device, held = wrap(kernel, writable=True)
    with device, held:
        held.acquire()
        held.load(file, PAGE)
        with held.rewrap(writable=False) as moved:
            held.release()
            moved.map()
            moved._unmap()
            with moved.owned():
                moved.empty()


def test_every_failing_step_leaves_nothing_behind(weights: tuple[int, bytes]) -> None:
    counting = FaultyKernel(machine("3"))
    everything(counting, weights[0])
    for step in range(counting.calls):
        with no_leak():
            faulty = FaultyKernel(machine("3"), [Fault(errno.EIO, after=step)])
            with pytest.raises(OSError, match=r"."):
                everything(faulty, weights[0])
            gc.collect()


def test_a_first_generation_wrap_received_without_the_device() -> None:
    with no_leak():
        kernel = machine("1")
        device, held = wrap(kernel, writable=False)
        with device, held:
            copy = Wrap(kernel, kernel.dup(held.fd), SIZE, variant="generation-1")
            with copy, pytest.raises(NpuError, match="at /dev/wrapfd only"):
                _ = copy.state
        assert abi.VARIANTS.keys() == {"generation-1", "generation-1-reserved"}
