# SPDX-License-Identifier: MIT
"""The chrome format keeps to the Trace Event Format (the document of that name) as Perfetto's
importer reads it: which fields each phase needs, slices that nest, pairs that match."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from npukit.trace.format import to_chrome
from npukit.trace.record import Block, Memory, Record

Trace = Callable[[str], tuple[Record, ...]]
METADATA = {"process_name", "process_labels", "process_sort_index", "thread_name"}


def check(text: str) -> None:
    """AssertionError for what is no trace of this format."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    trace = json.loads(text, parse_constant=refuse)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    open_: dict[tuple[Any, ...], dict[str, Any]] = {}
    arrows: dict[int, dict[str, Any]] = {}
    where: list[tuple[int, int, float]] = []
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert phase == "C" or type(event["tid"]) is int
        assert isinstance(event.get("args", {}), dict)
        assert isinstance(event.get("cat", ""), str)
        if phase == "M":
            assert event["name"] in METADATA
            assert isinstance(event["args"]["name"], str)
            continue
        # Microseconds; as a double they still tell nanoseconds apart.
        assert isinstance(event["ts"], int | float)
        assert math.isfinite(event["ts"])
        assert 0 <= event["ts"] < 2**53 / 1000
        if phase == "X":
            assert isinstance(event["dur"], int | float)
            assert math.isfinite(event["dur"])
            assert event["dur"] >= 0
            row = slices.setdefault((event["pid"], event["tid"]), [])
            row.append((event["ts"], event["ts"] + event["dur"]))
        elif phase == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif phase == "b":
            key = event["cat"], event["pid"], event["id2"]["local"]
            assert key not in open_
            open_[key] = event
        elif phase == "e":
            begun = open_.pop((event["cat"], event["pid"], event["id2"]["local"]))
            assert (begun["name"], begun["pid"]) == (event["name"], event["pid"])
            assert begun["ts"] <= event["ts"]
        elif phase == "s":
            assert event["id"] not in arrows
            arrows[event["id"]] = event
        elif phase == "f":
            assert event["bp"] == "e"
            assert arrows.pop(event["id"])["ts"] <= event["ts"]
        else:
            raise AssertionError(f"phase {phase}")
        if phase in "sf":
            where.append((event["pid"], event["tid"], event["ts"]))
    assert not arrows
    for pid, tid, ts in where:
        inside = (start <= ts < end for start, end in slices[pid, tid])
        assert any(inside), "an arrow outside all slices"
    for row in slices.values():
        ends: list[float] = []
        for start, end in sorted(row, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= start + 1e-2:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-2, "slices of a thread overlap"
            ends.append(end)


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc", "rocket", "amdxdna", "fastrpc-cdsp"])
def test_a_trace_of_the_smoke_test_keeps_to_the_format(smoke_trace: Trace, name: str) -> None:
    records = smoke_trace(name)
    text = json.dumps(to_chrome(records))
    check(text)
    events = json.loads(text)["traceEvents"]
    named = {event["pid"] for event in events if event["ph"] == "M"}
    assert named == {record.pid for record in records}
    calls = [event for event in events if event["ph"] == "X"]
    start = json.loads(text)["otherData"]["start_ns"]
    # Perfetto makes nanoseconds of them again.
    assert [(round(e["ts"] * 1000) + start, round(e["dur"] * 1000)) for e in calls] == [
        (record.start_ns, record.duration_ns) for record in records
    ]


WAITS = {"rocket": "DRM_IOCTL_ROCKET_PREP_BO", "amdxdna": "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT"}


@pytest.mark.parametrize("name", WAITS)
def test_an_arrow_leads_from_each_submit_to_its_wait(smoke_trace: Trace, name: str) -> None:
    records = smoke_trace(name)
    events = to_chrome(records)["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]

    def call(at: dict[str, Any]) -> str:
        return str(
            next(
                event["name"]
                for event in calls
                if (event["pid"], event["tid"]) == (at["pid"], at["tid"])
                and event["ts"] <= at["ts"] < event["ts"] + event["dur"]
            )
        )

    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    begins = [event for event in events if event["ph"] == "s"]
    submits = [event for event in calls if event["name"].endswith(("_SUBMIT", "_EXEC_CMD"))]
    assert len(begins) == len(submits)
    assert [call(event) for event in begins] == [event["name"] for event in submits]
    assert {call(ends[event["id"]]) for event in begins} == {WAITS[name]}


def test_nanoseconds_are_kept_on_a_machine_that_is_up_for_years() -> None:
    """Perfetto drops slices that overlap."""
    years = 10**17
    records = [Record("close", years + 3 * n, 3, 5, 5, n, "rocket") for n in range(1000)]
    text = json.dumps(to_chrome(records))
    check(text)
    calls = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert [round(event["ts"] * 1000) for event in calls] == list(range(0, 3000, 3))


def test_buffers_are_counted_by_process_and_unknown_requests_by_number() -> None:
    def create(pid: int, start: int, size: int) -> Record:
        fields = {"size": size, "handle": 1, "dma_address": 0, "offset": 0}
        block = Block("drm_rocket_create_bo", fields)
        name = "DRM_IOCTL_ROCKET_CREATE_BO"
        return Record("ioctl", start, 1, pid, pid, 3, "rocket", {}, 1, name, block)

    records = [
        create(5, 1000, 4096), create(6, 2000, 8192), Record("close", 3000, 1, 5, 5, 3, "rocket"),
        Record("ioctl", 4000, 1, 5, 5, 4, "", {"arg": 7}, 0xC0107A55, result=-1, errno="ENOTTY"),
    ]  # fmt: skip
    trace = to_chrome(records)
    check(json.dumps(trace))
    assert [
        (event["ts"], event["pid"], event["args"]["bytes"])
        for event in trace["traceEvents"]
        if event["ph"] == "C"
    ] == [(0, 5, 4096), (1, 6, 8192), (2, 5, 0)]
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"][3] == "0xc0107a55"


def odd() -> list[Record]:
    """A job whose end nobody awaits, an error, a call that is known by number only, a fork; on a
    machine that is up for months."""
    job = Block("drm_rocket_job", {}, {"out_bo_handles": Memory("c_uint", 1, 1, [1])})
    submit = Block("drm_rocket_submit", {}, {"jobs": Memory("drm_rocket_job", 1, 1, [job])})
    return [
        Record("open", 10**16, 5, 1, 1, -1, "rocket", {"path": "/x", "flags": 2}, result=3),
        Record(
            "ioctl", 10**16 + 10, 5, 1, 2, 3, "rocket", {}, 1, "DRM_IOCTL_ROCKET_SUBMIT", submit
        ),
        Record("ioctl", 10**16 + 20, 5, 1, 1, 3, "", {"arg": 7}, 5, result=-1, errno="ENOTTY"),
        Record("dup", 10**16 + 30, 0, 9, 9, 3, "rocket", {"pid": 1}, result=3),
        Record("close", 10**16 + 40, 0, 9, 9, 3, "rocket"),
    ]


def test_odd_calls_keep_to_it_too() -> None:
    check(json.dumps(to_chrome(odd())))
    check(json.dumps(to_chrome([])))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ph": "Z"}, {"name": ""}, {"pid": "1"}, {"tid": None}, {"ts": None}, {"dur": -1},
        {"ts": math.nan},
    ],
)  # fmt: skip
def test_what_is_none_is_refused(smoke_trace: Trace, wrong: dict[str, Any]) -> None:
    trace = to_chrome(smoke_trace("rocket"))
    event = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    event.update(wrong)
    with pytest.raises(AssertionError):
        check(json.dumps(trace))


def test_slices_that_overlap_are_refused(smoke_trace: Trace) -> None:
    trace = to_chrome(smoke_trace("rocket"))
    first, second = [event for event in trace["traceEvents"] if event["ph"] == "X"][5:7]
    first["dur"] = second["ts"] + second["dur"] / 2 - first["ts"]
    with pytest.raises(AssertionError, match="overlap"):
        check(json.dumps(trace))
