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
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    open_: dict[tuple[str, Any], dict[str, Any]] = {}
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
        assert 0 <= event["ts"] < 1e15
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
            key = event["cat"], event["id"]
            assert key not in open_
            open_[key] = event
        elif phase == "e":
            begun = open_.pop((event["cat"], event["id"]))
            assert (begun["name"], begun["pid"]) == (event["name"], event["pid"])
            assert begun["ts"] <= event["ts"]
        else:
            raise AssertionError(f"phase {phase}")
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
