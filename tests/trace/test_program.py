# SPDX-License-Identifier: MIT
"""``npukit trace``: programs under ptrace. The machine's /dev/null stands for an NPU's node: it
answers every request with ENOTTY, and a /sys of ours says which driver serves it."""

import errno
import importlib
import json
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, skip_if_refused, wait_until

from npukit.abi import rocket
from npukit.ioctl import Ioctl
from npukit.trace.meaning import MODULES
from npukit.trace.record import Block, Memory, Record, read_trace
from npukit.trace.summary import summarize, to_lines

LIMIT = 60
"""Seconds after which a run is stopped as hung."""
CREATE = int(rocket.DRM_IOCTL_ROCKET_CREATE_BO)
SYSFS = {"amdxdna_accel_driver": "amdxdna", "rknpu": "RKNPU"}
MISC = {
    "fastrpc": "fastrpc-cdsp",
    "dma_heap": "dma_heap/system",
    "udmabuf": "udmabuf",
    "wrapfd": "wrapfd",
}


def sysfs(root: Path, driver: str) -> Path:
    """A /sys under ``root`` that says who serves /dev/null."""
    entry = root / "devices/entry"
    entry.mkdir(parents=True)
    (root / "sys/dev/char").mkdir(parents=True)
    (root / "sys/dev/char/1:3").symlink_to(entry)
    if driver in MISC:
        (entry / "uevent").write_text(f"MAJOR=1\nMINOR=3\nDEVNAME={MISC[driver]}\n")
        return root
    (entry / "uevent").write_text("MAJOR=1\nMINOR=3\nDEVNAME=accel/accel0\n")
    name = SYSFS.get(driver, driver)
    (root / "drivers" / name).mkdir(parents=True)
    (entry / "device").mkdir()
    (entry / "device/driver").symlink_to(root / "drivers" / name)
    return root


def records_of(file: Path) -> list[Record]:
    with file.open() as lines:
        return list(read_trace(lines))


def start(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0, **options,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        # The group is this run's own: tracer and program.
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"hung after {LIMIT} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Runs a program traced; (how it ended, the records)."""

    def run(driver: str, *command: object) -> tuple[Any, list[Record]]:
        root, file = sysfs(tmp_path / "root", driver), tmp_path / "trace.jsonl"
        options = ["--format", "jsonl", "-o", str(file), "--root", str(root)]
        base = [sys.executable, "-m", "npukit", "trace", *options, "--"]
        result = start([*base, *map(str, command)])
        return result, records_of(file)

    return run


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    """Skips where the machine forbids ptrace."""
    command = [sys.executable, "-m", "npukit", "trace", "-o", "/dev/null", "--", "true"]
    skip_if_refused(start(command))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the client")
    program = tmp_path_factory.mktemp("clients") / "traced"
    source = ROOT / "tests/clients/traced.c"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["gcc", *flags, source, "-o", program], check=True)
    return program


def check_requests(
    driver: str, lines: list[str], records: list[Record], module: str
) -> list[Record]:
    """Each request that the client says it made is recorded, with what it says it sent and got."""
    known = vars(importlib.import_module(f"npukit.abi.{module}")).values()
    names: dict[int, set[str]] = {}
    for request in known:
        if isinstance(request, Ioctl):
            names.setdefault(int(request), set()).add(request.name)
    asked = [record for record in records if record.call == "ioctl" and record.driver == driver]
    assert len(lines) == len(names) == len(asked)
    for line, record in zip(lines, asked, strict=True):
        number, struct, sent, got, value, code = json.loads(line)
        assert record.number == number
        # A number with two names has either.
        assert record.request in names[number]
        assert (getattr(errno, record.errno) if record.errno else 0) == code
        assert record.result == (-1 if code else value)
        if sent is None:
            assert record.sent is None
            continue
        assert record.sent is not None
        assert record.after is not None
        assert (record.sent.struct, json.loads(json.dumps(record.sent.fields))) == (struct, sent)
        assert json.loads(json.dumps(record.after.fields)) == got
    return asked


@pytest.mark.parametrize("driver", sorted(set(MODULES) - {"drm", "dma_buf", "sync_file"}))
def test_each_request_of_each_driver_is_named_with_every_field(trace: Any, driver: str) -> None:
    module = MODULES[driver]
    program = ROOT / "tests/clients/requests.py"
    result, records = trace(driver, sys.executable, program, "/dev/null", module)
    assert result.returncode == 0, result.stderr
    asked = check_requests(driver, result.stdout.splitlines(), records, module)
    assert {record.errno for record in asked} == {"ENOTTY"}
    opening = next(record for record in records if record.call == "open")
    assert (opening.driver, opening.arguments) == (
        driver,
        {"path": "/dev/null", "flags": os.O_RDWR},
    )


def tree(block: Block) -> dict[str, Any]:
    """The fields, with what pointers point to in their place."""
    return {**block.fields, **{name: leaves(memory) for name, memory in block.memory.items()}}


def leaves(memory: Memory) -> Any:
    if memory.content is None or isinstance(memory.content, bytes):
        return memory.content
    return [tree(each) if isinstance(each, Block) else each for each in memory.content]


def test_what_structures_lead_to_is_followed_in_the_program(trace: Any) -> None:
    """The node answers nothing, so all is what the program's memory held before the call."""
    program = ROOT / "tests/clients/nested.py"
    result, records = trace("rocket", sys.executable, program, "/dev/null")
    assert result.returncode == 0, result.stderr
    submit = next(r.sent for r in records if r.request == "DRM_IOCTL_ROCKET_SUBMIT")
    assert submit is not None
    first, second, third = tree(submit)["jobs"]
    # The register commands of tasks stand in buffers that were never made.
    assert first["tasks"] == [
        {"regcmd": None, "regcmd_count": 16}, {"regcmd": None, "regcmd_count": 24}
    ]  # fmt: skip
    assert (first["in_bo_handles"], first["out_bo_handles"]) == ([5, 6, 7], [9])
    assert second["tasks"] is None
    assert (second["in_bo_handles"], second["out_bo_handles"]) == (0, 0)
    assert (third["tasks"], third["in_bo_handles"]) == (0, [11])
    wait = next(r.sent for r in records if r.request == "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT")
    assert wait is not None
    assert (tree(wait)["handles"], tree(wait)["points"]) == ([1, 2], [3, 1 << 40])


def test_the_arguments_of_a_fastrpc_call_are_followed_in_the_program(trace: Any) -> None:
    program = ROOT / "tests/clients/nested.py"
    result, records = trace("fastrpc", sys.executable, program, "/dev/null")
    assert result.returncode == 0, result.stderr
    invoke = next(r.sent for r in records if r.request == "FASTRPC_IOCTL_INVOKE")
    assert invoke is not None
    arguments = tree(invoke)["args"]
    assert [argument["ptr"] for argument in arguments] == [b"\x10\0\0\0", None, b"result"]
    assert [argument["length"] for argument in arguments] == [4, 100, 6]


def test_the_handles_of_an_xdna_command_are_followed_in_the_program(trace: Any) -> None:
    program = ROOT / "tests/clients/nested.py"
    result, records = trace("amdxdna", sys.executable, program, "/dev/null")
    assert result.returncode == 0, result.stderr
    command = next(r.sent for r in records if r.request == "DRM_IOCTL_AMDXDNA_EXEC_CMD")
    assert command is not None
    assert tree(command)["args"] == [4, 8, 15]
    # There is no such buffer object.
    assert tree(command)["cmd_handles"] is None


SIMULATED = {
    "rknpu": ("rknpu", "/dev/dri/card1"),
    "rocket": ("rocket", "/dev/accel/accel0"),
    "amdxdna_accel_driver": ("amdxdna", "/dev/accel/accel0"),
    "fastrpc": ("fastrpc-cdsp", "/dev/fastrpc-cdsp"),
    "dma_heap": ("dma_heap", "/dev/dma_heap/system"),
    "udmabuf": ("udmabuf", "/dev/udmabuf"),
    "wrapfd": ("wrapfd", "/dev/wrapfd"),
}


def simulated(
    file: Path, device: str, *command: str, data: bool = False
) -> "subprocess.CompletedProcess[str]":
    options = [f"--trace={file}", "--device", device, *(["--data"] if data else [])]
    result = start([sys.executable, "-m", "npukit", "sim", "run", *options, "--", *command])
    if result.returncode == 125:
        pytest.skip(result.stderr.strip())
    return result


@pytest.mark.parametrize("driver", sorted(SIMULATED))
def test_each_request_is_traced_with_its_result_on_a_simulated_machine(
    tmp_path: Path, driver: str
) -> None:
    device, node = SIMULATED[driver]
    file, module = tmp_path / "trace.jsonl", MODULES[driver]
    program = str(ROOT / "tests/clients/requests.py")
    result = simulated(file, device, sys.executable, program, node, module)
    assert result.returncode == 0, result.stderr
    check_requests(driver, result.stdout.splitlines(), records_of(file), module)


XDNA = """
import sys
import numpy as np
import npukit
from npukit.programs.xdna import designs, smoke
rng = np.random.default_rng(1)
words = rng.integers(0, 1 << 32, (64, 96), np.uint32)
numbers = rng.integers(-(1 << 30), 1 << 30, (2, 4096), np.int32)
with npukit.open(sys.argv[1]) as device:
    assert (smoke.run_example(device, designs.transpose(64, 96), words) == words.T).all()
    total = smoke.run_example(device, designs.vector_add(4096), *numbers)
    assert (total == numbers.sum(0)).all()
"""
"""What smoke leaves out where it cannot know that the NPU knows these designs."""


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(
    ("device", "node"),
    [
        ("rknpu", "/dev/dri/card1"),
        ("rknpu-misc", "/dev/rknpu"),
        ("rocket", "/dev/accel/accel0"),
        ("amdxdna", "/dev/accel/accel0"),
    ],
)
def test_a_trace_of_an_unmodified_program_replays(
    tmp_path: Path, device: str, node: str, data: bool
) -> None:
    file = tmp_path / "trace.jsonl"
    npukit = [sys.executable, "-m", "npukit"]
    program = [*npukit, "smoke", "--json", "--device", node]
    if device == "amdxdna":
        program = [sys.executable, "-c", XDNA, node]
    result = simulated(file, device, *program, data=data)
    assert result.returncode == 0, result.stdout + result.stderr
    records = records_of(file)
    submits = [r for r in records if r.request.endswith(("_SUBMIT", "_EXEC_CMD"))]
    assert len(submits) == (2 if device == "amdxdna" else 5)
    blocks = [b for r in records for b in (r.sent, r.received) if b is not None]
    assert (sum(len(block.data) for block in blocks) > 30) == data
    # What was mapped is seen until it ends.
    calls = [record.call for record in records]
    assert calls.count("mmap") == calls.count("munmap") > 2
    result = start([*npukit, "trace", "replay", str(file)])
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith(" 0 differences\n")


def created(records: list[Record]) -> list[int]:
    """The sizes that CREATE_BO was asked for."""
    return [r.sent.fields["size"] for r in records if r.number == CREATE and r.sent is not None]


@pytest.mark.parametrize(
    "how",
    [
        "fork",
        "vfork",
        "exec",
        "threads",
        "exec-thread",
        "dup",
        "untraced",
        "untraced3",
        "close",
        "anonymous",
    ],
)
def test_processes_and_threads_are_followed(trace: Any, client: Path, how: str) -> None:
    result, records = trace("rocket", client, how)
    assert (result.returncode, result.stdout) == (7, "done\n"), result.stderr
    assert sorted(created(records)) == list(range(1, (201 if how == "threads" else 2) + 1))
    assert {r.errno for r in records if r.call == "ioctl"} == {"ENOTTY"}
    assert {r.driver for r in records if r.call == "ioctl"} == {"rocket"}
    calls = [record.call for record in records]
    if how in ("fork", "vfork", "dup", "untraced", "untraced3"):
        # The same open file in another process, or by another number.
        assert calls == ["open", "ioctl", "dup", "ioctl"]
    if how == "anonymous":
        assert calls == ["open", "ioctl", "ioctl"]
    assert (len({record.pid for record in records}) == 2) == (
        how in ("fork", "vfork", "untraced", "untraced3")
    )


MMAPS = """
import mmap, os, sys, tempfile
from npukit.ioctl import LinuxKernel
kernel = LinuxKernel()
node = kernel.open("/dev/null", os.O_RDWR)
file = tempfile.TemporaryFile()
file.truncate(4096)
other = kernel.open("/dev/full", os.O_RDWR)
for fd in (node, file.fileno(), other):
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        for offset in (0, 1 << 32):
            try:
                kernel.mmap(fd, 4096, offset, mmap.PROT_READ, flags)
            except OSError:
                pass
"""


def test_mappings_of_nodes_are_traced(trace: Any) -> None:
    """A dma-buf is mapped at 0, shared; the node stands for one, and refuses it."""
    result, records = trace("rocket", sys.executable, "-c", MMAPS)
    assert result.returncode == 0, result.stderr
    assert [
        (r.driver, r.arguments["flags"], r.arguments["offset"], r.errno)
        for r in records if r.call == "mmap" and r.driver
    ] == [
        ("rocket", mmap.MAP_SHARED, 0, "ENODEV"),
        ("rocket", mmap.MAP_SHARED, 1 << 32, "ENODEV"),
        ("rocket", mmap.MAP_PRIVATE, 1 << 32, "ENODEV"),
    ]  # fmt: skip
    # A file is no node; of a device that nobody knows, what lies where DRM has its buffers.
    assert {r.arguments["offset"] for r in records if r.call == "mmap" and not r.driver} == {
        1 << 32
    }


def test_a_long_path_is_told_whole(trace: Any, client: Path, tmp_path: Path) -> None:
    """As a program in a chroot has it."""
    node = tmp_path / ("x" * 100) / "node"
    node.parent.mkdir()
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.close(os.open(node, os.O_RDWR))
    except PermissionError:
        pytest.skip("not allowed to make or open device nodes")
    code = "import fcntl, os, sys; fcntl.ioctl(os.open(sys.argv[1], 2), 0xC0186440, bytes(24))"
    _result, records = trace("rocket", sys.executable, "-c", code, node)
    assert [r.arguments["path"] for r in records if r.call == "open"] == [str(node)]


def test_death_at_any_moment(trace: Any, client: Path) -> None:
    kills = int(os.environ.get("NPUKIT_KILLS", "50"))
    result, records = trace("rocket", client, "killed", kills)
    assert (result.returncode, result.stdout) == (7, "done\n"), result.stderr
    # One request of the program itself behind each death; how far its children came is chance.
    assert [size for size in created(records) if size >= 1000] == list(range(1000, 1000 + kills))
    # No buffer object comes of what nobody answered.
    assert summarize(records).buffers == []


def test_signals_and_stops_pass(trace: Any, client: Path) -> None:
    result, records = trace("rocket", client, "signals")
    assert (result.returncode, result.stdout) == (7, "done\n"), result.stderr
    assert created(records) == list(range(1, 301))


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -TERM $$", 143)])
def test_the_exit_status_passes(trace: Any, script: str, status: int) -> None:
    assert trace("rocket", "sh", "-c", script)[0].returncode == status


def test_a_program_that_asks_nothing(trace: Any, tmp_path: Path) -> None:
    silence = "no request to an NPU was seen\n"
    result, records = trace("rocket", "true")
    assert (result.stderr, records) == (f"npukit trace: {silence}", [])
    result = simulated(tmp_path / "other", "rocket", "true")
    assert (result.returncode, result.stderr) == (0, f"npukit sim run: {silence}")


DSP = """
import sys
from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice, Host
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL
with FastRpcDevice.open() as device:
    device.start(SHELL, verify=UNVERIFIED, host=Host([sys.argv[1]]))
    with idl.load("echo.idl").open(device) as echo, device.alloc(8192) as buffer:
        buffer.array()[:] = [*range(256)] * 32
        echo.transform_mapped(buffer.map_to_dsp(), 8192, 5)
"""


def test_what_a_dsp_does_to_a_dma_buf_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    folder = str(ROOT / "npukit/data")
    result = simulated(file, "fastrpc-cdsp", sys.executable, "-c", DSP, folder, data=True)
    assert result.returncode == 0, result.stderr
    invokes = [r for r in records_of(file) if r.request == "FASTRPC_IOCTL_INVOKE"]
    page = bytes(range(256)) * 16
    contents = [
        [chunk.content for chunk in block.data]
        for invoke in invokes
        for block in (invoke.sent, invoke.received)
        if block is not None and block.data
    ]
    # The same bytes twice are told once.
    assert contents == [[page, None], [bytes(byte ^ 5 for byte in page), None]]
    result = start([sys.executable, "-m", "npukit", "trace", "replay", str(file)])
    assert result.returncode == 0, result.stdout


CLOSES = """
import os, sys
from npukit.abi import drm
from npukit.ioctl import LinuxKernel
kernel = LinuxKernel()
first = kernel.open(sys.argv[1], os.O_RDWR)
second = os.dup(first)
for fd in (first, second):
    drm.DRM_IOCTL_VERSION(kernel, fd)
os.close(first)
os.close(second)
third = kernel.open(sys.argv[1], os.O_RDWR)
drm.DRM_IOCTL_VERSION(kernel, third)
"""


MAPS = """
import mmap, os, sys
from npukit.abi import drm, rocket
from npukit.ioctl import LinuxKernel
kernel = LinuxKernel()
fd = kernel.open(sys.argv[1], os.O_RDWR)
pages = []
for size in (4096, 8192):
    bo = rocket.DRM_IOCTL_ROCKET_CREATE_BO(kernel, fd, size=size)
    for _ in range(2):
        pages.append(kernel.mmap(fd, size, bo.offset, mmap.PROT_READ, mmap.MAP_SHARED))
        print(hex(pages[-1].address), size)
try:
    kernel.mmap(fd, 1 << 20, bo.offset, mmap.PROT_READ, mmap.MAP_SHARED)
except OSError:
    pass
kernel.munmap(kernel.mmap(fd, 4096, bo.offset, mmap.PROT_READ, mmap.MAP_SHARED))
drm.DRM_IOCTL_VERSION(kernel, fd)
"""


def test_the_supervisor_sees_mappings(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    result = simulated(file, "rocket", sys.executable, "-c", MAPS, "/dev/accel/accel0")
    assert result.returncode == 0, result.stderr
    records = records_of(file)
    mapped = [
        (hex(record.result), str(record.arguments["length"]))
        for record in records if record.call == "mmap" and not record.errno
    ]  # fmt: skip
    expected = [tuple(line.split()) for line in result.stdout.splitlines()]
    # What was unmapped before the next request had no address any more.
    assert sorted(mapped) == sorted(expected)
    # More than the buffer has.
    assert [r.errno for r in records if r.call == "mmap" and r.errno] == ["EINVAL"]
    ends = [hex(record.arguments["address"]) for record in records if record.call == "munmap"]
    assert sorted(ends) == sorted(address for address, _size in mapped)
    assert [record.call for record in records][-5:] == ["munmap"] * 4 + ["close"]


def test_the_supervisor_sees_the_last_close(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    result = simulated(file, "rocket", sys.executable, "-c", CLOSES, "/dev/accel/accel0")
    assert result.returncode == 0, result.stderr
    records = records_of(file)
    calls = Counter(record.call for record in records)
    assert (calls["open"], calls["dup"], calls["close"]) == (2, 1, 3)
    assert summarize(records).open_files == []


def test_from_outside_a_close_that_was_not_seen_is_called_so(trace: Any, client: Path) -> None:
    result, records = trace("rocket", client, "close")
    assert result.returncode == 7, result.stderr
    text = list(to_lines(summarize(records)))
    assert any(line.startswith("not seen closed: ") for line in text)
    assert not any(line.startswith("left open") for line in text)


def test_what_cannot_be_run_or_traced_is_said(trace: Any) -> None:
    result, records = trace("rocket", "/no/such/program")
    assert (result.returncode, records) == (127, [])
    assert "/no/such/program: No such file" in result.stderr
    command = [sys.executable, "-m", "npukit", "trace", "-p", str(2**22 + 1)]
    result = start(command)
    assert result.returncode == 125
    assert "No such process" in result.stderr


def traced(*command: str, **options: Any) -> "subprocess.Popen[str]":
    npukit = [sys.executable, "-m", "npukit", "trace", "-o", "/dev/null", "--"]
    return subprocess.Popen([*npukit, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                            stderr=subprocess.DEVNULL, **options)  # fmt: skip


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ends(process: "subprocess.Popen[str]") -> int:
    """Its exit status, in time."""
    try:
        return process.wait(20)
    finally:
        process.kill()


READY = "echo $$; while :; do sleep 0.05; done"


def test_ctrl_c_reaches_the_program() -> None:
    """Which does with it what it does without a tracer."""
    with traced("sh", "-c", f'trap "exit 4" INT; {READY}', process_group=0) as process:
        first_line(process)
        os.killpg(process.pid, signal.SIGINT)
        assert ends(process) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_tracer_is_passed_on(number: signal.Signals) -> None:
    with traced("sh", "-c", READY) as process:
        first_line(process)
        process.send_signal(number)
        assert ends(process) == 128 + number


def test_what_is_ignored_stays_so() -> None:
    """As nohup asks."""
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = traced("sh", "-c", READY)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    with process:
        program = int(first_line(process))
        process.send_signal(signal.SIGHUP)
        os.kill(program, signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        os.kill(program, signal.SIGKILL)
        assert ends(process) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_the_program_has_left_running(number: signal.Signals) -> None:
    with traced("sh", "-c", "sleep 1000 >/dev/null & echo $$ $!; exit 4") as process:
        program, left = first_line(process).split()
        wait_until(lambda: not os.path.exists(f"/proc/{program}"), 20)
        assert process.poll() is None
        process.send_signal(number)
        assert ends(process) == 4
        # A machine's init may leave it a zombie.
        state = Path(f"/proc/{left}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_sink_that_fails_lets_go_of_a_running_process(client: Path) -> None:
    program = subprocess.Popen(
        [client, "steps"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert program.stdin is not None
    with program:
        command = [sys.executable, "-m", "npukit", "trace", "-o", "/dev/full"]
        tracer = subprocess.Popen(
            [*command, "-p", str(program.pid)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        with tracer:
            status = Path(f"/proc/{program.pid}/status")
            wait_until(lambda: "TracerPid:\t0\n" not in status.read_text(), 20)
            program.stdin.write("1\n")
            assert first_line(program) == "done"
            assert ends(tracer) == 1
            assert tracer.stderr is not None
            assert tracer.stderr.read() == "npukit: /dev/full: No space left on device\n"
        program.stdin.write("2\n")
        assert first_line(program) == "done"
        program.stdin.close()
        assert ends(program) == 7


def test_a_number_that_no_process_can_have() -> None:
    result = start([sys.executable, "-m", "npukit", "trace", "-p", str(1 << 40)])
    assert result.returncode == 2
    assert "is not in the range" in result.stderr


def test_a_sink_that_fails_does_not_hurt_the_program(tmp_path: Path, client: Path) -> None:
    command = [sys.executable, "-m", "npukit", "trace", "-o", "/dev/full", "--"]
    result = start([*command, str(client), "threads"])
    assert result.stdout == "done\n"
    assert "No space left" in result.stderr


def test_nor_does_one_that_fails_in_a_simulated_machine() -> None:
    npukit = [sys.executable, "-m", "npukit"]
    command = [*npukit, "smoke", "--json", "--device", "/dev/accel/accel0"]
    result = simulated(Path("/dev/full"), "rocket", *command)
    assert json.loads(result.stdout)["passed"]
    assert result.returncode == 1
    assert result.stderr == "npukit: /dev/full: No space left on device\n"


def test_another_driver_of_the_same_type_is_left_out(trace: Any, client: Path) -> None:
    result, records = trace("i915", client, "fork")
    assert (result.returncode, records) == (7, [])


def test_a_running_process_is_traced_and_goes_on(tmp_path: Path, client: Path) -> None:
    root, file = sysfs(tmp_path / "root", "rocket"), tmp_path / "trace.jsonl"
    program = subprocess.Popen(
        [client, "steps"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program:
        program.stdin.write("1\n")
        assert program.stdout.readline() == "done\n"
        options = ["--format", "jsonl", "-o", str(file), "--root", str(root)]
        command = [sys.executable, "-m", "npukit", "trace", *options, "-p", str(program.pid)]
        tracer = subprocess.Popen(command, cwd=ROOT)
        try:
            status = Path(f"/proc/{program.pid}/status")
            wait_until(lambda: "TracerPid:\t0\n" not in status.read_text(), 20)
            other = start([*command[:3], "trace", "-p", str(program.pid)])
            assert other.returncode == 125
            assert other.stderr.endswith(f"(process {tracer.pid} traces it already)\n")
            for number in (2, 3):
                program.stdin.write(f"{number}\n")
                assert program.stdout.readline() == "done\n"
            tracer.send_signal(signal.SIGINT)
            assert tracer.wait(20) == 0
        finally:
            tracer.kill()
            tracer.wait()
        assert "TracerPid:\t0\n" in status.read_text()
        program.stdin.write("4\n")
        assert program.stdout.readline() == "done\n"
        program.stdin.close()
        assert program.wait(20) == 7
    assert created(records_of(file)) == [2, 3]


def test_the_program_dies_with_its_tracer_and_an_attached_one_does_not(client: Path) -> None:
    """Without a tracer the filter would have its requests fail."""
    command = [sys.executable, "-m", "npukit", "trace", "-o", "/dev/null", "--"]
    tracer = subprocess.Popen(
        [*command, client, "steps"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, bufsize=1,
    )  # fmt: skip
    with tracer:
        assert tracer.stdin is not None
        assert tracer.stdout is not None
        tracer.stdin.write("1\n")
        assert tracer.stdout.readline() == "done\n"
        tracer.kill()
        # The program held the other end.
        begun = time.monotonic()
        assert tracer.stdout.read() == ""
        assert time.monotonic() < begun + 20
    program = subprocess.Popen(
        [client, "steps"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program:
        tracer = subprocess.Popen([*command[:-1], "-p", str(program.pid)], cwd=ROOT)
        status = Path(f"/proc/{program.pid}/status")
        wait_until(lambda: "TracerPid:\t0\n" not in status.read_text(), 20)
        tracer.kill()
        tracer.wait()
        program.stdin.write("1\n")
        assert program.stdout.readline() == "done\n"
        program.stdin.close()
        assert program.wait(20) == 7
