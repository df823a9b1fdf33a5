# SPDX-License-Identifier: MIT
"""``npukit sim run`` with programs that know nothing of npukit."""

import errno
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from raw import CODE, JOB_BYTES, PRODUCT, job_image
from support import ROOT, skip_if_refused, wait_until

from npukit.abi import dma_heap, drm, fastrpc, rknpu, rocket, wrapfd
from npukit.ioctl import IOWR
from npukit.programs.rk3588.program import rknpu_tasks, rocket_tasks

ROCKET, CARD, RENDER = "/dev/accel/accel0", "/dev/dri/card1", "/dev/dri/renderD129"
HEAP = "/dev/dma_heap/system"
LIMIT = 60
"""Seconds after which a run is stopped as hung; each takes a few at most."""
KILLS = int(os.environ.get("NPUKIT_KILLS", "50"))
"""``make soak`` asks for more."""


def start(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, which must come soon."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        # The group is this run's own: supervisor and programs.
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"hung after {LIMIT} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def door(
    *command: str | Path, options: tuple[str, ...] = (), kind: str = "seccomp"
) -> "subprocess.CompletedProcess[str]":
    """Run a program in a door."""
    run = [sys.executable, "-m", "npukit", "sim", "run", "--door", kind]
    return start([*run, *options, "--", *map(str, command)])


both = pytest.mark.parametrize("kind", ["seccomp", "preload"])
"""Where what must hold is the same in both doors."""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    """Skips where the machine has no user notification or forbids namespaces."""
    skip_if_refused(door("true"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the compiled clients."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the clients")
    folder = tmp_path_factory.mktemp("clients")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    for source in (ROOT / "tests/clients").glob("*.c"):
        subprocess.run(["gcc", *flags, source, "-o", folder / source.stem], check=True)
    (folder / "rocket.job").write_bytes(job(0))
    # Where rknpu puts the first buffer.
    (folder / "rknpu.job").write_bytes(job((1 << 32) - JOB_BYTES))
    return folder


def job(address: int) -> bytes:
    """``struct job`` of clients/uapi.h, for a buffer at a DMA address."""
    image, program = job_image(address)
    rocket = rocket_tasks(program, address + CODE)[0]
    rknpu = rknpu_tasks(program, address + CODE)[0]
    head = (CODE, rocket.regcmd_count, rknpu.enable_mask, rknpu.int_mask, rknpu.regcfg_amount)
    # The NPU leaves 4 channels of 32 bits side by side.
    result = np.ascontiguousarray(PRODUCT.reshape(4, 8, 4).transpose(1, 0, 2))
    return struct.pack("<6IQ", *head, 0, address) + image.tobytes() + result.tobytes()


def succeeds(result: "subprocess.CompletedProcess[str]", stderr: str = "") -> None:
    assert (result.returncode, result.stdout) == (0, "equal\n"), result.stderr
    assert re.fullmatch(stderr, result.stderr), result.stderr


@pytest.mark.parametrize("node", [CARD, RENDER])
@both
def test_rknpu(clients: Path, node: str, kind: str) -> None:
    succeeds(door(clients / "matmul", "rknpu", node, clients / "rknpu.job", kind=kind))


@both
def test_rocket(clients: Path, kind: str) -> None:
    succeeds(door(clients / "matmul", "rocket", ROCKET, clients / "rocket.job", kind=kind))


def test_a_static_program(clients: Path) -> None:
    static = clients / "matmul-static"
    source = ROOT / "tests/clients/matmul.c"
    if subprocess.run(["gcc", "-static", source, "-o", static], capture_output=True).returncode:
        pytest.skip("no static libc")
    succeeds(door(static, "rocket", ROCKET, clients / "rocket.job"))
    succeeds(door(static, "rknpu", RENDER, clients / "rknpu.job"))


@both
def test_python_alone(clients: Path, kind: str) -> None:
    client = ROOT / "tests/clients/python_client.py"
    succeeds(door(sys.executable, client, ROCKET, clients / "rocket.job", kind=kind))


@both
def test_threads(clients: Path, kind: str) -> None:
    succeeds(door(clients / "threads", ROCKET, clients / "rocket.job", "8", "5", kind=kind))


@both
def test_open_files(clients: Path, kind: str) -> None:
    """fork, dup, exec, sockets, mappings, dma-bufs."""
    succeeds(door(clients / "files", ROCKET, clients / "rocket.job", HEAP, kind=kind))


@both
def test_ways_to_open_a_node(clients: Path, kind: str) -> None:
    succeeds(door(clients / "opens", ROCKET, kind=kind))
    # There the seccomp door knows nodes by their full paths.
    more = ("plain",) if kind == "seccomp" else ()
    options = ("--no-namespace",)
    result = door(clients / "opens", ROCKET, *more, kind=kind, options=options)
    succeeds(result)


@both
def test_signals(clients: Path, kind: str) -> None:
    arguments = (ROCKET, clients / "rocket.job", CARD, clients / "rknpu.job")
    result = door(clients / "signals", *arguments, options=("--report",), kind=kind)
    succeeds(result, r"(?s)npukit sim run: report\n.*")
    assert re.search(r"PREP_BO failed with ERESTARTSYS \(a signal: EINTR, or made ", result.stderr)


@both
def test_hostile_programs(clients: Path, kind: str) -> None:
    succeeds(
        door(clients / "hostile", ROCKET, clients / "rocket.job", CARD, HEAP, kind=kind),
        r"npukit sim run: a real kernel would crash here: .*\n",
    )


@both
def test_death_at_any_moment(clients: Path, kind: str) -> None:
    seed = str(time.time_ns() % 100000)
    result = door(
        clients / "churn", ROCKET, clients / "rocket.job", HEAP, str(KILLS), seed, kind=kind
    )
    succeeds(result)


@pytest.mark.parametrize("device", [ROCKET, CARD])
@both
def test_npukit_itself(device: str, kind: str) -> None:
    result = door(sys.executable, "-m", "npukit", "smoke", "--json", "--device", device, kind=kind)
    assert result.returncode == 0, result.stdout + result.stderr


MEMORY = """
import sys, npukit
with npukit.open(sys.argv[1]) as device, device.alloc(1 << 16) as buffer:
    with buffer.access("w") as memory:
        memory[:] = 5
    with buffer.access("r") as memory:
        print(int(memory.sum(dtype=int)) == 5 << 16)
"""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("amdxdna", "/dev/accel/accel0"),
        ("fastrpc-cdsp", "/dev/fastrpc-cdsp"),
        ("rknpu-misc", "/dev/rknpu"),
    ],
)
@both
def test_memory_of_other_devices(name: str, path: str, kind: str) -> None:
    result = door(sys.executable, "-c", MEMORY, path, options=("--device", name), kind=kind)
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


@both
def test_an_open_that_fails(kind: str) -> None:
    """A DSP has 12 sessions; a 13th open is refused, until one is closed."""
    script = (
        "import os\n"
        "fds = [os.open('/dev/fastrpc-cdsp', os.O_RDWR) for _ in range(12)]\n"
        "for _ in range(2):\n"
        "    try: os.open('/dev/fastrpc-cdsp', os.O_RDWR)\n"
        "    except OSError as error: print(error.errno)\n"
        "    os.close(fds.pop())\n"
        "    fds.append(os.open('/dev/fastrpc-cdsp', os.O_RDWR))\n"
        "print(os.get_inheritable(fds[0]))"
    )
    result = door(sys.executable, "-c", script, options=("--device", "fastrpc-cdsp"), kind=kind)
    assert result.stdout.split() == [str(errno.EBUSY), str(errno.EBUSY), "False"], result.stderr


@both
def test_devices_are_found(kind: str) -> None:
    result = door(sys.executable, "-m", "npukit", "devices", kind=kind)
    assert ROCKET in result.stdout
    assert CARD in result.stdout


@both
def test_sysfs(kind: str) -> None:
    script = (
        "basename $(readlink -f /sys/class/accel/accel0/device/driver);"
        "basename $(readlink -f /sys/class/drm/renderD129/device/driver);"
        "cat /sys/dev/char/261:0/uevent; ls /sys/class/net /sys/devices/system/cpu >/dev/null"
    )
    result = door("sh", "-c", script, kind=kind)
    assert result.stdout == "rocket\nRKNPU\nMAJOR=261\nMINOR=0\nDEVNAME=accel/accel0\n"
    assert result.stderr == ""


def test_character_devices() -> None:
    """What stat shows of nodes, and of all else."""
    show = "stat -c '%F %t:%T' /dev/dri/renderD129 /dev/null /proc/self/exe /etc"
    fstat = f"import os; s = os.fstat(os.open('{ROCKET}', 2)); print(oct(s.st_mode), s.st_rdev)"
    script = f'{show}; {sys.executable} -c "{fstat}"; test -c {CARD} && echo char'
    result = door("sh", "-c", script, options=("--char-nodes",))
    assert result.stdout.splitlines() == [
        "character special file e2:81",
        "character special file 1:3",
        "symbolic link 0:0",
        "directory 0:0",
        f"0o20666 {os.makedev(261, 0)}",
        "char",
    ], result.stderr
    assert door("stat", "-c", "%F", CARD).stdout == "regular file\n"


@both
def test_the_rest_of_dev(kind: str) -> None:
    script = "echo x > /dev/null; head -c 3 /dev/zero | wc -c; ls -d /dev/shm /dev/pts /dev/dri/*"
    result = door("sh", "-c", script, options=("--device", "rknpu"), kind=kind)
    assert result.stdout.split() == ["3", CARD, RENDER, "/dev/pts", "/dev/shm"]
    assert door("ls", "/dev/accel", options=("--device", "rknpu"), kind=kind).returncode == 2


# Loads all while it still may read this checkout, and becomes what an ordinary user's process is.
UNPRIVILEGED = """
import ctypes, os, sys
from npukit.sim import dma_buf, rknpu, rocket
from npukit.sim.run import run
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests show it for an ordinary user")
def test_without_privilege(clients: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in ("matmul", "rocket.job"):
            shutil.copy(clients / name, folder)
        script = f"id -u; id -g; test -O {ROCKET} && $0/matmul rocket {ROCKET} $0/rocket.job"
        result = start([sys.executable, "-c", UNPRIVILEGED, "sh", "-c", script, folder])
        skip_if_refused(result)
        assert result.stdout.split() == ["65534", "65534", "equal"], result.stderr
        # The kernel keeps those out who could not read the file.
        os.chmod(f"{folder}/matmul", 0o111)
        command = (f"{folder}/matmul", "rocket", ROCKET, f"{folder}/rocket.job")
        result = start([sys.executable, "-c", UNPRIVILEGED, *command])
        assert result.returncode == 1
        assert "Inappropriate ioctl" in result.stderr
        assert result.stderr.count("does not let us look into it") == 1


def test_without_namespaces(clients: Path) -> None:
    options = ("--no-namespace",)
    job = clients / "rocket.job"
    succeeds(door(clients / "matmul", "rocket", ROCKET, job, options=options))
    succeeds(door(clients / "files", ROCKET, job, HEAP, options=options))
    succeeds(door(clients / "churn", ROCKET, job, HEAP, "10", "1", options=options))
    shown = door("sh", "-c", f"test -c {ROCKET} && ls -d {CARD}; ls /dev/accel", options=options)
    assert shown.stdout.split() == [CARD]


def test_the_exit_status_passes_through() -> None:
    assert door("sh", "-c", "exit 7").returncode == 7
    assert door("sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert door("").returncode == 127
    missing = door("/no/such/program")
    assert missing.returncode == 127
    assert missing.stderr == "npukit sim run: /no/such/program: no such program\n"
    unknown = door("true", options=("--device", "toaster"))
    assert unknown.returncode == 2
    assert "no simulated device 'toaster'" in unknown.stderr


@both
def test_standard_files_that_are_closed(kind: str) -> None:
    """They are closed for the program too, and nothing that is said goes anywhere else."""
    run = f"{sys.executable} -m npukit sim run --door {kind} --report --"
    shown = "for n in 0 1 2; do test -e /proc/$$/fd/$n && echo $n >> $0; done; exit 5"
    with tempfile.NamedTemporaryFile("r") as file:
        for closed, left in (("<&-", "12"), (">&-", "02"), ("2>&-", "01"), (">&- 2>&-", "0")):
            result = start(["sh", "-c", f"{run} sh -c '{shown}' {file.name} {closed}"])
            assert (result.returncode, result.stdout) == (5, "")
            assert ("Traceback" in result.stderr, "report" in result.stderr) == (False, "2" in left)
            assert file.read().split() == list(left)


def test_what_is_impossible_is_said() -> None:
    """One program cannot have two supervisors."""
    inner = [sys.executable, "-m", "npukit", "sim", "run", "--", "echo", "never"]
    result = door(*inner)
    assert (result.returncode, result.stdout) == (125, "")
    assert re.fullmatch(
        r"npukit sim run: system calls cannot be trapped .* on this machine: .*busy\n",
        result.stderr,
    )


FORBIDS = """
import ctypes, errno, os, struct, sys
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
def forbid(number):
    # Load the number; EPERM if it is the one, else go on.
    refuse, allow = 0x50000 | errno.EPERM, 0x7FFF0000
    lines = (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, refuse), (6, 0, 0, allow)
    code = b"".join(struct.pack("<HBBI", *line) for line in lines)
    prctl = ctypes.CDLL(None).prctl
    assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(Program(4, code)), 0, 0) == 0
forbid(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("call", ["pidfd_open", "pidfd_getfd", "process_vm_readv", "inotify_init1"])
def test_what_a_container_forbids_is_said(call: str) -> None:
    number = {
        "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438),
        "process_vm_readv": (310, 270),
        "inotify_init1": (294, 26),
    }[call][platform.machine() == "aarch64"]
    run = [sys.executable, "-m", "npukit", "sim", "run", "--", "echo", "never"]
    result = start([sys.executable, "-c", FORBIDS, str(number), *run])
    assert (result.returncode, result.stdout) == (125, "")
    said = rf"npukit sim run: .* cannot be answered on this machine .*: {call}: Operation not .*\n"
    assert re.fullmatch(said, result.stderr)


@both
def test_processes_left_behind_are_served_to_their_end(clients: Path, kind: str) -> None:
    run = f"{clients}/matmul rocket {ROCKET} {clients}/rocket.job"
    result = door("sh", "-c", f"(sleep 0.3; {run}) & exit 3", kind=kind)
    assert (result.returncode, result.stdout) == (3, "equal\n")


def test_a_termination_is_passed_on() -> None:
    script = "trap 'echo told; exit 4' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "npukit", "sim", "run", "--", "sh", "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert (process.returncode, out) == (4, "told\n")


@both
def test_what_a_program_left_behind_is_told_instead(kind: str) -> None:
    """Else nothing but SIGKILL would end a run whose program has ended itself."""
    script = "sleep 1000 & echo $$; exit 3"
    run = [sys.executable, "-m", "npukit", "sim", "run", "--door", kind, "--", "sh", "-c", script]
    process = subprocess.Popen(
        run, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert process.stdout is not None
        program = Path("/proc", process.stdout.readline().strip())
        wait_until(lambda: not program.exists())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert (process.returncode, out, err) == (3, "", "")


@both
def test_the_report(clients: Path, kind: str) -> None:
    result = door(
        clients / "matmul",
        "rocket",
        ROCKET,
        clients / "rocket.job",
        options=("--report",),
        kind=kind,
    )
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert lines[0] == "npukit sim run: report"
    assert "1 rocket: DRM_IOCTL_ROCKET_SUBMIT" in lines
    assert "1 submits" in lines
    # CREATE_BO 24, SUBMIT 24 + job 40 + task 8 + handle 4, PREP_BO 16, GEM_CLOSE 8.
    assert "124 bytes read from the program, 24 written" in lines

    result = door(
        clients / "hostile",
        ROCKET,
        clients / "rocket.job",
        CARD,
        HEAP,
        options=("--report",),
        kind=kind,
    )
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert any("buffers still open at the last close" in line for line in lines)
    assert any(line.endswith("DRM_IOCTL_ROCKET_CREATE_BO failed with EFAULT") for line in lines)
    assert any("strict mode would have refused: rocket: job 0" in line for line in lines)


REPORTED = f"""
import array, ctypes, fcntl, os
libc = ctypes.CDLL(None)
rocket, misc, dsp, wrap = (
    os.open(path, os.O_RDWR)
    for path in ({ROCKET!r}, "/dev/rknpu", "/dev/fastrpc-cdsp", "/dev/wrapfd")
)
def fails(fd, request, argument):
    try: fcntl.ioctl(fd, int(request), argument)
    except OSError: pass
    else: raise AssertionError(request)
create = bytearray(bytes(8) + (4096).to_bytes(40, "little"))
for _ in range(3):
    fcntl.ioctl(misc, {int(rknpu.IOCTL_RKNPU_MEM_CREATE)}, create)
    create = bytearray(bytes(8) + (4096).to_bytes(40, "little"))
fails(misc, {int(rknpu.IOCTL_RKNPU_SUBMIT)}, bytes(104))
# Too large for what the driver copies it to.
fails(misc, {IOWR("r", 2, 1024)}, bytes(1024))
fails(rocket, {int(rocket.DRM_IOCTL_ROCKET_CREATE_BO)}, 8)
fails(rocket, {int(dma_heap.DMA_HEAP_IOCTL_ALLOC)}, bytes(24))
job = array.array("Q", [0] * 5)
submit = array.array("Q", [job.buffer_info()[0], 40 << 32 | 1, 0])
try: fcntl.ioctl(rocket, {int(rocket.DRM_IOCTL_ROCKET_SUBMIT)}, submit)
except OSError: pass
fails(dsp, {int(fastrpc.FASTRPC_IOCTL_INVOKE)}, 8)
fails(wrap, {int(wrapfd.WRAPFD_DEV_IOC_WRAP)}, 8)
"""


@pytest.mark.parametrize("strict", [False, True])
@both
def test_the_report_tells_all_that_went_wrong(kind: str, strict: bool) -> None:
    names = ("rocket", "rknpu-misc", "fastrpc-cdsp", "wrapfd", "dma_heap")
    options = ("--report", *(word for name in names for word in ("--device", name)))
    options = (*options, "--strict") if strict else options
    result = door(sys.executable, "-c", REPORTED, options=options, kind=kind)
    assert result.returncode == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    for line in (
        "4 rknpu-misc: IOCTL_RKNPU_MEM_CREATE",
        "1 rknpu-misc: IOCTL_RKNPU_MEM_CREATE failed with EFAULT",
        "1 rknpu-misc: IOCTL_RKNPU_SUBMIT failed with EINVAL",
        "1 rocket: DRM_IOCTL_ROCKET_CREATE_BO failed with EFAULT",
        "1 rocket: DMA_HEAP_IOCTL_ALLOC failed with ENOTTY",
        "1 fastrpc-cdsp: FASTRPC_IOCTL_INVOKE failed with EFAULT",
        "1 wrapfd: WRAPFD_DEV_IOC_WRAP failed with EFAULT",
        "3 submits",
        "3 rknpu-misc: buffers still open at the last close",
        # MEM_CREATE thrice, a rknpu SUBMIT, and rocket's with its job; what was refused is not.
        f"{3 * 48 + 104 + 24 + 40} bytes read from the program, {3 * 48 + 104} written",
    ):
        assert line in lines, result.stderr
    assert ("1 rocket: DRM_IOCTL_ROCKET_SUBMIT failed with EINVAL" in lines) == strict


EXHAUSTING = f"""
import errno, fcntl, os, struct, time
node = os.open({ROCKET!r}, os.O_RDWR)
def asks(request, argument):
    argument = bytearray(argument)
    try: fcntl.ioctl(node, request, argument)
    except OSError as error: return errno.errorcode[error.errno], argument
    return "", argument
create = {int(rocket.DRM_IOCTL_ROCKET_CREATE_BO)}, (4096).to_bytes(24, "little")
said, fds = set(), []
for handle in range(1, 200):
    export = {int(drm.DRM_IOCTL_PRIME_HANDLE_TO_FD)}, struct.pack("IIi", handle, 0, -1)
    free = {int(drm.DRM_IOCTL_GEM_CLOSE)}, struct.pack("II", handle + 1, 0)
    # Of what is freed the door asks who has mapped it, for which it needs a descriptor as well.
    (made, _), *_ = asks(*create), asks(*create), asks(*free)
    exported, answer = asks(*export)
    said |= {{made, exported}}
    if not exported: fds += struct.unpack("8xi", answer)
time.sleep(0.2)
print(len(fds) > 10, *sorted(said - {{""}}))
for fd in fds: os.close(fd)
end = time.monotonic() + 5
while asks(*create)[0] and time.monotonic() < end: time.sleep(0.01)
print(asks(*create)[0])
"""


@both
def test_a_machine_without_descriptors_left(kind: str) -> None:
    run = f"ulimit -n 100; exec {sys.executable} -m npukit sim run --door {kind} --"
    result = start(["sh", "-c", f'{run} {sys.executable} -c "$0"', EXHAUSTING])
    assert result.stdout == "True EMFILE\n\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@both
def test_strict_mode(clients: Path, kind: str) -> None:
    result = door(
        clients / "hostile",
        ROCKET,
        clients / "rocket.job",
        CARD,
        HEAP,
        options=("--strict",),
        kind=kind,
    )
    assert result.returncode == 1
    assert "npukit sim run: strict: rocket: job 0 of 1 is dropped" in result.stderr


@both
def test_strict_mode_tells_of_stray_mappings(kind: str) -> None:
    script = (
        "import mmap, os\n"
        f"fd = os.open('{ROCKET}', os.O_RDWR)\n"
        "try: mmap.mmap(fd, 8192, offset=1 << 33)\n"
        "except OSError as error: print(error.errno)"
    )
    for options, said in (
        (("--strict",), "npukit sim run: strict: mmap of 8192 bytes at 0x200000000 gets EINVAL\n"),
        ((), ""),
    ):
        result = door(sys.executable, "-c", script, options=options, kind=kind)
        assert (result.stdout, result.stderr) == (f"{errno.EINVAL}\n", said)


@both
def test_where_namespaces_are_forbidden(clients: Path, kind: str) -> None:
    """The limit of a user namespace of the test's own stands for a machine that forbids them."""
    forbid = "echo 0 > /proc/sys/user/max_mnt_namespaces"
    if shutil.which("unshare") is None or start(["unshare", "-Ur", "sh", "-c", forbid]).returncode:
        pytest.skip("no user namespace in which to forbid others")
    run = f"{sys.executable} -m npukit sim run --door {kind} -- "
    program = f"{clients}/matmul rocket {ROCKET} {clients}/rocket.job"
    result = start(["unshare", "-Ur", "sh", "-c", f"{forbid} && {run}{program}"])
    succeeds(result, r"npukit sim run: no mount namespace on this machine \(No space.*\): .*\n")


@both
def test_what_libdrm_reads_of_a_device(kind: str) -> None:
    """drmGetDevices2: the bus, the identity and the names of all nodes, by a node's number."""
    script = """
import os
for number in ("226:129", "261:0"):
    device = f"/sys/dev/char/{number}/device"
    bus = os.readlink(device + "/subsystem")
    print(os.path.basename(bus), os.path.isdir(device + "/subsystem"))
    print(open(device + "/uevent").read(), end="")
print(*sorted(os.listdir("/sys/dev/char/226:129/device/drm")))
"""
    result = door(sys.executable, "-c", script, kind=kind)
    assert result.stdout.splitlines() == [
        "platform True",
        "DRIVER=RKNPU",
        "OF_NAME=npu",
        "OF_FULLNAME=/npu@fdab0000",
        "OF_COMPATIBLE_0=rockchip,rk3588-rknpu",
        "OF_COMPATIBLE_N=1",
        "MODALIAS=of:NnpuT(null)Crockchip,rk3588-rknpu",
        "platform True",
        "DRIVER=rocket",
        "MODALIAS=platform:rknn",
        "card1 renderD129",
    ], result.stderr
