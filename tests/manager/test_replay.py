# SPDX-License-Identifier: MIT
import json

import pytest
from support import SHARED, needs_shared

from npukit.manager.replay import Step, load, read, replay

SCENARIOS = SHARED / "data" / "manager" / "scenarios.json"


def scenario(*steps, end=()):
    """Steps as (event, arguments, callbacks)."""
    keys = "event", "args", "callbacks"
    data = {"name": "", "steps": [dict(zip(keys, s, strict=True)) for s in steps], "end": end}
    return read({"scenarios": [data]})[0]


@needs_shared
@pytest.mark.parametrize(
    "golden", load(SCENARIOS) if SCENARIOS.exists() else [], ids=lambda golden: golden.name[:3]
)
def test_golden_scenario(golden):
    assert [str(difference) for difference in replay(golden)] == []


@needs_shared
def test_all_golden_scenarios_are_there():
    assert [golden.name[:3] for golden in load(SCENARIOS)] == [f"V{n:02}" for n in range(1, 29)]


def test_differences_are_named():
    wrong = scenario(
        ("req", ["A", 1], ["A.can_load(1,NOT_PRIORITIZED)"]),
        ("loaded", ["A", 2], []),
        end=[["A", 1, "LOADED"]],
    )
    assert [str(difference) for difference in replay(wrong)] == [
        "step 1 req(A, 1): expected A.can_load(1,NOT_PRIORITIZED); got A.can_load(1,CAN_LOAD_NOW)",
        "step 2 loaded(A, 2): expected (none); got A.error(UNKNOWN_REQUEST)",
        "step 2 end: expected A/1 LOADED; got A/1 PENDING_LOAD",
    ]


def test_the_events_beyond_the_golden_ones():
    assert not replay(
        scenario(
            ("policy", ["budget", {"max": {"dram": 8, "contexts": 2}}], []),
            ("opt", ["min_res", 2], []),
            ("opt", ["load_timeout", 3], []),
            (
                "gang",
                ["A", [[1, 2], [2, {"dram": 3}]]],
                ["A.can_load(1,CAN_LOAD_NOW)", "A.can_load(2,CAN_LOAD_NOW)"],
            ),
            ("req", ["B", 1, 1, "B"], ["B.can_load(1,NOT_PRIORITIZED)"]),
            ("work_req", ["A"], []),
            ("work_start", ["A"], []),
            ("loaded", ["A", 1], []),
            ("advance", [4], ["A.complete(2,CANCELLED)", "B.can_load(1,CAN_LOAD_NOW)"]),
            ("cap", [{"dram": 1}], ["A.request_unload(1)"]),
            ("cap", [None], []),
            ("health", ["LOST"], ["A.complete(1,REVOKED)", "B.complete(1,REVOKED)"]),
            ("health", ["OK"], []),
            ("req", ["A#2", 1, 1, "N", "hash"], ["A#2.can_load(1,CAN_LOAD_NOW)"]),
            ("die", ["A#2"], []),
        )
    )


def test_unknown_event():
    with pytest.raises(ValueError, match="no event is called 'dance'"):
        replay(scenario(("dance", [], [])))


@pytest.mark.parametrize("text", ["[]", '{"scenarios": [{"name": "x"}]}', '{"scenarios": [3]}'])
def test_malformed_file(tmp_path, text):
    path = tmp_path / "scenarios.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="no scenario file"):
        load(path)


def test_file_round_trip(tmp_path):
    path = tmp_path / "scenarios.json"
    data = {"name": "n", "steps": [{"event": "die", "args": ["A"], "callbacks": []}], "end": []}
    path.write_text(json.dumps({"scenarios": [data]}))
    assert load(path)[0].steps == (Step("die", ("A",), ()),)
