# SPDX-License-Identifier: MIT
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.abi import rknpu
from npukit.requests import all_requests
from npukit.trace.follow import Follower
from npukit.trace.record import REGCMD, Block, Memory, Record, read_trace, write_header

numbers = st.integers(-(1 << 63), (1 << 64) - 1)
values = st.recursive(
    numbers | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("x"), inner),
    max_leaves=5,
)
names = st.text("abc_", min_size=1, max_size=4)


def memories(blocks: st.SearchStrategy[Block]) -> st.SearchStrategy[Memory]:
    words = st.lists(st.integers(0, (1 << 64) - 1), max_size=3)
    content = st.none() | st.binary(max_size=8) | words | st.lists(blocks, max_size=2)
    plain = st.builds(Memory, st.just("c_uint8"), numbers, numbers, content)
    commands = st.builds(Memory, st.just(REGCMD), numbers, numbers, st.none() | words)
    return plain | commands


flat = st.builds(Block, names, st.dictionaries(names, values, max_size=3))
blocks = st.builds(
    Block,
    names,
    st.dictionaries(names, values, max_size=3),
    st.dictionaries(names, memories(flat), max_size=2),
)
records = st.builds(
    Record,
    st.sampled_from(["ioctl", "mmap"]),
    *(st.integers(0, 1 << 62) for _ in range(4)),
    fd=st.integers(-1, 9),
    driver=st.sampled_from(["", "rknpu"]),
    arguments=st.dictionaries(names, numbers, max_size=2),
    number=st.integers(0, (1 << 32) - 1),
    request=names,
    sent=st.none() | blocks,
    received=st.none() | blocks,
    result=numbers,
    errno=st.sampled_from(["", "EINVAL"]),
    hint=st.sampled_from(["", "a rule"]),
)


@given(records)
def test_json_gives_the_record_back(record: Record) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


def test_register_commands_are_listed_for_readers_of_the_file() -> None:
    memory = Memory(REGCMD, 0x1000, 2, [0x0041000000000000, 0])
    record = Record("ioctl", 1, 2, 3, 4, 5, "rocket", sent=Block("s", {}, {"regcmd": memory}))
    written = json.loads(record.to_json())["sent"]["memory"]["regcmd"]
    assert written["listing"] == ["marker", "nop"]
    assert written["content"] == ["0x0041000000000000", "0x0000000000000000"]


def trace_file(*lines: str) -> io.StringIO:
    file = io.StringIO()
    write_header(file)
    file.write("".join(lines))
    file.seek(0)
    return file


RECORD = Record("close", 1, 2, 3, 4, 5, "rocket")


def test_a_file_gives_its_records_back() -> None:
    line = RECORD.to_json() + "\n"
    assert list(read_trace(trace_file(line, line))) == [RECORD, RECORD]
    assert list(read_trace(trace_file())) == []


def test_a_last_line_cut_off_is_dropped() -> None:
    line = RECORD.to_json() + "\n"
    assert list(read_trace(trace_file(line, line[:20]))) == [RECORD]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: not a trace"),
        ("hello\n", "line 1: not a trace"),
        ("[1]\n", "line 1: not a trace"),
        ('{"format": "npukit trace", "version": 99}\n', "line 1: version 99, not 1"),
        ('{"format": "npukit trace", "version": 1}\nhello\n', "line 2"),
        ('{"format": "npukit trace", "version": 1}\n{}\n', "line 2: no record"),
        ('{"format": "npukit trace", "version": 1}\n[]\n', "line 2: no record"),
        ('{"format": "npukit trace", "version": 1}\n{"call":"x","fd":1,"y":2}\n', "line 2"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(read_trace(io.StringIO(text)))


CREATE = {"size": 1, "handle": 0, "dma_address": 0, "offset": 0}


def ioctl(fields: Any, **more: Any) -> dict[str, Any]:
    sent = {"struct": "drm_rocket_create_bo", "fields": fields, **more}
    return {"call": "ioctl", "fd": 1, "number": 1, "result": 0, "sent": sent}


def memory(**parts: Any) -> dict[str, Any]:
    whole = {"type": "c_uint", "address": 1, "count": 1, "content": [1], **parts}
    return ioctl(CREATE, memory={"x": whole})


MMAP = {"call": "mmap", "fd": 1, "result": 0}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"call": "close", "fd": 1, "result": None}, "result is no number"),
        ({"call": "close", "fd": True, "result": 0}, "fd is no number"),
        ({"call": "close", "fd": 1 << 64, "result": 0}, "fd is no number"),
        ({"call": "close", "fd": 1, "result": 0, "driver": 5}, "driver is no text"),
        ({"call": "close", "fd": 1, "result": 0, "errno": "E\n"}, "errno cannot be printed"),
        ({**MMAP, "arguments": {"length": 1}}, "offset of mmap is no number"),
        ({"call": "open", "fd": -1, "result": 3, "arguments": {"path": 1}}, "path is no text"),
        ({"call": "poll", "fd": -1, "result": 3, "arguments": {"fds": [[1]]}}, "fds: "),
        (ioctl({"size": 1}), "not the fields of drm_rocket_create_bo"),
        (ioctl({**CREATE, "size": 1.5}), "not the fields of drm_rocket_create_bo"),
        (ioctl([]), "fields is no dict"),
        (ioctl(CREATE, data=[[1, 2, 3]]), "digest is no text"),
        (memory(content=[1, "x"]), "an element of x is no number"),
        (memory(content="x"), "content of x is no bytes"),
        (memory(count=None), "count is no number"),
        (memory(type="regcmd", content=["x"]), "invalid literal"),
        (memory(content=[{"struct": "drm_rocket_job", "fields": {}}]), "not the fields of drm_r"),
    ],
)
def test_a_record_that_says_what_records_do_not_is_refused(
    record: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"line 2: .*{problem}"):
        list(read_trace(trace_file(json.dumps(record) + "\n")))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: no record"):
        list(read_trace(trace_file('{"call":' + "[" * 100_000 + "\n")))


def test_no_record_of_a_request_is_refused() -> None:
    """Whatever its structure holds, and what it leads to."""
    octets = bytes(range(1, 256)) * 100
    lines = []
    for _module, request in all_requests():
        if request.struct is not None:
            sent = Follower(lambda _, size: octets[:size].ljust(size), 1 << 12).sent(
                request.struct, octets
            )
            lines.append(Record("ioctl", 1, 2, 3, 4, 5, "", sent=sent).to_json() + "\n")
    assert len(lines) > 100
    assert len(list(read_trace(trace_file(*lines)))) == len(lines)


def test_structures_of_every_version_are_taken() -> None:
    """What a trace of an older driver has."""
    for kind in (rknpu.rknpu_mem_create, rknpu.variant("0.8").rknpu_mem_create):
        sent = Block("rknpu_mem_create", kind().asdict())
        record = Record("ioctl", 1, 2, 3, 4, 5, "rknpu", sent=sent)
        assert list(read_trace(trace_file(record.to_json() + "\n"))) == [record]
