# SPDX-License-Identifier: MIT
import json
import os
from collections.abc import Callable

from npukit.trace.format import to_chrome, to_text
from npukit.trace.record import PACKET, REGCMD, Block, Memory, Record
from npukit.trace.summary import summarize, to_lines

Trace = Callable[[str], tuple[Record, ...]]


def test_a_submit_reads_like_the_header() -> None:
    words = Memory(REGCMD, 0x1000, 2, [0x0041000000000000, 0x00810000000D0008])
    task = Block("drm_rocket_task", {"regcmd": 0x1000, "regcmd_count": 2}, {"regcmd": words})
    job = Block(
        "drm_rocket_job",
        {"tasks": 0x7F0000001000, "in_bo_handles": 0, "out_bo_handles": 0x10, "task_count": 1},
        {
            "tasks": Memory("drm_rocket_task", 0x7F0000001000, 1, [task]),
            "out_bo_handles": Memory("c_uint", 0x10, 1, None),
        },
    )
    sent = Block(
        "drm_rocket_submit",
        {"jobs": 0x7F0000000000, "job_count": 1, "job_struct_size": 40, "reserved": 0},
        {"jobs": Memory("drm_rocket_job", 0x7F0000000000, 3, [job])},
    )
    record = Record(
        "ioctl", 10**9, 12500, 1, 2, 5, "rocket", {}, 0x40186441, "DRM_IOCTL_ROCKET_SUBMIT",
        sent, None, -1, "EINVAL", "a rule",
    )  # fmt: skip
    assert list(to_text([record])) == [
        "   0.000000 2 ioctl(5<rocket>, DRM_IOCTL_ROCKET_SUBMIT, {jobs=0x7f0000000000, "
        "job_count=1, job_struct_size=40}) = -1 EINVAL (a rule) <12.5 us>",
        "    jobs[0] drm_rocket_job {tasks=0x7f0000001000, in_bo_handles=0x0, "
        "out_bo_handles=0x10, task_count=1}",
        "        tasks[0] drm_rocket_task {regcmd=0x1000, regcmd_count=2}",
        "            regcmd at 0x1000: 2 words",
        "                marker",
        "                enable CNA CORE DPU",
        "        out_bo_handles at 0x10: 1 c_uint that cannot be read",
        "    jobs: 3 in all",
    ]


def line_of(record: Record) -> str:
    (line,) = to_text([record])
    return line.partition(" 0 ")[2].rpartition(" <")[0]


def test_other_calls_read_as_strace_shows_them() -> None:
    def call(name: str, fd: int, result: int, **arguments: object) -> str:
        return line_of(Record(name, 0, 0, 0, 0, fd, "", arguments, result=result))

    assert call("open", -1, 3, path="/dev/rknpu", flags=0o2000002) == (
        'open("/dev/rknpu", O_RDWR|O_CLOEXEC) = 3'
    )
    assert call("open", -1, 3, path="/x", flags=0) == 'open("/x", O_RDONLY) = 3'
    assert call("mmap", 3, 0x7F00, length=4096, offset=1 << 32, prot=3, flags=0x4001) == (
        "mmap(3, 4096, 0x100000000, PROT_READ|PROT_WRITE, MAP_SHARED|0x4000) = 0x7f00"
    )
    assert call("munmap", -1, 0, address=0x7F00) == "munmap(0x7f00) = 0"
    assert call("fcntl", 3, 4, command=1030, arg=0) == "fcntl(3, F_DUPFD_CLOEXEC, 0) = 4"
    assert call("poll", -1, 1, fds=[[3, 1]], timeout=None) == "poll([[3, 1]], None) = 1"
    unknown = Record("ioctl", 0, 0, 0, 0, 3, "", {"arg": 16}, 0xC0107A55, result=-1, errno="ENOTTY")
    assert line_of(unknown) == "ioctl(3, 0xc0107a55, 0x10) = -1 ENOTTY"


def test_a_path_of_any_bytes_is_one_readable_line() -> None:
    path = os.fsdecode(b"/dev/\xff\n\x1b[31m")
    record = Record("open", 0, 0, 1, 1, -1, "rocket", {"path": path, "flags": 2}, result=3)
    shown = r"/dev/\udcff\n\x1b[31m"
    assert f'open("{shown}", O_RDWR) = 3' in next(to_text([record]))
    assert f"not seen closed: 3 ({shown})" == list(to_lines(summarize([record])))[-1]


def test_an_array_says_how_much_there_was() -> None:
    """A count may be wild, and its array not read."""
    memory = {
        "some": Memory("c_uint", 16, 70, [1, 2]), "none": Memory("c_uint", 16, 1 << 32, []),
        "all": Memory("c_uint", 16, 1, [1]),
    }  # fmt: skip
    record = Record("ioctl", 0, 0, 0, 0, 3, "", sent=Block("x", {}, memory))
    assert list(to_text([record]))[1:] == [
        "    some at 0x10: [1, 2], 70 in all",
        "    none at 0x10: [], 4294967296 in all",
        "    all at 0x10: [1]",
    ]


def test_what_came_back_is_shown_where_it_differs() -> None:
    fields = {"size": 4096, "handle": 0, "dma_address": 0, "offset": 0}
    record = Record(
        "ioctl", 0, 0, 0, 0, 3, "rocket", {}, 0xC0186440, "DRM_IOCTL_ROCKET_CREATE_BO",
        Block("drm_rocket_create_bo", fields),
        Block("drm_rocket_create_bo", {**fields, "handle": 1, "offset": 1 << 32}),
    )  # fmt: skip
    assert line_of(record) == (
        "ioctl(3<rocket>, DRM_IOCTL_ROCKET_CREATE_BO, {size=4096, handle=0, dma_address=0x0, "
        "offset=0x0} -> {handle=1, offset=0x100000000}) = 0"
    )


def test_packets_scalars_and_octets_are_taken_apart() -> None:
    packet = (3 | 2 << 12 | 3 << 28).to_bytes(4, "little") + b"\2\0\0\0" + b"\x11" * 4
    block = Block(
        "fastrpc_invoke",
        {"handle": 1, "sc": 0x02020100, "args": 0},
        {
            "a": Memory(PACKET, 0x10, 12, packet),
            "b": Memory(PACKET, 0x10, 4, b"\0\0\0\0"),
            "c": Memory("c_ubyte", 0x20, 100, bytes(range(100))),
            "d": Memory("c_char", 0x30, 6, b"rocket"),
        },
    )
    record = Record("ioctl", 0, 0, 0, 0, 3, "fastrpc", {}, 0xC0105203, "X", block)
    first, *rest = to_text([record])
    assert "method 2: 2 in, 1 out, 0 handles in, 0 out" in first
    assert rest == [
        "    a at 0x10: START_CU, cu=1, body 11111111",
        "    b at 0x10: 4 bytes: packet: count 0 with 1 mask words in 4 bytes",
        "    c at 0x20: 100 bytes " + bytes(range(32)).hex() + "...",
        '    d at 0x30: "rocket"',
    ]


def test_every_smoke_trace_becomes_text_and_a_chrome_trace(smoke_trace: Trace) -> None:
    for name in ("rknpu", "rocket", "amdxdna", "fastrpc-cdsp"):
        records = smoke_trace(name)
        lines = list(to_text(records))
        assert len(lines) > len(records)
        trace = json.loads(json.dumps(to_chrome(records)))
        events = trace["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) == len(records)
        assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
        begins = [event["id2"]["local"] for event in events if event["ph"] == "b"]
        assert begins == [event["id2"]["local"] for event in events if event["ph"] == "e"]
        assert len(begins) >= 4
        levels = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
        assert name == "fastrpc-cdsp" or (max(levels) > 1 << 19 and levels[-1] <= 64 << 20)
