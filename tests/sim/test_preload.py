# SPDX-License-Identifier: MIT
"""The preload door: the library, its server, and programs for AArch64. What both doors do alike is
in test_run.py."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw import JOB_BYTES
from support import ROOT, no_leak, wait_until
from test_run import CARD, HEAP, LIMIT, RENDER, ROCKET, door, job, start, succeeds

import npukit
from npukit.abi import dma_buf, dma_heap, rocket, sync_file, udmabuf
from npukit.sim import SocketKernel, serve
from npukit.sim.dma_buf import DmaBufSim
from npukit.sim.fence import Fence
from npukit.sim.preload import ServedKernel
from npukit.sim.serving import library_path

CREATE_BO = int(rocket.DRM_IOCTL_ROCKET_CREATE_BO)
KILLS = int(os.environ.get("NPUKIT_KILLS", "50"))


def build(folder: Path, compiler: str) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} to compile the clients")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    for source in (ROOT / "tests/clients").glob("*.c"):
        subprocess.run([compiler, *flags, source, "-o", folder / source.stem], check=True)
    (folder / "rocket.job").write_bytes(job(0))
    (folder / "rknpu.job").write_bytes(job((1 << 32) - JOB_BYTES))
    return folder


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("clients"), "gcc")


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the clients and the library for AArch64."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no qemu-aarch64 (package qemu-user)")
    folder = build(tmp_path_factory.mktemp("aarch64"), "aarch64-linux-gnu-gcc")
    command = ["aarch64-linux-gnu-gcc", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden"]
    source = ROOT / "csrc/preload.c"
    subprocess.run([*command, "-shared", source, "-o", folder / "library.so"], check=True)
    return folder


# ---- AArch64


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matmul", ("rocket", ROCKET, "rocket.job")),
        ("matmul", ("rknpu", RENDER, "rknpu.job")),
        ("threads", (ROCKET, "rocket.job", "8", "5")),
        ("files", (ROCKET, "rocket.job", HEAP)),
        ("signals", (ROCKET, "rocket.job", CARD, "rknpu.job")),
        ("hostile", (ROCKET, "rocket.job", CARD, HEAP)),
        ("opens", (ROCKET,)),
        ("churn", (ROCKET, "rocket.job", HEAP, str(KILLS), "1")),
    ],
)
def test_programs_for_aarch64(aarch64: Path, name: str, arguments: tuple[str, ...]) -> None:
    paths = [aarch64 / each if each.endswith(".job") else each for each in arguments]
    options = ("--library", str(aarch64 / "library.so"))
    result = door(aarch64 / name, *paths, options=options, kind="preload")
    said = r"npukit sim run: a real kernel would crash here: .*\n" if name == "hostile" else ""
    succeeds(result, said)


@pytest.mark.qemu
def test_an_emulator_that_is_named(aarch64: Path) -> None:
    options = ("--library", str(aarch64 / "library.so"))
    program = ("qemu-aarch64", aarch64 / "matmul", "rocket", ROCKET, aarch64 / "rocket.job")
    succeeds(door(*program, options=options, kind="preload"))


def test_what_cannot_be_preloaded_is_said(tmp_path: Path) -> None:
    def program(machine: int, *kinds: int) -> Path:
        head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        head += struct.pack(
            "<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(kinds), 0, 0, 0
        )
        path = tmp_path / f"{machine}-{len(kinds)}"
        path.write_bytes(
            head + b"".join(struct.pack("<I", kind).ljust(56, b"\0") for kind in kinds)
        )
        path.chmod(0o755)
        return path

    script = tmp_path / "script"
    script.write_text(f"#!{program(62, 1)}\n")
    script.chmod(0o755)
    for path in (program(62, 1), program(183), script):
        result = door(path, kind="preload")
        assert result.returncode == 125
        assert result.stderr == (
            f"npukit sim run: {path} is statically linked: no library can be preloaded into it; "
            "--door seccomp runs it\n"
        )
    result = door(program(8, 1, 3), kind="preload")
    assert result.returncode == 125
    assert "is for machine 8, and there is no qemu-machine 8" in result.stderr
    missing = door("/no/such/program", kind="preload")
    assert missing.returncode == 127
    assert missing.stderr == "npukit sim run: /no/such/program: no such program\n"


# ---- What programs do with descriptors, paths and stat


def python(script: str, *options: str) -> str:
    result = door(sys.executable, "-W", "error", "-c", script, options=options, kind="preload")
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_nodes_without_a_namespace(clients: Path) -> None:
    options = ("--no-namespace",)
    for name, arguments in (("files", (HEAP,)), ("churn", (HEAP, "10", "1"))):
        job_path = clients / "rocket.job"
        succeeds(
            door(clients / name, ROCKET, job_path, *arguments, options=options, kind="preload")
        )
    script = f"""
import os, stat
path = {ROCKET!r}
fds = [os.open(path, os.O_RDWR), os.open("accel0", os.O_RDWR, dir_fd=os.open("/dev", 0))] \
    if os.path.isdir("/dev/accel") else [os.open(path, os.O_RDWR)]
os.chdir("/dev")
fds.append(os.open("accel/accel0", os.O_RDWR))
for status in (os.stat(path), os.lstat(path), *map(os.fstat, fds)):
    assert stat.S_ISCHR(status.st_mode), status
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (261, 0)
assert os.path.exists(path) and os.access(path, os.W_OK) and not os.access(path, os.X_OK)
assert not os.path.exists("/dev/accel/accel77")
assert not os.get_inheritable(fds[0]) and os.lseek(fds[0], 5, 0) == 0
try: os.open(path, os.O_RDWR | os.O_EXCL)
except OSError as error: print(error.errno)
"""
    assert python(script, *options) == f"{errno.EBUSY}\n"


def test_a_program_may_close_all_that_it_does_not_know() -> None:
    """The library's own connections among them; other files take their numbers."""
    script = f"""
import fcntl, os, resource
def buffer():
    fd = os.open({ROCKET!r}, os.O_RDWR)
    return fd, fcntl.ioctl(fd, {CREATE_BO}, (4096).to_bytes(24, "little"))
fd, _ = buffer()
most = 2000
resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(3):
    os.closerange(3, most)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(900, 910): os.dup2(null, number)
    fd, answer = buffer()
    assert answer[4] == 1 and os.fstat(905).st_rdev == os.fstat(null).st_rdev
print("good")
"""
    assert python(script) == "good\n"


def test_thousands_of_mappings() -> None:
    script = f"""
import fcntl, mmap, os
fd = os.open({ROCKET!r}, os.O_RDWR)
maps = []
for number in range(2000):
    answer = fcntl.ioctl(fd, {CREATE_BO}, (4096).to_bytes(24, "little"))
    maps.append(mmap.mmap(fd, 4096, offset=int.from_bytes(answer[16:], "little")))
    maps[-1][:4] = number.to_bytes(4, "little")
print(all(int.from_bytes(each[:4], "little") == number for number, each in enumerate(maps)))
"""
    assert python(script) == "True\n"


def test_without_a_server_no_node_is_opened() -> None:
    environment = {"LD_PRELOAD": str(library_path()), "NPUKIT_SIM": "/no/such/socket"}
    script = (
        "import os\n"
        "for path in '/dev/null', '/dev/accel/accel0', '/dev/accel/accel0':\n"
        "    try: os.close(os.open(path, 0)); print('good')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert result.stdout.split() == ["good", str(errno.ENODEV), str(errno.ENODEV)]
    assert result.stderr == (
        "npukit: nobody serves a simulated machine at /no/such/socket (No such file or directory)\n"
    )


def test_a_mapping_of_several_files() -> None:
    script = f"""
import ctypes, fcntl, mmap, os, struct
def pages(text):
    memfd = os.memfd_create("pages", os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, 8192)
    os.pwrite(memfd, text, 4096)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return memfd
one, two = pages(b"one"), pages(b"two")
rows = b"".join(struct.pack("<IIQQ", memfd, 0, 4096, 4096) for memfd in (one, two, one))
node = os.open("/dev/udmabuf", os.O_RDWR)
create = bytearray(struct.pack("<II", 1, 3) + rows)
fd = fcntl.ioctl(node, {int(udmabuf.UDMABUF_CREATE_LIST)}, create)
assert not os.get_inheritable(fd) and os.lseek(fd, 0, os.SEEK_END) == 3 * 4096
memory = mmap.mmap(fd, 2 * 4096, offset=4096)
os.close(one)
print(memory[:3], memory[4096:4099])
memory[0:3] = b"TWO"
assert os.pread(two, 3, 4096) == b"TWO"
assert os.fstat(fd).st_size == 3 * 4096
rows = struct.pack("<IIQQ", two, 0, 4096, 4096) * 1024
create = bytearray(struct.pack("<II", 1, 1024) + rows)
many = fcntl.ioctl(node, {int(udmabuf.UDMABUF_CREATE_LIST)}, create)
print(mmap.mmap(many, 1024 * 4096)[1023 * 4096:][:3])
"""
    assert python(script) == "b'two' b'one'\nb'TWO'\n"


# ---- The server


@contextlib.contextmanager
def served(path: Path, process_vm: bool = True) -> Iterator[ServedKernel]:
    kernel = ServedKernel(["rocket", "rknpu", "dma_heap"])
    try:
        with serve(kernel, path, process_vm=process_vm):
            yield kernel
    finally:
        kernel.shut_down()


def preloaded(path: Path, *command: str | Path) -> "subprocess.Popen[str]":
    environment = {"LD_PRELOAD": str(library_path()), "NPUKIT_SIM": str(path)}
    return subprocess.Popen(
        list(map(str, command)),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> None:
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, err) == (0, "equal\n", "")


def nothing_is_held(kernel: ServedKernel) -> bool:
    with kernel.lock:
        kernel.enter(kernel.current)
        return not kernel.held and all(
            device.pages._users == 0 for device in kernel.devices if hasattr(device, "pages")
        )


def test_what_programs_held_is_given_back(clients: Path, tmp_path: Path) -> None:
    with no_leak(), served(tmp_path / "machine") as kernel:
        arguments = (ROCKET, clients / "rocket.job")
        programs = [
            preloaded(tmp_path / "machine", clients / "threads", *arguments, "4", "5")
            for _ in range(3)
        ]
        # Its job's place is the first, which nobody else may have then.
        for program in programs:
            out, err = program.communicate(timeout=LIMIT)
            assert (program.returncode, out) == (0, "equal\n"), err
        wait_until(lambda: nothing_is_held(kernel))
        finish(preloaded(tmp_path / "machine", clients / "files", *arguments, HEAP))
        wait_until(lambda: nothing_is_held(kernel))


HOLDER = """
import fcntl, mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
answer = fcntl.ioctl(fd, int(sys.argv[2]), (1 << 20).to_bytes(24, "little"))
memory = mmap.mmap(fd, 1 << 20, offset=int.from_bytes(answer[16:], "little"))
memory[:] = b"x" * (1 << 20)
if os.fork() == 0:
    # Only the mapping is left, in a child that never called.
    os.close(fd)
    for line in sys.stdin: pass
    os._exit(memory[5] != ord("x"))
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_program_that_dies_leaves_what_its_child_has(tmp_path: Path) -> None:
    with no_leak(), served(tmp_path / "machine") as kernel:
        reader, writer = os.pipe()
        environment = {"LD_PRELOAD": str(library_path()), "NPUKIT_SIM": str(tmp_path / "machine")}
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, ROCKET, str(CREATE_BO)],
            env={**os.environ, **environment},
            stdin=reader,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.close(reader)
            with kernel.lock:
                kernel.enter(kernel.current)
                pages = kernel.devices[0].pages  # type: ignore[attr-defined]
                # The buffer lives on without a handle.
                assert kernel.held
                assert os.fstat(pages.fd).st_blocks * 512 == 1 << 20
            os.close(writer)
            process.stdout.read()
        wait_until(lambda: nothing_is_held(kernel))


def test_memory_that_the_server_cannot_read(
    clients: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in an emulated program: the library is asked for all of it."""
    with no_leak(), served(tmp_path / "machine", process_vm=False):
        for name in ("rocket", "rknpu"):
            node = {"rocket": ROCKET, "rknpu": RENDER}[name]
            finish(
                preloaded(
                    tmp_path / "machine", clients / "matmul", name, node, clients / f"{name}.job"
                )
            )
        finish(preloaded(tmp_path / "machine", sys.executable, "-c", BAD_POINTERS, ROCKET))
    assert capfd.readouterr().err == ""


BAD_POINTERS = f"""
import ctypes, errno, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDWR)
hole = mmap.mmap(-1, 8192)
address = ctypes.addressof(ctypes.c_char.from_buffer(hole))
def fails(pointer):
    code = libc.ioctl(fd, ctypes.c_ulong({CREATE_BO}), ctypes.c_void_p(pointer))
    return ctypes.get_errno() if code else 0
assert libc.mprotect(ctypes.c_void_p(address + 4096), 4096, 0) == 0
for pointer in (0, 2**64 - 1, 0xffffffff81000000, 0x4141414141414141, address + 4096 - 8):
    assert fails(pointer) == errno.EFAULT, hex(pointer)
hole[:4] = (4096).to_bytes(4, "little")
assert fails(address) == 0
assert libc.mprotect(ctypes.c_void_p(address), 4096, 1) == 0
assert fails(address) == errno.EFAULT
print("equal")
"""


def test_python_and_programs_share_a_machine(clients: Path, tmp_path: Path) -> None:
    path = tmp_path / "machine"
    with no_leak(), served(path):
        with SocketKernel(path) as kernel:
            fd = kernel.open(ROCKET, os.O_RDWR)
            held = rocket.DRM_IOCTL_ROCKET_CREATE_BO(kernel, fd, size=4096)
            with npukit.open(f"sim:rknpu@{path}") as device, device.alloc(4096) as buffer:
                with buffer.access("w") as memory:
                    memory[:] = 9
                finish(
                    preloaded(path, clients / "matmul", "rocket", ROCKET, clients / "rocket.job")
                )
                with buffer.access("r") as memory:
                    assert (memory[:] == 9).all()
            del memory, buffer, device
            assert held.handle == 1
            kernel.close(fd)


def test_nonsense_ends_a_call_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hello, deep = b'["library", 0, "x"]\n', b"[" * 4000

    def say(*messages: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(tmp_path / "machine"))
            sock.settimeout(LIMIT)
            for data in messages:
                sock.send(data)
                answer = sock.recv(1000) if data is not hello else b""
            return answer

    with no_leak(), served(tmp_path / "machine") as kernel:
        for data in (
            b'["library"]\n',
            b'["library", "x", "y"]\n',
            b'["library", 1e999, "y"]',
            deep,
        ):
            assert say(data) == b""
        for call in ("ioctl", "toast", "open", "mmap", "fstat", "nodes", [], None, "__class__"):
            assert say(hello, json.dumps([call, "1", [], 1.5]).encode()) == b""
        large = b'["fstat", 1, 1' + b"0" * 30 + b"]"
        for data in (b"x", deep, b'["ioctl"]\n', b"{}", b'["open", 0, 1e5]', large):
            assert say(hello, data) == b""
        assert say(hello, b'["open", 99, 2]\n') == say(hello, b'["open", -1, 2]\n')
        assert say(hello, b'["open", 99, 2]\n') == f'["errno", {errno.ENOENT}]\n'.encode()
        assert say(hello, b'["ioctl", 1, 2, 3, 4]\n') == b'["none"]\n'
        # An answer that is none ends the call, and the program with it.
        for answer in (
            b"x",
            b"{}",
            b"[]",
            b"[0]",
            b'[0, "x"]',
            b"[0, 1, 2]",
            b"[-5]",
            b"[1e9]",
            deep,
        ):
            assert say(hello, b'["open", 0, 2]\n', answer) == b""
        wait_until(lambda: nothing_is_held(kernel))
    assert capfd.readouterr().err == ""


def test_descriptors_that_nobody_asked_for_are_not_kept(tmp_path: Path) -> None:
    with no_leak(), served(tmp_path / "machine"):
        for hello in (b'["library", 0, "x"]', b'["hello", "me"]', b"x"):
            for data in (b'["nodes"]', b'["devices"]', b"x"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                    sock.connect(str(tmp_path / "machine"))
                    with contextlib.suppress(BrokenPipeError):
                        socket.send_fds(sock, [hello], [0, 1, 2])
                        socket.send_fds(sock, [data], [0] * 100)


WAITER = f"""
import fcntl, os, select, sys
heap = os.open({HEAP!r}, os.O_RDWR)
alloc = bytearray((4096).to_bytes(24, "little"))
fcntl.ioctl(heap, {int(dma_heap.DMA_HEAP_IOCTL_ALLOC)}, alloc)
buffer = int.from_bytes(alloc[8:12], "little")
print("buffer", flush=True)
sys.stdin.readline()
export = bytearray((1).to_bytes(8, "little"))
fcntl.ioctl(buffer, {int(dma_buf.DMA_BUF_IOCTL_EXPORT_SYNC_FILE)}, export)
fence = int.from_bytes(export[4:], "little")
poll = select.poll()
poll.register(fence, select.POLLIN)
info = bytearray(56)
fcntl.ioctl(fence, {int(sync_file.SYNC_IOC_FILE_INFO)}, info)
print(poll.poll(50), int.from_bytes(info[32:36], "little"), flush=True)
ready = bool(poll.poll(10000))
info = bytearray(56)
fcntl.ioctl(fence, {int(sync_file.SYNC_IOC_FILE_INFO)}, info)
print(ready, int.from_bytes(info[32:36], "little"), flush=True)
"""


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(path))
    with served(path):
        with pytest.raises(OSError, match="in use"), served(path):
            pass
        with SocketKernel(path) as kernel:
            assert kernel.path("rocket") == ROCKET
        # Another takes its place, and keeps it.
        path.unlink()
        other = serve(ServedKernel([]), path)
    with other:
        assert path.exists()
    assert not path.exists()
    other.kernel.shut_down()  # type: ignore[attr-defined]
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"), served(path):
        pass
    assert path.read_text() == "precious"
    with pytest.raises(OSError, match="too long"), served(tmp_path / ("x" * 108)):
        pass


def test_a_folder_that_is_too_deep_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 108)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    result = door("true", kind="preload")
    assert result.returncode == 125
    assert re.fullmatch(
        r"npukit sim run: no socket can be at .*: File name too long\n", result.stderr
    )


def test_a_fence_polls(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    environment = {"LD_PRELOAD": str(library_path()), "NPUKIT_SIM": str(path)}
    with no_leak(), served(path) as kernel:
        with subprocess.Popen(
            [sys.executable, "-c", WAITER],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "buffer\n"
            with kernel.lock:
                fence = Fence(kernel, "test", "line", object())
                (buffer,) = (
                    file for file in kernel._stand_ins.values() if isinstance(file, DmaBufSim)
                )
                buffer.backing.writers.append(fence)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "[] 0\n"
            with kernel.lock:
                fence.signal()
            assert process.stdout.readline() == "True 1\n"
        assert process.returncode == 0
        wait_until(lambda: nothing_is_held(kernel))


# Loads all while it still may read this checkout, and becomes what an ordinary user's process is.
UNPRIVILEGED = """
import ctypes, os, sys
from npukit.sim import rocket
from npukit.sim.serving import run_preloaded
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.exit(run_preloaded(sys.argv[2:], ["rocket"], library=sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests show it for an ordinary user")
def test_without_privilege(clients: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for file in (clients / "matmul", clients / "rocket.job", library_path()):
            shutil.copy(file, folder)
        library = f"{folder}/{library_path().name}"
        script = f"id -u; id -g; $0/matmul rocket {ROCKET} $0/rocket.job"
        command = ["sh", "-c", script, folder]
        result = start([sys.executable, "-c", UNPRIVILEGED, library, *command])
    assert result.stdout.split() == ["65534", "65534", "equal"], result.stderr
    assert result.returncode == 0


def test_sim_serve(clients: Path, tmp_path: Path) -> None:
    path = tmp_path / "machine"
    # Programs have folders of their own, so what they are to be given is absolute.
    relative = os.path.relpath(path, ROOT)
    command = [sys.executable, "-m", "npukit", "sim", "serve", "--socket", relative, "--report"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(f"serving {CARD}, {RENDER}, {ROCKET}, ")
        variables = dict(server.stdout.readline().strip().split("=") for _ in range(2))
        assert variables == {"NPUKIT_SIM": str(path), "LD_PRELOAD": str(library_path())}
        again = start(command)
        assert again.returncode == 1
        assert "in use" in again.stderr
        with npukit.open(f"sim:rknpu@{path}") as device:
            buffer = device.alloc(4096)
            words = clients / "rocket.job"
            both = [preloaded(path, clients / "matmul", "rocket", ROCKET, words) for _ in range(2)]
            for program in both:
                finish(program)
            buffer.close()
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=LIMIT)
    lines = [" ".join(line.split()) for line in err.splitlines()]
    assert server.returncode == 0, err
    assert lines[0] == "npukit sim serve: report"
    assert "2 rocket: DRM_IOCTL_ROCKET_SUBMIT" in lines
    assert any(line.startswith("1 rknpu: DRM_IOCTL_RKNPU_MEM_CREATE") for line in lines), lines
    assert not path.exists()
