# SPDX-License-Identifier: MIT
"""What holds for every device that npukit can drive, shown on the simulated ones."""

import errno
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import no_leak, open_fds

import npukit
from npukit.devices import DmaHeap, RknpuDevice, RocketDevice, Udmabuf
from npukit.ioctl import (
    AbiMismatch,
    DeviceClosed,
    Fault,
    FaultyKernel,
    NoDevice,
    NpuError,
)
from npukit.sim import SimKernel

NAMES = ["rknpu", "rknpu-misc", "rocket"]


@pytest.fixture(params=NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with no_leak():
        with npukit.open(f"sim:{request.param}") as device:
            yield device
        del device


def test_open_by_path_finds_the_class_by_the_drivers_name() -> None:
    kernel = SimKernel(["rocket", "rknpu", "rknpu-misc"])
    with npukit.open("/dev/accel/accel0", kernel) as one:
        assert isinstance(one, RocketDevice)
        assert one.version.description == "rocket DRM"
    for path, misc in (("/dev/dri/renderD129", False), ("/dev/rknpu", True)):
        with npukit.open(path, kernel) as other:
            assert isinstance(other, RknpuDevice)
            assert other.misc is misc
            assert other.driver_version == (0, 9, 8)
            assert other.hardware_version == 0x46495245


def test_a_class_refuses_a_node_of_another_driver() -> None:
    with no_leak():
        kernel = SimKernel(["rocket", "dma_heap"])
        with pytest.raises(AbiMismatch, match="driver 'rocket', not 'rknpu'"):
            RknpuDevice("/dev/accel/accel0", kernel)
        with pytest.raises(AbiMismatch, match="neither DRM nor a known misc"):
            npukit.open("/dev/dma_heap/system", kernel)


def test_no_device_says_how_to_name_a_simulated_one(tmp_path: Any) -> None:
    found = npukit.discover(root=tmp_path)
    assert found == []
    if any(node.drivable for node in npukit.discover()):
        pytest.skip("this machine has an NPU, which open() would use")
    with pytest.raises(NoDevice, match="sim:rknpu"):
        npukit.open()


def test_a_missing_or_unknown_node_is_an_error() -> None:
    with pytest.raises(NpuError) as caught:
        npukit.open("/dev/accel/accel9", SimKernel(["rocket"]))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/dev/accel/accel9")
    with pytest.raises(ValueError, match="no simulated device 'toaster'"):
        npukit.open("sim:toaster")
    with pytest.raises(ValueError, match="strict"):
        npukit.open("/dev/null", strict=True)
    # A served machine whose socket has no name is not one of this process.
    with pytest.raises(NpuError, match="sim serve"):
        npukit.open("sim:rocket@")


def test_memory_is_shared_between_arrays_without_a_copy(device: Any) -> None:
    with device.alloc(10000) as buffer:
        assert buffer.size >= 10000
        one = buffer.array(np.float32, (10, 10), offset=64)
        two = buffer.array()
        one[:] = np.arange(100, dtype=np.float32).reshape(10, 10)
        assert two[64:464].tobytes() == one.tobytes()
        assert one.base is not None
        from_dlpack = np.from_dlpack(buffer)
        assert from_dlpack.ctypes.data == two.ctypes.data
        with buffer.access("rw") as memory:
            memory[:4] = [1, 2, 3, 4]
        assert two[:4].tolist() == [1, 2, 3, 4]
        del one, two, from_dlpack, memory


def test_what_is_accessed_for_reading_cannot_be_written(device: Any) -> None:
    with device.alloc(4096) as buffer:
        with buffer.access("w") as memory:
            memory[:3] = [7, 8, 9]
        written = memory.ctypes.data
        with buffer.access("r") as memory:
            assert (memory.ctypes.data, len(memory), memory.dtype) == (
                written,
                buffer.size,
                np.uint8,
            )
            assert bytes(memory[:3]) == b"\7\10\11"
            for view in (memory, memory.view(np.uint32), np.asarray(memory), memoryview(memory)):
                with pytest.raises((TypeError, ValueError), match="read-only"):
                    view[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                memory.flags.writeable = True
            if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
                view = np.from_dlpack(memory)
                assert (view.ctypes.data, view.flags.writeable) == (written, False)
            else:  # DLPack before 1.0 could not say so
                with pytest.raises(BufferError, match="readonly"):
                    np.from_dlpack(memory)
            assert buffer.views == 1
            assert buffer.array()[:3].tolist() == [7, 8, 9]
            assert buffer.array().flags.writeable
        del memory, view
        assert buffer.views == 0


@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [(np.uint8, 4097, 0), (np.float32, (32, 33), 0), (np.uint8, None, 4097), (np.uint8, 1, -1)],
)
def test_an_array_past_the_buffer_is_refused(
    device: Any, dtype: Any, shape: Any, offset: int
) -> None:
    with device.alloc(4096) as buffer, pytest.raises(ValueError, match="not"):
        buffer.array(dtype, shape, offset)


def test_access_mode_is_checked(device: Any) -> None:
    with device.alloc(4096) as buffer, pytest.raises(ValueError, match="access mode"):
        buffer.access("x").__enter__()


def test_closed_things_say_so(device: Any) -> None:
    buffer = device.alloc(4096)
    buffer.close()
    buffer.close()
    with pytest.raises(DeviceClosed):
        buffer.array()
    with pytest.raises(DeviceClosed):
        buffer.map()
    other = device.alloc(4096)
    device.close()
    device.close()
    assert other.closed
    for call in (lambda: device.alloc(4096), lambda: other.array(), device.fileno):
        with pytest.raises(DeviceClosed):
            call()


def test_an_array_outlives_its_device_and_the_warning_names_it() -> None:
    with no_leak():
        device = npukit.open("sim:rocket")
        assert isinstance(device, RocketDevice)
        fds = open_fds()
        buffer = device.alloc(4096)
        array = buffer.array()
        with pytest.raises(BufferError, match="RocketBuffer 1"):
            device.close(strict=True)
        assert not device.closed
        with pytest.warns(ResourceWarning, match="stays open for <RocketBuffer 1"):
            device.close()
        array[:] = 5
        assert array.sum() == 5 * 4096
        assert open_fds() >= fds
        with pytest.raises(DeviceClosed):
            device.alloc(1)
        del array


def test_an_exported_dma_buf_keeps_the_file_open() -> None:
    for name in NAMES:
        with no_leak():
            device: Any = npukit.open(f"sim:{name}")
            buffer = device.alloc(8192)
            export = device.export(buffer)
            assert export.size == 8192
            with buffer.access("w") as memory:
                memory[:3] = [7, 8, 9]
            with export.access("r") as shared:
                assert shared[:3].tolist() == [7, 8, 9]
            del memory, shared
            with pytest.raises(BufferError, match="DmaBuf"):
                device.close(strict=True)
            with pytest.warns(ResourceWarning, match="DmaBuf"):
                device.close()
            assert export.array()[:3].tolist() == [7, 8, 9]
            export.close()
            export.close()
            del export, buffer


def test_what_is_never_closed_warns_and_is_closed() -> None:
    with no_leak():
        device = npukit.open("sim:rknpu")
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            del device
            gc.collect()
        heap = DmaHeap(kernel=SimKernel(["dma_heap"]))
        buffer = heap.alloc(4096)
        with pytest.warns(ResourceWarning, match="DmaBuf"):  # noqa: PT031
            del buffer
            gc.collect()
        heap.close()


def test_foreign_and_freed_buffers_are_refused() -> None:
    with npukit.open("sim:rocket") as one, npukit.open("sim:rocket") as two:
        assert isinstance(one, RocketDevice)
        assert isinstance(two, RocketDevice)
        foreign = two.alloc(4096)
        with pytest.raises(NpuError, match="handles are per open file"):
            one.export(foreign)
        freed = one.alloc(4096)
        freed.close()
        with pytest.raises(DeviceClosed):
            one.export(freed)
        foreign.close()


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_checked_before_the_driver_sees_them(device: Any, size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        device.alloc(size)


def test_a_full_address_space_is_explained() -> None:
    for name, hint in (("rknpu", "4 GiB of addresses are full"), ("rocket", "no room")):
        with no_leak(), npukit.open(f"sim:{name}") as device:
            assert isinstance(device, RknpuDevice | RocketDevice)
            # Page 0 is never given by the vendor's driver, so only three of its GiB are whole.
            held = [device.alloc(1 << 30) for _ in range(4 if name == "rocket" else 3)]
            with pytest.raises(NpuError, match=hint) as caught:
                device.alloc(1 << 30)
            assert caught.value.filename == device.path
            held.pop().close()
            held.append(device.alloc(1 << 29))


def test_every_failing_step_leaves_nothing_behind() -> None:
    """Each kernel call of a whole session fails once; nothing leaks and nothing hangs."""

    def session(kernel: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            with npukit.open(kernel.kernel.devices[0].paths[0], kernel) as device:
                assert isinstance(device, RknpuDevice | RocketDevice)
                with device.alloc(8192) as buffer:
                    with buffer.access("rw") as memory:
                        memory[:] = 1
                    del memory
                    device.export(buffer).close()

    # What stands now need not be looked at again in each of the many collections below.
    gc.freeze()
    for name in NAMES:
        counter = FaultyKernel(SimKernel([name]))
        session(counter)
        assert counter.calls >= 7
        for step in range(counter.calls):
            for code in (errno.ENOMEM, errno.EINTR, errno.EFAULT):
                with no_leak():
                    kernel = FaultyKernel(SimKernel([name]), [Fault(code, after=step)])
                    outcome = None
                    try:
                        session(kernel)
                    except OSError as error:
                        outcome = error.errno
                    assert outcome in (None, code)
                    gc.collect()
    gc.unfreeze()


def test_heap_and_udmabuf_give_dma_bufs() -> None:
    kernel = SimKernel(["dma_heap", "udmabuf"])
    with no_leak():
        with DmaHeap(kernel=kernel) as heap, heap.alloc(5000) as buffer:
            assert buffer.size == 8192
            buffer.set_name("weights")
            with pytest.raises(ValueError, match="longer"):
                buffer.set_name("x" * 32)
            with buffer.access("w") as memory:
                memory[:] = 3
            assert buffer.array().sum() == 3 * 8192
            del memory
        with Udmabuf(kernel) as maker:
            with maker.alloc(4096) as buffer:
                buffer.array()[:] = 9
                assert buffer.array().sum() == 9 * 4096
            for wrong in ((0, 100), (100, 4096), (-4096, 4096), (0, 0)):
                with pytest.raises(ValueError, match="whole pages"):
                    maker.create(0, *wrong)
            with pytest.raises(NpuError, match="not a memfd"):
                maker.create(_pipe_end(), 0, 4096)


def _pipe_end() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)
    return reader


def test_udmabuf_joins_pieces_of_memfds() -> None:
    import fcntl

    kernel = SimKernel(["udmabuf"])
    with no_leak(), Udmabuf(kernel) as maker:
        pieces = []
        for value in (1, 2):
            fd = os.memfd_create("piece", os.MFD_ALLOW_SEALING)
            os.write(fd, bytes([value]) * 8192)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            pieces.append((fd, 4096, 4096))
        with maker.create_list(pieces) as buffer:
            for fd, _, _ in pieces:
                os.close(fd)
            array = buffer.array()
            assert (array[0], array[4095], array[4096], array[8191]) == (1, 1, 2, 2)
            del array
        with pytest.raises(ValueError, match="no pieces"):
            maker.create_list([])


def test_discovery_goes_by_driver_name(tmp_path: Any) -> None:
    nodes = {
        "sys/class/accel/accel3": "dev/accel/accel3",
        "sys/class/drm/card0": "dev/dri/card0",
        "sys/class/drm/card0-HDMI-A-1": "",
        "sys/class/drm/renderD128": "dev/dri/renderD128",
        "sys/class/misc/fastrpc-cdsp": "dev/fastrpc-cdsp",
        "sys/class/misc/rknpu": "",
    }
    drivers = {"sys/class/drm/card0": "rockchip-drm"}
    # rocket's node hangs on a device that stands for all cores and has no driver link.
    facade = tmp_path / "sys/devices/platform/rknn"
    facade.mkdir(parents=True)
    for entry, node in nodes.items():
        if "accel" in entry:
            (tmp_path / entry).mkdir(parents=True)
            (tmp_path / entry / "device").symlink_to(facade)
        else:
            (tmp_path / entry / "device").mkdir(parents=True)
        if entry in drivers:
            target = tmp_path / "sys/bus/platform/drivers" / drivers[entry]
            target.mkdir(parents=True, exist_ok=True)
            (tmp_path / entry / "device/driver").symlink_to(target)
        if node:
            (tmp_path / node).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / node).write_text("")
    found = npukit.discover(root=tmp_path)
    assert [(node.driver, node.path, node.drivable) for node in found] == [
        ("rocket", str(tmp_path / "dev/accel/accel3"), True),
        ("fastrpc", str(tmp_path / "dev/fastrpc-cdsp"), True),
    ]
