# SPDX-License-Identifier: MIT
"""Sessions, buffers and calls of a Hexagon DSP, on the simulated one."""

import errno
import gc
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices.hexagon_session import machine, nothing_left, session, threads

import npukit
from npukit.abi import fastrpc as abi
from npukit.devices.fastrpc import (
    UNVERIFIED,
    DmaBuffer,
    DmaSlice,
    FastRpcDevice,
    Scalars,
    holders,
    scalars,
)
from npukit.devices.fastrpc_errors import HexagonError, SizeLimit, SizeOverflow
from npukit.devices.shell import find_shell
from npukit.ioctl import (
    DeviceBusy,
    DeviceClosed,
    DeviceLost,
    DspError,
    Fault,
    FaultyKernel,
    KernelCall,
    NoDevice,
    NpuError,
    TracingKernel,
    WaitTimeout,
)
from npukit.ioctl.kernel import PAGE_SIZE
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL, IdlSkel
from npukit.sim.fastrpc import LINUX_6_1

ECHO = idl.load("echo.idl")
SECURE, OPEN = "/dev/fastrpc-cdsp-secure", "/dev/fastrpc-cdsp"


@pytest.fixture
def device() -> Iterator[FastRpcDevice]:
    with session() as device:
        yield device


class Log:
    """The calls that a kernel got: (name, descriptor or request). It keeps nothing alive."""

    def __init__(self, kernel: Any) -> None:
        self.calls: list[tuple[str, int]] = []
        self.kernel = TracingKernel(kernel, self._note)

    def _note(self, call: KernelCall) -> None:
        first = call.arguments[1] if call.name == "ioctl" else call.arguments[0]
        self.calls.append((call.name, int(first) if isinstance(first, int) else 0))

    def count(self, request: int) -> int:
        return self.calls.count(("ioctl", request))


# Opening.


def test_the_secure_node_is_preferred() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        for secure, path in ((None, SECURE), (True, SECURE), (False, OPEN)):
            with FastRpcDevice.open("cdsp", secure, kernel) as device:
                assert (device.path, device.domain, device.secure) == (
                    path,
                    "cdsp",
                    secure is not False,
                )
                assert not device.running


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOENT])
def test_the_other_node_is_tried_when_one_may_not_be_opened(code: int) -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        faulty = FaultyKernel(kernel, [Fault(code, "open")])
        with FastRpcDevice.open(kernel=faulty) as device:
            assert device.path == OPEN


def test_each_refusal_to_open_says_what_is_wrong() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        closed = FaultyKernel(kernel, [Fault(errno.EACCES, "open", times=None)])
        with pytest.raises(NpuError, match="group \\(often fastrpc\\)") as refused:
            FastRpcDevice.open(kernel=closed)
        assert (refused.value.errno, refused.value.filename) == (errno.EACCES, SECURE)
        with pytest.raises(NoDevice, match="tried /dev/fastrpc-adsp-secure, /dev/fastrpc-adsp"):
            FastRpcDevice.open("adsp", kernel=kernel)
        with pytest.raises(ValueError, match=r"'\.\./x' is not the label"):
            FastRpcDevice.open("../x", kernel=kernel)
        other = FaultyKernel(kernel, [Fault(errno.ENODEV, "open")])
        with pytest.raises(NpuError, match="No such device"):
            FastRpcDevice.open(kernel=other)


def fake_proc(root: Path, tasks: dict[int, tuple[str, list[str]]]) -> None:
    for pid, (name, links) in tasks.items():
        folder = root / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder.parent / "comm").write_text(name + "\n")
        for number, link in enumerate(links):
            (folder / str(number)).symlink_to(link)


def test_no_session_left_names_the_holders(tmp_path: Path) -> None:
    fake_proc(
        tmp_path,
        {
            7: ("cdsprpcd", [SECURE, "/dev/null", OPEN]),
            8: ("llama", [OPEN]),
            9: ("sensors", ["/dev/fastrpc-adsp-secure", "/dev/fastrpc-cdsp1"]),
        },
    )
    assert holders(OPEN, tmp_path) == ["cdsprpcd (7)", "cdsprpcd (7)", "llama (8)"]
    kernel, dsp = machine(sessions=1)
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel):
        with pytest.raises(DeviceBusy, match=r"3 of them belong to cdsprpcd \(7\), llama \(8\)"):
            FastRpcDevice.open(kernel=kernel, root=tmp_path)
        with pytest.raises(DeviceBusy, match="holders cannot be seen"):
            FastRpcDevice.open(kernel=kernel, root=tmp_path / "nothing")


def test_the_face_opens_a_simulated_dsp() -> None:
    with npukit.open("sim:fastrpc-cdsp") as device:
        assert isinstance(device, FastRpcDevice)
        kernel: Any = device.kernel
    with npukit.open(OPEN, kernel) as device:
        assert isinstance(device, FastRpcDevice)
        assert device.path == OPEN


# Attributes.


@pytest.mark.parametrize("options", [{}, {"driver": LINUX_6_1}])
def test_capabilities_of_old_and_new_drivers(options: dict[str, Any]) -> None:
    kernel, dsp = machine(**options)
    log = Log(kernel)
    with nothing_left(dsp), FastRpcDevice.open(kernel=log.kernel) as dev:
        assert dev.capability("ARCH_VER") == dev.capability(abi.ARCH_VER) == 0x8C73
        assert dev.capability("HVX_SUPPORT_64B") == 0
        assert dev.capability("DOMAIN_SUPPORT") == 0
        assert log.count(abi.FASTRPC_IOCTL_GET_DSP_INFO) == 3
        with pytest.raises(NpuError, match="attributes are below 256") as caught:
            dev.capability(256)
        assert caught.value.errno == errno.EOVERFLOW
        with pytest.raises(AttributeError):
            dev.capability("COFFEE")


@pytest.mark.parametrize("result", [0x80000414, -1])
def test_a_dsp_that_answers_no_questions(result: int) -> None:
    kernel, dsp = machine()
    dsp.dsp.info_result = result
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        assert device.capability("ARCH_VER") is None


def test_another_failure_to_answer_is_the_dsps() -> None:
    kernel, dsp = machine()
    dsp.dsp.info_result = 0x8000040E
    with (
        nothing_left(dsp),
        FastRpcDevice.open(kernel=kernel) as device,
        pytest.raises(HexagonError, match="AEE_EBADPARM 0x8000040e, layer AEE"),
    ):
        device.capability("ARCH_VER")


def test_polling() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        device.set_poll_mode(True)
        device.set_poll_mode(False)
        dsp.poll_support = False
        with pytest.raises(NpuError, match="this chip's DSP cannot be polled"):
            device.set_poll_mode(True)
    kernel, dsp = machine(driver=LINUX_6_1)
    with (
        nothing_left(dsp),
        FastRpcDevice.open(kernel=kernel) as device,
        pytest.raises(NpuError, match=r"before Linux 7\.3"),
    ):
        device.set_poll_mode(True)


# Starting.


def test_start_and_attach_are_alternatives(device: FastRpcDevice) -> None:
    assert device.running
    assert threads() >= {"listener of /dev/fastrpc-cdsp-secure"}
    for again in (lambda: device.start(SHELL, verify=UNVERIFIED), device.attach):
        with pytest.raises(NpuError, match="has its process already"):
            again()


@pytest.mark.parametrize("sensors", [False, True])
def test_attach(sensors: bool) -> None:
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        device.attach(sensors)
        assert device.running
        with ECHO.open(device) as echo:
            assert echo.echo(b"x", 1) == b"x"


def test_a_signed_process_needs_the_secure_node() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(secure=False, kernel=kernel) as device:
        with pytest.raises(NpuError, match="a signature is needed") as caught:
            device.start(SHELL, verify=UNVERIFIED, unsigned=False)
        assert caught.value.errno == errno.ECONNREFUSED
        assert not device.running
        device.start(SHELL, verify=UNVERIFIED)
        assert device.running
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        device.start(SHELL, verify=UNVERIFIED, unsigned=False)


def test_a_shell_is_a_file_or_bytes(tmp_path: Path) -> None:
    kernel, dsp = machine()
    (tmp_path / "shell").write_bytes(SHELL)
    with nothing_left(dsp):
        with FastRpcDevice.open(kernel=kernel) as device:
            device.start(tmp_path / "shell", verify=UNVERIFIED)
        with FastRpcDevice.open(kernel=kernel) as device:
            with pytest.raises(NpuError, match="No such file"):
                device.start(tmp_path / "none", verify=UNVERIFIED)
            with pytest.raises(NpuError, match="not an ordinary file"):
                device.start(tmp_path, verify=UNVERIFIED)
            with pytest.raises(HexagonError, match="AEE_EBADELF") as caught:
                device.start(b"no shell", verify=UNVERIFIED)
            assert (caught.value.layer, caught.value.errno) == ("shell", errno.EREMOTEIO)
            dsp.dsp.shell_mark = b"another build"
            with pytest.raises(HexagonError, match="of different builds"):
                device.start(SHELL, verify=UNVERIFIED)


def test_a_shell_above_the_drivers_limit_is_not_sent() -> None:
    kernel, dsp = machine()
    log = Log(kernel)
    with nothing_left(dsp), FastRpcDevice.open(kernel=log.kernel) as dev:
        with pytest.raises(SizeLimit, match=r"2097153 bytes is larger .* 2097152 bytes"):
            dev.start(SHELL.ljust((2 << 20) + 1, b"\0"), verify=UNVERIFIED)
        assert [name for name, _ in log.calls] == ["open"]
        dev.start(SHELL.ljust(2 << 20, b"\0"), verify=UNVERIFIED)


def test_a_missing_vendor_shell_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match=f"fastrpc_shell_unsigned_3.*{tmp_path}/cdsp/fastrpc_shell"):
        find_shell("cdsp", True, [f"{tmp_path}/{{domain}}"])
    (tmp_path / "fastrpc_shell_0").write_bytes(SHELL)
    assert find_shell("adsp", False, ["/nowhere", tmp_path]) == f"{tmp_path}/fastrpc_shell_0"


# Buffers.


def test_a_buffer_is_of_whole_pages_and_not_inherited(device: FastRpcDevice) -> None:
    with device.alloc(PAGE_SIZE + 1) as buffer:
        assert buffer.size == 2 * PAGE_SIZE
        assert not os.get_inheritable(buffer.fd)
        assert repr(buffer) == f"<DmaBuffer fd {buffer.fd} of {buffer.size} bytes>"
        with buffer.write() as array:
            array[:4] = [1, 2, 3, 4]
        with buffer.read() as array:
            assert array[:4].tolist() == [1, 2, 3, 4]
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        with buffer.write() as array:
            array[0] = 9
        assert buffer.array(np.uint16, 2).tolist() == [9 + (2 << 8), 3 + (4 << 8)]
        del array
    with pytest.raises(DeviceClosed):
        buffer.map_to_dsp()


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "a buffer of 0 bytes"),
        (-1, ValueError, "a buffer of -1 bytes"),
        ((256 << 20) + 1, SizeLimit, "268435457 bytes are more than the limit of 268435456"),
        ((1 << 63) - 1, SizeOverflow, "9223372036854775807 bytes, rounded to pages, do not fit"),
        (1 << 70, SizeOverflow, "1180591620717411303424 bytes"),
    ],
)
def test_sizes_that_are_refused(
    device: FastRpcDevice, size: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        device.alloc(size)
    with pytest.raises(error, match=message):
        DmaBuffer.from_heap(size, device.kernel)


def test_the_limit_can_be_set() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel, limit=PAGE_SIZE) as device:
        device.alloc(PAGE_SIZE).close()
        wrong = f"{PAGE_SIZE + 1} bytes are more than the limit of {PAGE_SIZE} bytes"
        with pytest.raises(SizeLimit, match=wrong):
            device.alloc(PAGE_SIZE + 1)


def test_a_refused_allocation_says_so() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel, limit=1 << 40) as device:
        with pytest.raises(NpuError, match="no contiguous or mappable memory") as caught:
            device.alloc(1 << 33)
        assert caught.value.request == "FASTRPC_IOCTL_ALLOC_DMA_BUFF"
        assert "size=8589934592" in str(caught.value)


def test_a_mapping_is_made_once_and_undone() -> None:
    kernel, dsp = machine()
    log = Log(kernel)
    with nothing_left(dsp), FastRpcDevice.open(kernel=log.kernel) as device:
        device.start(SHELL, verify=UNVERIFIED)
        with device.alloc(4096) as buffer:
            assert buffer.dma_address == 0
            address = buffer.map_to_dsp()
            assert buffer.map_to_dsp() == buffer.map_to_dsp(device) == buffer.dma_address == address
            assert hex(address) in repr(buffer)
            buffer.unmap_from_dsp()
            buffer.unmap_from_dsp()
            assert buffer.dma_address == 0
            buffer.map_to_dsp()
    assert log.count(abi.FASTRPC_IOCTL_MEM_MAP) == 2
    assert log.count(abi.FASTRPC_IOCTL_MEM_UNMAP) == 2


def test_a_buffer_of_a_heap_stands_alone(device: FastRpcDevice) -> None:
    with DmaBuffer.from_heap(100, device.kernel) as buffer:
        assert (buffer.size, buffer.device) == (PAGE_SIZE, None)
        with buffer.write() as array:
            array[:] = 3
        del array
        with pytest.raises(NpuError, match="has no device: say which"):
            buffer.map_to_dsp()
        address = buffer.map_to_dsp(device)
        with ECHO.open(device) as echo:
            echo.transform_mapped(address, buffer.size, 1)
        with buffer.read() as array:
            assert set(array.tolist()) == {2}
        del array
        other = FastRpcDevice.open(kernel=device.kernel)
        with other, pytest.raises(NpuError, match="is mapped to"):
            buffer.map_to_dsp(other)
    with (
        device.alloc(4096) as own,
        FastRpcDevice.open(kernel=device.kernel) as other,
        pytest.raises(NpuError, match="belongs to"),
    ):
        own.map_to_dsp(other)


def test_a_bad_descriptor_is_named(device: FastRpcDevice) -> None:
    buffer = device.alloc(4096)
    os.dup2(device.fileno(), 200)
    bad = DmaBuffer(device.kernel, 200, 4096)
    bad.device = device
    bad._mapping = buffer.map()
    with pytest.raises(NpuError, match=r"descriptor 200 is no dma-buf.*fd=200") as caught:
        bad.map_to_dsp()
    assert (caught.value.errno, caught.value.request) == (errno.EINVAL, "FASTRPC_IOCTL_MEM_MAP")
    os.close(200)
    with pytest.raises(NpuError, match=r"descriptor 200 is not open.*fd=200") as caught:
        bad.map_to_dsp()
    assert caught.value.errno == errno.EBADF
    bad._mapping = None
    bad._closed = True
    buffer.close()


def test_teardown_is_unmap_munmap_close_then_the_session() -> None:
    kernel, dsp = machine()
    log = Log(kernel)
    with nothing_left(dsp):
        device = FastRpcDevice.open(kernel=log.kernel)
        device.start(SHELL, verify=UNVERIFIED)
        buffer = device.alloc(4096)
        buffer.map_to_dsp()
        wanted = {
            ("ioctl", int(abi.FASTRPC_IOCTL_MEM_UNMAP)): "unmap",
            ("munmap", 0): "munmap",
            ("close", buffer.fd): "buffer",
            ("close", device.fileno()): "session",
        }
        log.calls.clear()
        device.close()
        assert [wanted[call] for call in log.calls if call in wanted] == list(wanted.values())
        assert not any("freed memory" in line for line in kernel.log)
        assert buffer.closed


def test_a_view_keeps_memory_and_session_until_it_goes() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        device = FastRpcDevice.open(kernel=kernel)
        buffer = device.alloc(4096)
        array = buffer.array()
        with pytest.raises(BufferError, match="still in use: <DmaBuffer"):
            device.close(strict=True)
        assert not device.closed
        with pytest.warns(ResourceWarning, match="its file stays open for <DmaBuffer"):
            device.close()
        array[0] = 1
        assert dsp.channel is not None
        assert any(dsp.channel.sessions)
        with pytest.raises(DeviceClosed):
            device.alloc(1)
        del array
        gc.collect()
        assert not any(dsp.channel.sessions)


def test_a_leaked_buffer_and_device_warn() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        device = FastRpcDevice.open(kernel=kernel)
        device.start(SHELL, verify=UNVERIFIED)
        with pytest.warns(ResourceWarning, match=r"DmaBuffer .* was never closed"):
            device.alloc(4096)
        # The listener's thread does not hold it.
        with pytest.warns(ResourceWarning, match=r"FastRpcDevice .* was never closed"):
            del device


def test_a_buffer_moves_between_threads(device: FastRpcDevice) -> None:
    with device.alloc(4096) as buffer:

        def fill() -> None:
            with buffer.write() as array:
                array[:] = 5

        worker = threading.Thread(target=fill)
        worker.start()
        worker.join()
        with buffer.read() as array:
            assert set(array.tolist()) == {5}
        del array


# Calls.


def test_every_kind_of_argument(device: FastRpcDevice) -> None:
    with ECHO.open(device) as echo:
        assert echo.echo(b"abc", 3) == b"abc"
        assert echo.echo(b"", 0) == b""
        assert echo.transform(bytes([1, 2]), 3, 2) == bytes([2, 1])
        values = (-5, 1 << 40, 0.5, 1e100, 255)
        assert echo.scalars(*values) == values
        assert echo.sum([1 << 30] * 4) == 1 << 32
        number, items = echo.update(41, [1, -2])
        assert (number, items.tolist()) == (42, [2, -4])
        assert echo.greet("Hexagon", 64) == "hello, Hexagon"
        assert echo.greet("Hexagon", 9) == "hello, He"
        into = bytearray(5)
        assert echo.echo(b"hello", into) is into
        assert into == b"hello"
        with pytest.raises(AttributeError, match="has no method 'shout'"):
            echo.shout()
        assert {"echo", "sum"} <= set(dir(echo))
    echo.close()
    with pytest.raises(HexagonError, match="AEE_EINVHANDLE"):
        echo.echo(b"abc", 3)


def test_dma_buffers_as_arguments(device: FastRpcDevice) -> None:
    with device.alloc(8192) as buffer, ECHO.open(device) as echo:
        with buffer.write() as array:
            array[:] = np.arange(buffer.size) % 251
        del array
        source, target = buffer.part(100, 50), buffer.part(4096, 50)
        assert echo.transform(source, 0xFF, target) is target
        with buffer.read() as array:
            assert (array[4096:4146] == ~array[100:150]).all()
        del array
        whole = echo.sum(buffer)
        assert whole == int(buffer.array(np.int32).sum(dtype=np.int64))
        for offset, size in ((0, buffer.size + 1), (-1, 4), (buffer.size, 1)):
            with pytest.raises(ValueError, match="are not within"):
                DmaSlice(buffer, offset, size)


def test_methods_above_30_through_a_stub() -> None:
    """Numbers 2 to 41, on both sides of where the field of the scalars word ends."""
    methods = "".join(
        f"long m{n}(in long a, rout long b, in sequence<octet> c);" for n in range(40)
    )
    many = idl.parse(f"interface many : remote_handle64 {{ {methods} }};")

    class Many(IdlSkel):
        interface = many

        def __getattr__(self, name: str) -> Any:
            number = self.interface.methods[name].number
            return lambda a, c: a * 1000 + number * 10 + len(c)

    kernel, dsp = machine()
    dsp.dsp.register(many.uri(), Many)
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        device.start(SHELL, verify=UNVERIFIED)
        with many.open(device) as module:
            for n in range(40):
                assert getattr(module, f"m{n}")(n, b"abc") == n * 1000 + (n + 2) * 10 + 3


def test_raw_calls(device: FastRpcDevice) -> None:
    handle = device.open_module(ECHO.uri())
    packed = b"\3\0\0\0\3\0\0\0"
    out = np.zeros(3, np.uint8)
    assert device.invoke(handle, 2, [packed, memoryview(b"abc")], [out]) == [out]
    assert out.tobytes() == b"abc"
    (copy,) = device.invoke(handle, 2, (bytearray(packed), out), (3,))
    assert copy == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        device.invoke(handle, 2, [packed, b"abc"], [b"xyz"])
    with pytest.raises(ValueError, match="method 40 must lead"):
        device.invoke(handle, 40, [packed])
    with pytest.raises(ValueError, match="method 40 must lead"):
        device.invoke(handle, 40)
    with pytest.raises(ValueError, match="in buffers 256 does not fit"):
        device.invoke(handle, 2, [b""] * 256)
    with pytest.raises(NpuError, match="the driver's own"):
        device.invoke(1, 0)
    with device.alloc(4096) as buffer, pytest.raises(HexagonError):
        device.invoke(handle, 30, in_handles=[buffer], out_handles=[buffer.part(8, 8)])
    device.close_module(handle)
    with pytest.raises(HexagonError, match=f"close {handle:#x}.*AEE_EINVHANDLE"):
        device.close_module(handle)


@pytest.mark.parametrize(
    ("code", "name", "layer"),
    [
        (0x27, "AEE_ENOSUCH", "AEE"),
        (0x80000438 - (1 << 32), "AEE_EINVALIDSIGNATURE", "signature"),
        (0x80000600 - (1 << 32), "AEE_ERPC", "RPC"),
        (0x8000054F - (1 << 32), "AEE_EQURTBADASID", "shell"),
        (-1, "AEE_EUNKNOWN", "AEE"),
        (0x1234, "0x1234", "module"),
    ],
)
def test_a_result_of_the_dsp_is_no_errno(
    device: FastRpcDevice, code: int, name: str, layer: str
) -> None:
    with ECHO.open(device) as echo, pytest.raises(DspError, match=name) as caught:
        echo.fail(code)
    error = caught.value
    assert isinstance(error, HexagonError)
    assert (error.code, error.name, error.layer) == (code & 0xFFFFFFFF, name, layer)
    assert error.errno == errno.EREMOTEIO
    assert "(echo.fail)" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, str(again)) == (error.code, str(error))


def test_a_module_that_cannot_be_opened_says_what_was_asked_for(tmp_path: Path) -> None:
    with session(tmp_path) as device:
        with pytest.raises(HexagonError) as caught:
            device.open_module("file:///libnone_skel.so?none_skel_handle_invoke&_modver=1.0")
        text = str(caught.value)
        for part in ("AEE_EUNABLETOLOAD", "cannot open libnone_skel.so", "files asked for",
                     f"libnone_skel.so is in none of {tmp_path}"):  # fmt: skip
            assert part in text
        (tmp_path / "libnone_skel.so").write_bytes(b"\x7fELF")
        with pytest.raises(HexagonError, match=r"AEE_EBADELF.*libnone_skel.so: found"):
            device.open_module("file:///libnone_skel.so?none_skel_handle_invoke&_modver=1.0")


def test_heap_growth(device: FastRpcDevice) -> None:
    address = device.grow_heap(8192)
    with pytest.raises(NpuError, match="must be those of one earlier request"):
        device.shrink_heap(address, 4096)
    device.shrink_heap(address, 8192)


# The end of a DSP.


def test_a_crash_ends_the_session(device: FastRpcDevice) -> None:
    sim: Any = device.kernel
    buffer = device.alloc(4096)
    buffer.map_to_dsp()
    with ECHO.open(device) as echo:
        waiting: list[BaseException] = []

        def hang() -> None:
            try:
                echo.hang()
            except NpuError as error:
                waiting.append(error)

        thread = threading.Thread(target=hang)
        thread.start()
        echo.echo(b"x", 1)
        sim.devices[-1].crash("test")
        thread.join()
        if not isinstance(waiting[0], DeviceLost):
            # It had not begun to wait when the DSP went.
            assert isinstance(waiting[0], HexagonError)
        for call in (
            lambda: echo.echo(b"x", 1),
            lambda: device.alloc(4096).map_to_dsp(),
            lambda: device.open_module(ECHO.uri()),
        ):
            with pytest.raises(DeviceLost, match="close this session and open a new one"):
                call()
        assert device.lost
        assert not device.running
    device.close()
    with FastRpcDevice.open(kernel=sim) as fresh:
        fresh.start(SHELL, verify=UNVERIFIED)
        with ECHO.open(fresh) as echo:
            assert echo.echo(b"x", 1) == b"x"


def test_a_silent_dsp_is_a_timeout() -> None:
    kernel, dsp = machine(message_timeout=0.01)
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        dsp.dsp.silent = True
        with pytest.raises(WaitTimeout, match="did not answer in 10 s"):
            device.attach()
        dsp.dsp.silent = False


def test_an_interrupted_call_is_told_and_not_repeated(device: FastRpcDevice) -> None:
    sim: Any = device.kernel
    dsp = sim.devices[-1]
    with ECHO.open(device) as echo:
        results: list[BaseException] = []

        def hang() -> None:
            try:
                echo.hang()
            except NpuError as error:
                results.append(error)

        thread = threading.Thread(target=hang)
        thread.start()
        while not results:
            dsp.interrupt()
        thread.join()
        assert results[0].errno == errno.EINTR  # type: ignore[attr-defined]
        assert "the DSP may have done the call" in str(results[0])


def test_closing_twice_and_using_what_is_closed(device: FastRpcDevice) -> None:
    device.close()
    device.close()
    for call in (
        lambda: device.capability("ARCH_VER"),
        lambda: device.alloc(1),
        lambda: device.start(SHELL, verify=UNVERIFIED),
        lambda: device.invoke(0, 0),
        device.fileno,
    ):
        with pytest.raises(DeviceClosed):
            call()


def test_a_listener_that_does_not_end_warns(device: FastRpcDevice) -> None:
    listener = device._listener
    assert listener is not None
    with pytest.warns(ResourceWarning, match="still waits for the DSP"):
        listener.end(0)
    assert listener.alive
    device.close()
    assert not listener.alive


# The scalars word.


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        # As libcdsprpc, tinygrad and libhexagonrpc send them.
        (0x00020200, (0, 2, 2, 0, 0, 0)),  # remotectl open
        (0x01010200, (1, 1, 2, 0, 0, 0)),  # remotectl close
        (0x03000000, (3, 0, 0, 0, 0, 0)),  # listener init2
        (0x04020200, (4, 2, 2, 0, 0, 0)),  # listener next2
        (0x13050100, (19, 5, 1, 0, 0, 0)),  # apps_std fopen_with_env
        (0x1F020100, (31, 2, 1, 0, 0, 0)),  # apps_std stat, a method above 30
        (0xFFFFFFFF, (31, 255, 255, 15, 15, 7)),
        (0x20000000, (0, 0, 0, 0, 0, 1)),
        (0x000000A5, (0, 0, 0, 10, 5, 0)),
    ],
)
def test_a_scalars_word(word: int, parts: tuple[int, ...]) -> None:
    assert scalars(*parts) == word
    assert Scalars.of(word) == parts
    names = ("method", "in_bufs", "out_bufs", "in_handles", "out_handles", "attr")
    assert Scalars._fields == names
    assert scalars(**dict(zip(names, parts, strict=True))) == word


@pytest.mark.parametrize(
    ("name", "limit"),
    [("method", 32), ("in_bufs", 256), ("out_bufs", 256), ("in_handles", 16),
     ("out_handles", 16), ("attr", 8)],
)  # fmt: skip
def test_what_does_not_fit_in_a_scalars_word(name: str, limit: int) -> None:
    for value in (limit, -1):
        with pytest.raises(ValueError, match=f"{value} does not fit"):
            scalars(**{"method": 0, name: value})
    for word in (-1, 1 << 32):
        with pytest.raises(ValueError, match="is no scalars word"):
            Scalars.of(word)
