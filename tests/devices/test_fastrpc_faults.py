# SPDX-License-Identifier: MIT
"""Every request of every operation fails once, with each errno that the driver can give for it."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices.hexagon_session import check_idle, machine, nothing_left
from support import no_leak

from npukit.abi import dma_buf, dma_heap, hexagon
from npukit.abi import fastrpc as abi
from npukit.devices.fastrpc import UNVERIFIED, DmaBuffer, FastRpcDevice
from npukit.devices.fastrpc_errors import AmbiguousResult, HexagonError
from npukit.devices.fastrpc_host import Host
from npukit.ioctl import DeviceBusy, DeviceLost, NpuError
from npukit.ioctl.wrapper import KernelWrapper
from npukit.programs.hexagon import idl
from npukit.sim import SimKernel
from npukit.sim.cdsp import FIRST_HANDLE, SHELL, Invocation, Process
from npukit.sim.fastrpc import FastRpcSim

ECHO = idl.load("echo.idl")
ON_THE_WAY = (errno.ENOSPC, errno.ENOMEM, errno.EINTR, errno.EIO, errno.EAGAIN, errno.ECONNRESET,
              errno.ECANCELED, errno.ETIMEDOUT)  # fmt: skip
"""What any message may end with: the driver's own, those of GLINK and SMD."""
CRASH = 0
"""No errno: the DSP goes down under the request, and the driver says what it says then."""
LIKE_ERRNOS = (errno.EPERM, errno.EPIPE)
"""Results of a DSP that lives, which look like a refusal and like a dead channel."""
CALL = (*ON_THE_WAY, *LIKE_ERRNOS, CRASH)
MESSAGE = (*ON_THE_WAY, errno.EPIPE, CRASH)

Kind = str | tuple[int, int] | int


def kind_of(name: str, arguments: tuple[Any, ...]) -> Kind:
    """What a fault is aimed at: a call's name, a request, or (handle, method) of an INVOKE."""
    if name != "ioctl":
        return f"open {arguments[0]}" if name == "open" else name
    request, arg = arguments[1], arguments[2]
    if request != abi.FASTRPC_IOCTL_INVOKE:
        return int(request)
    # Modules are alike.
    return min(int(arg.handle), FIRST_HANDLE), abi.REMOTE_SCALARS_METHOD(arg.sc)


class Failing(KernelWrapper):
    """Lets the call of a kind fail that comes after ``after`` others of it."""

    def __init__(
        self, kernel: Any, kind: Kind, code: int, after: int = 0, dsp: FastRpcSim | None = None
    ) -> None:
        super().__init__(kernel)
        self.seen: dict[Kind, int] = {}
        self._wanted = (kind, after)
        self._code = code
        self._dsp = dsp
        self._lock = threading.Lock()

    def _pass(self, name: str, *arguments: Any) -> Any:
        kind = kind_of(name, arguments)
        with self._lock:
            count = self.seen.get(kind, 0)
            self.seen[kind] = count + 1
        if (kind, count) == self._wanted:
            if self._dsp is not None and self._code == CRASH:
                self._dsp.crash()
            elif name == "ioctl":
                return -1, self._code
            else:
                raise OSError(self._code, "injected")
        return super()._pass(name, *arguments)


class Demanding:
    """A module that asks much of its host: heap, and calls larger than the listener expects."""

    URI = "file:///libdemanding_skel.so?demanding"

    def __init__(self, process: Process) -> None:
        self.process = process

    def invoke(self, call: Invocation) -> None:
        self.process.grow_heap(4096)
        lines = bytes(hexagon.adspmsgd_node(str=b"long", file=b"x")) * 20
        self.process.call_host(
            self.process.host_module("adspmsgd_apps"),
            hexagon.MSGD_LOG,
            [len(lines).to_bytes(4, "little"), lines],
            [],
        )


def demanding_machine() -> tuple[SimKernel, FastRpcSim]:
    kernel, dsp = machine()
    dsp.dsp.register(Demanding.URI, Demanding)
    return kernel, dsp


def everything(kernel: Any, folder: Path) -> None:
    """Each operation once. What fails raises; what was begun is ended."""
    with FastRpcDevice.open(kernel=kernel) as device:
        device.capability("ARCH_VER")
        device.set_poll_mode(True)
        device.start(SHELL, verify=UNVERIFIED, host=Host([folder]))
        device.start_log()
        with ECHO.open(device) as echo:
            assert echo.echo(b"abc", 3) == b"abc"
            with device.alloc(4096) as buffer:
                with buffer.write() as array:
                    array[:] = 1
                del array
                echo.transform_mapped(buffer.map_to_dsp(), buffer.size, 2)
                with buffer.read() as array:
                    assert (array == 3).all()
                del array
                assert echo.sum(buffer) == 0x03030303 * (buffer.size // 4)
            with DmaBuffer.from_heap(4096, kernel) as buffer:
                buffer.map_to_dsp(device)
            echo.log("a line", 2)
            assert echo.checksum("data") == (4, 10)
        demanding = device.open_module(Demanding.URI)
        with device.alloc(4096) as buffer:
            device.invoke(demanding, 20, in_handles=[buffer])
        device.close_module(demanding)
        device.shrink_heap(device.grow_heap(4096), 4096)


def attached(kernel: Any, folder: Path) -> None:
    for sensors in (False, True):
        with FastRpcDevice.open(kernel=kernel) as device:
            device.attach(sensors)


NODE = "open /dev/fastrpc-cdsp-secure"
REQUESTS: dict[Kind, tuple[int, ...]] = {
    NODE: (errno.ENOENT, errno.EBUSY, errno.EACCES, errno.ENOMEM, errno.EMFILE),
    "open /dev/dma_heap/system": (errno.ENOENT, errno.EACCES, errno.ENOMEM, errno.EMFILE),
    "mmap": (errno.EINVAL, errno.ENOMEM, errno.ENXIO),
    "fcntl": (errno.EBADF,),
    int(abi.FASTRPC_IOCTL_GET_DSP_INFO): (*MESSAGE, errno.EOVERFLOW, errno.EOPNOTSUPP, errno.EPERM),
    int(abi.FASTRPC_IOCTL_SET_OPTION): (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT, errno.ENOTTY),
    int(abi.FASTRPC_IOCTL_INIT_CREATE): (*MESSAGE, errno.EINVAL, errno.EREMOTEIO),
    int(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF): (errno.ENOMEM, errno.EINVAL, errno.EFAULT),
    int(abi.FASTRPC_IOCTL_MEM_MAP): (*MESSAGE, errno.EINVAL, errno.EREMOTEIO),
    int(abi.FASTRPC_IOCTL_MEM_UNMAP): (*MESSAGE, errno.EINVAL),
    int(abi.FASTRPC_IOCTL_MMAP): MESSAGE,
    int(abi.FASTRPC_IOCTL_MUNMAP): (*MESSAGE, errno.EINVAL),
    int(dma_buf.DMA_BUF_IOCTL_SYNC): (errno.EINVAL, errno.EFAULT),
    int(dma_heap.DMA_HEAP_IOCTL_ALLOC): (errno.EINVAL, errno.ENOMEM, errno.EFAULT),
    (hexagon.HANDLE_REMOTECTL, hexagon.REMOTECTL_OPEN): CALL,
    (hexagon.HANDLE_REMOTECTL, hexagon.REMOTECTL_CLOSE): CALL,
    (hexagon.HANDLE_LISTENER, hexagon.LISTENER_INIT2): CALL,
    (hexagon.HANDLE_LISTENER, hexagon.LISTENER_NEXT2): CALL,
    (hexagon.HANDLE_LISTENER, hexagon.LISTENER_GET_IN_BUFS2): CALL,
    (hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT): CALL,
    (hexagon.HANDLE_MSGD, 2): CALL,
    (FIRST_HANDLE, ECHO.methods["echo"].number): CALL,
    (FIRST_HANDLE, ECHO.methods["transform_mapped"].number): CALL,
    (FIRST_HANDLE, ECHO.methods["sum"].number): (*CALL, errno.EINVAL),
    (FIRST_HANDLE, 20): (*CALL, errno.EINVAL),
    (FIRST_HANDLE, ECHO.methods["checksum"].number): CALL,
    (FIRST_HANDLE, ECHO.methods["log"].number): CALL,
}  # fmt: skip
ATTACH: dict[Kind, tuple[int, ...]] = {
    int(abi.FASTRPC_IOCTL_INIT_ATTACH): MESSAGE,
    int(abi.FASTRPC_IOCTL_INIT_ATTACH_SNS): MESSAGE,
}
NEXT2 = (hexagon.HANDLE_LISTENER, hexagon.LISTENER_NEXT2)
REST = (hexagon.HANDLE_LISTENER, hexagon.LISTENER_GET_IN_BUFS2)
EXIT = (hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT)


def counts(what: Callable[[Any, Path], None], folder: Path) -> dict[Kind, int]:
    """How often each kind of call is made when nothing fails."""
    kernel, dsp = demanding_machine()
    watched = Failing(kernel, "nothing", 0)
    what(watched, folder)
    check_idle(dsp)
    return watched.seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "data").write_bytes(bytes([1, 2, 3, 4]))
    return folder


@pytest.fixture(scope="module")
def times(folder: Path) -> dict[Kind, int]:
    return counts(attached, folder) | counts(everything, folder)


def test_the_sweep_names_every_request(times: dict[Kind, int]) -> None:
    assert times.keys() - {"close", "munmap", "dup"} == REQUESTS.keys() | ATTACH.keys()


def expected(kind: Kind, code: int) -> type[BaseException] | None:
    """What a failure is raised as; None when it is dealt with."""
    if kind == EXIT:
        return None
    if kind == NODE and code in (errno.ENOENT, errno.EACCES):
        return None
    if kind == abi.FASTRPC_IOCTL_GET_DSP_INFO and code in (errno.EOPNOTSUPP, errno.EPERM):
        return None
    if code == CRASH:
        return DeviceLost
    if isinstance(kind, tuple) or MESSAGE[0] in (REQUESTS | ATTACH)[kind]:
        return HexagonError if code in LIKE_ERRNOS else AmbiguousResult
    classes = {errno.EBUSY: DeviceBusy}
    return classes.get(code, OSError if kind in ("mmap", "fcntl") else NpuError)


@pytest.mark.parametrize(
    "kind", [*REQUESTS, *ATTACH], ids=lambda kind: hex(kind) if isinstance(kind, int) else str(kind)
)
def test_a_failure_is_told_and_leaves_nothing(
    kind: Kind, folder: Path, times: dict[Kind, int]
) -> None:
    what, codes = (attached, ATTACH[kind]) if kind in ATTACH else (everything, REQUESTS[kind])
    # The listener asks as often as the DSP calls; its first two questions show all there is.
    count = 2 if kind == NEXT2 else times[kind]
    with no_leak():
        for after in range(count):
            for code in codes:
                check_one(what, folder, kind, code, after)


def check_one(
    what: Callable[[Any, Path], None], folder: Path, kind: Kind, code: int, after: int
) -> None:
    kernel, dsp = demanding_machine()
    error: BaseException | None = None
    try:
        what(Failing(kernel, kind, code, after, dsp), folder)
    except (NpuError, OSError) as caught:
        # Its frames hold what was open.
        error = caught.with_traceback(None)
        error.__context__ = error.__cause__ = None
    check_idle(dsp)
    wanted = expected(kind, code)
    where = (after, errno.errorcode.get(code, "crash"), error)
    if kind == NEXT2 and code != CRASH:
        # Asked again; or the DSP was told of the failure, and its call fails.
        assert error is None or (code in LIKE_ERRNOS and isinstance(error, NpuError)), where
    elif (kind == REST or (kind == abi.FASTRPC_IOCTL_MMAP and after == 0)) and code != CRASH:
        # The DSP's own call fails, and with it the host's that it was made for.
        assert isinstance(error, HexagonError), where
    elif wanted is None:
        assert error is None, where
    else:
        assert isinstance(error, wanted), where
        if wanted not in (HexagonError, DeviceLost):
            assert error.errno == code, where  # type: ignore[attr-defined]


def test_a_listener_that_the_driver_keeps_refusing_ends_its_process(folder: Path) -> None:
    class Refusing(Failing):
        def _pass(self, name: str, *arguments: Any) -> Any:
            if kind_of(name, arguments) == NEXT2:
                return -1, errno.ENOSPC
            return super()._pass(name, *arguments)

    kernel, dsp = machine()
    with (
        nothing_left(dsp),
        FastRpcDevice.open(kernel=Refusing(kernel, "nothing", 0)) as device,
    ):
        device.start(SHELL, verify=UNVERIFIED, host=Host([folder]))
        echo = ECHO.open(device)
        with pytest.raises(HexagonError, match="AEE_EBADSTATE"):
            echo.checksum("data")
