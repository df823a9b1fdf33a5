# SPDX-License-Identifier: MIT
"""What the engine does beyond the golden scenarios; each case is a scenario of its own."""

import pickle

import pytest

from npukit.manager import (
    BufferPriority,
    Callback,
    CallbackKind,
    Code,
    EndReason,
    Engine,
    EngineError,
    Health,
    Importance,
    ModelPriority,
    ModelSize,
    Status,
    Work,
)
from npukit.manager.engine import REMEMBERED
from npukit.manager.replay import ManualClock, read, replay

GIB = 1 << 30


def can(*answers):
    """("A", 1, "NOW") and the like, as callbacks."""
    names = {"NOW": "CAN_LOAD_NOW", "WAIT": "WAIT_FOR_UNLOAD", "NO": "NOT_PRIORITIZED"}
    return [f"{who}.can_load({number},{names[status]})" for who, number, status in answers]


def done(who, number, status="COMPLETE"):
    return f"{who}.complete({number},{status})"


def leave(who, number):
    return f"{who}.request_unload({number})"


def budget(limit, weights=None):
    return "policy", ["budget", {"max": limit, "weights": weights}], []


def load(who, number, size="S", *more):
    """A request that is granted at once and loaded."""
    return [
        ("req", [who, number, size, *more], can((who, number, "NOW"))),
        ("loaded", [who, number], []),
    ]


CASES = {
    # ---- sizes and budgets
    "exact bytes against one domain": [
        budget({"dram": 10 * GIB}),
        ("req", ["A", 1, 6 * GIB], can(("A", 1, "NOW"))),
        ("req", ["A", 2, 4 * GIB + 1], can(("A", 2, "NO"))),
        ("req", ["A", 3, 4 * GIB], can(("A", 3, "NOW"))),
    ],
    "buckets take their upper bound of an exact budget": [
        budget({"dram": 4 * GIB}),
        ("req", ["A", 1, "M"], can(("A", 1, "NOW"))),
        ("req", ["A", 2, 2 * GIB], can(("A", 2, "NOW"))),
        ("req", ["A", 3, "S"], can(("A", 3, "NO"))),
    ],
    "bytes against a budget of buckets": [
        budget(4),
        ("req", ["A", 1, GIB - 1], can(("A", 1, "NOW"))),
        ("req", ["A", 2, 2 * GIB], can(("A", 2, "NOW"))),
        ("req", ["A", 3, {"dram": GIB, "sram": GIB}], can(("A", 3, "NO"))),
        ("req", ["A", 4, GIB - 1], can(("A", 4, "NOW"))),
    ],
    "the default budget is the weight of the large bucket": [
        budget(None, {"L": 6}),
        ("req", ["A", 1, "L"], can(("A", 1, "NOW"))),
        ("req", ["A", 2, "S"], can(("A", 2, "NO"))),
    ],
    "parameters return to their defaults": [
        budget(8, {"S": 8}),
        budget(None),
        ("req", ["A", 1, "S"], can(("A", 1, "NOW"))),
        ("req", ["A", 2, "S"], can(("A", 2, "NOW"))),
    ],
    "two memory domains": [
        budget({"domain0": 4, "domain1": 4}),
        ("req", ["A", 1, {"domain0": 3}], can(("A", 1, "NOW"))),
        ("req", ["B", 1, {"domain0": 3}], can(("B", 1, "NO"))),
        ("req", ["B", 2, {"domain1": 3}], can(("B", 2, "NOW"))),
    ],
    "hardware contexts are a dimension": [
        budget({"dram": 100, "contexts": 2}),
        *load("A", 1, 1),
        *load("A", 2, 1),
        ("prio", ["B", 100], []),
        ("req", ["B", 1, 1], [leave("A", 2), *can(("B", 1, "WAIT"))]),
        ("unloaded", ["A", 2], [done("A", 2), *can(("B", 1, "NOW"))]),
    ],
    "models can be counted beside their bytes": [
        budget({"models": 2, "dram": 10}),
        ("req", ["A", 1, 1], can(("A", 1, "NOW"))),
        ("req", ["A", 2, {"dram": 1}], can(("A", 2, "NOW"))),
        ("req", ["A", 3, 1], can(("A", 3, "NO"))),
    ],
    "graphs are counted per process": [
        budget({"graphs_per_process": 1}),
        ("req", ["A", 1, 1], can(("A", 1, "NOW"))),
        ("req", ["A", 2, 1], can(("A", 2, "NO"))),
        ("req", ["A#2", 1, 1], can(("A#2", 1, "NOW"))),
        ("die", ["A"], []),
        ("req", ["A", 3, 1], can(("A", 3, "NOW"))),
    ],
    "one who waits in one domain does not hold up another": [
        budget({"domain0": 4, "domain1": 4}),
        *load("A", 1, {"domain0": 4}),
        ("prio", ["B", 100], []),
        ("prio", ["C", 200], []),
        ("req", ["B", 1, {"domain0": 4}], [leave("A", 1), *can(("B", 1, "WAIT"))]),
        ("req", ["C", 1, {"domain1": 1}], can(("C", 1, "NOW"))),
    ],
    "a cap under memory pressure drains, and is lifted": [
        budget(4),
        *load("A", 1, "M"),
        *load("A", 2, "M"),
        ("cap", [2], [leave("A", 2)]),
        ("req", ["B", 1, "S"], can(("B", 1, "NO"))),
        ("unloaded", ["A", 2], [done("A", 2)]),
        ("cap", [None], can(("B", 1, "NOW"))),
    ],
    "a cap of nothing asks everybody to leave": [
        budget(4),
        *load("A", 1),
        ("cap", [0], [leave("A", 1)]),
    ],
    "status quo has nothing to cap": [
        ("cap", [0], []),
        ("req", ["A", 1, "L"], can(("A", 1, "NOW"))),
    ],
    # ---- order
    "a smaller one may take what a larger one cannot use": [
        budget(4),
        *load("A", 1, "M"),
        ("req", ["B", 1, "L"], can(("B", 1, "NO"))),
        ("req", ["B", 2, "M"], can(("B", 2, "NOW"))),
    ],
    "background models of a principal leave first": [
        budget(4),
        *load("A", 1, "S", "B"),
        *load("A", 2, "S", "N"),
        *load("A", 3, "S", "B"),
        *load("A", 4, "S", "N"),
        ("prio", ["B", 100], []),
        ("req", ["B", 1, "M"], [leave("A", 3), leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    "among equals the older principal goes first, whatever its model's priority": [
        budget(1),
        *load("A", 1),
        ("req", ["B", 1, "S", "B"], can(("B", 1, "NO"))),
        ("req", ["C", 1, "S"], can(("C", 1, "NO"))),
        ("req", ["B", 2, "S"], can(("B", 2, "NO"))),
        ("unloaded", ["A", 1], [done("A", 1), *can(("B", 2, "NOW"))]),
    ],
    # What comes free piece by piece is kept for the one who goes first: D would fit at once, and
    # an endless row of such could keep C waiting for ever.
    "a small one does not overtake a large one that waits": [
        budget(8),
        ("prio", ["A", 400], []),
        ("prio", ["B", 400], []),
        ("prio", ["C", 100], []),
        ("prio", ["D", 200], []),
        *load("A", 1, "L"),
        *load("B", 1, "M"),
        ("req", ["C", 1, "L"], [leave("B", 1), *can(("C", 1, "WAIT"))]),
        ("req", ["D", 1, "S"], [leave("A", 1), *can(("D", 1, "WAIT"))]),
        ("unloaded", ["B", 1], [done("B", 1), *can(("C", 1, "NOW"))]),
        ("unloaded", ["A", 1], [done("A", 1), *can(("D", 1, "NOW"))]),
    ],
    "two processes of one principal are apart: ids, death and callbacks": [
        budget(2),
        *load("A", 1),
        *load("A#2", 1),
        ("die", ["A#2"], []),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("unloaded", ["A#2", 1], ["A#2.error(UNKNOWN_REQUEST)"]),
    ],
    "a principal's turn is that of all its processes": [
        ("policy", ["turn_taking"], []),
        *load("A#1", 1),
        ("req", ["B", 1], can(("B", 1, "NO"))),
        ("work_end", ["A", "COMPLETED"], [leave("A#1", 1)]),
        ("req", ["A#2", 1], can(("A#2", 1, "NO"), ("B", 1, "WAIT"))[::-1]),
    ],
    "a turn does not pass to the less important": [
        ("policy", ["turn_taking"], []),
        ("prio", ["A", 200], []),
        ("prio", ["B", 201], []),
        *load("A", 1),
        ("req", ["B", 1], can(("B", 1, "NO"))),
        ("work_end", ["A", "COMPLETED"], []),
    ],
    "only the one who has worked is asked when the turn passes": [
        budget({"dram": 7}),
        *load("A", 1, 1),
        *load("A", 2, 2),
        *load("B", 1, 1),
        *load("C", 1, 3),
        ("req", ["B", 2, 4], can(("B", 2, "NO"))),
        ("work_end", ["A", "COMPLETED"], [leave("A", 2)]),
        ("unloaded", ["A", 2], [done("A", 2), leave("C", 1), *can(("B", 2, "WAIT"))]),
    ],
    # ---- gangs
    "a gang is all or none": [
        budget(4),
        *load("A", 1, "M"),
        ("gang", ["B", [[1, "M"], [2, "S"]]], can(("B", 1, "NO"), ("B", 2, "NO"))),
        ("req", ["C", 1, "M"], can(("C", 1, "NOW"))),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("cancel", ["C", 1], [done("C", 1, "CANCELLED"), *can(("B", 1, "NOW"), ("B", 2, "NOW"))]),
    ],
    "a gang is displaced as one, each member as it stands": [
        budget(4),
        ("gang", ["A", [[1, "S"], [2, "S"], [3, "S"]]], can(*(("A", n, "NOW") for n in (1, 2, 3)))),
        ("loaded", ["A", 1], []),
        ("loaded", ["A", 3], []),
        ("prio", ["B", 100], []),
        (
            "req",
            ["B", 1, "M"],
            [leave("A", 3), leave("A", 1), done("A", 2, "CANCELLED"), *can(("B", 1, "NOW"))],
        ),
    ],
    "a gang that lost a member is smaller": [
        budget(4),
        *load("A", 1, "M"),
        ("gang", ["B", [[1, "M"], [2, "S"]]], can(("B", 1, "NO"), ("B", 2, "NO"))),
        ("cancel", ["B", 2], [done("B", 2, "CANCELLED"), *can(("B", 1, "NOW"))]),
    ],
    "a gang with an id twice is refused whole": [
        ("gang", ["A", [[1, "S"], [1, "S"]]], ["A.error(DUPLICATE_REQUEST)"]),
        ("gang", ["A", [[1, "S"], [2, 0]]], ["A.error(INVALID_ARGUMENT)"]),
        ("gang", ["A", []], ["A.error(INVALID_ARGUMENT)"]),
        ("req", ["A", 1], can(("A", 1, "NOW"))),
    ],
    # ---- shared and idle copies
    "one copy is charged once": [
        budget(4),
        *load("A", 1, "L", "N", "llm"),
        ("req", ["B", 1, "L", "N", "llm"], can(("B", 1, "NOW"))),
        ("req", ["C", 1, "S"], can(("C", 1, "NO"))),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("req", ["C", 2, "S"], can(("C", 2, "NO"))),
    ],
    "a copy has the rank of its best holder": [
        budget(4),
        ("prio", ["A", 400], []),
        ("prio", ["B", 100], []),
        ("prio", ["C", 200], []),
        *load("A", 1, "L", "N", "llm"),
        *load("B", 1, "L", "N", "llm"),
        ("req", ["C", 1, "L"], can(("C", 1, "NO"))),
        ("die", ["B"], [leave("A", 1), *can(("C", 1, "WAIT"))]),
    ],
    "a copy has one size": [
        budget(4),
        *load("A", 1, "S", "N", "llm"),
        ("req", ["B", 1, "M", "N", "llm"], ["B.error(INVALID_ARGUMENT)"]),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("req", ["B", 1, "M", "N", "llm"], ["B.error(INVALID_ARGUMENT)"]),
        ("cap", [0], ["manager.evict(llm)"]),
        ("cap", [None], []),
        ("gang", ["B", [[1, "S", "N", "x"], [2, "M", "N", "x"]]], ["B.error(INVALID_ARGUMENT)"]),
        ("req", ["B", 1, "M", "N", "llm"], can(("B", 1, "NOW"))),
    ],
    "an idle copy stays until its room is needed, the longest idle first": [
        budget(4),
        *load("A", 1, "S", "N", "x"),
        *load("A", 2, "S", "N", "y"),
        *load("A", 3, "S", "N", "z"),
        ("unloaded", ["A", 2], [done("A", 2)]),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("unloaded", ["A", 3], [done("A", 3)]),
        ("req", ["B", 1, "M"], ["manager.evict(y)", *can(("B", 1, "NOW"))]),
        ("req", ["B", 2, "S", "N", "x"], can(("B", 2, "NOW"))),
        ("cap", [3], ["manager.evict(z)"]),
        ("unloaded", ["B", 2], [done("B", 2)]),  # it was in memory though B never said loaded
        ("policy", ["status_quo"], ["manager.evict(x)"]),
    ],
    "an idle copy stays when what is short is nothing that it takes": [
        budget({"dram": 10, "contexts": 2}),
        *load("A", 1, 2, "N", "x"),
        ("unloaded", ["A", 1], [done("A", 1)]),
        *load("A", 2, 1),
        *load("A", 3, 1),
        ("cap", [{"dram": 10, "contexts": 1}], [leave("A", 3)]),
        ("unloaded", ["A", 3], [done("A", 3)]),
        ("cap", [{"dram": 2, "contexts": 1}], ["manager.evict(x)"]),
    ],
    "a copy that nobody had loaded is not kept": [
        budget(4),
        ("req", ["A", 1, "L", "N", "x"], can(("A", 1, "NOW"))),
        ("die", ["A"], []),
        ("cap", [0], []),
    ],
    "a revoked copy is not kept": [
        budget(4),
        ("opt", ["unload_timeout", 1], []),
        *load("A", 1, "L", "N", "x"),
        ("cap", [0], [leave("A", 1)]),
        ("advance", [1], [done("A", 1, "REVOKED")]),
        ("cap", [None], []),
        ("req", ["A", 2, "L"], can(("A", 2, "NOW"))),
    ],
    # ---- deadlines
    "who does not unload in time is revoked": [
        budget(4),
        ("opt", ["unload_timeout", 5], []),
        ("prio", ["B", 100], []),
        *load("A", 1, "L"),
        ("req", ["B", 1, "L"], [leave("A", 1), *can(("B", 1, "WAIT"))]),
        ("advance", [4.5], []),
        ("advance", [0.5], [done("A", 1, "REVOKED"), *can(("B", 1, "NOW"))]),
        ("unloaded", ["A", 1], ["A.error(UNKNOWN_REQUEST)"]),
    ],
    "who does not load in time is cancelled": [
        budget(4),
        ("opt", ["load_timeout", 5], []),
        ("req", ["A", 1, "L"], can(("A", 1, "NOW"))),
        ("req", ["B", 1, "L"], can(("B", 1, "NO"))),
        ("advance", [5], [done("A", 1, "CANCELLED"), *can(("B", 1, "NOW"))]),
        ("loaded", ["B", 1], []),
        ("advance", [50], []),
    ],
    "a missed deadline is a turn: another of the same client does not go first": [
        budget(1),
        ("opt", ["load_timeout", 5], []),
        ("req", ["A", 1], can(("A", 1, "NOW"))),
        ("req", ["A", 2], can(("A", 2, "NO"))),
        ("req", ["B", 1], can(("B", 1, "NO"))),
        ("advance", [5], [done("A", 1, "CANCELLED"), *can(("B", 1, "NOW"))]),
    ],
    "a deadline set at run time counts from when the wait began": [
        budget(4),
        ("prio", ["B", 100], []),
        *load("A", 1, "L"),
        ("req", ["B", 1, "L"], [leave("A", 1), *can(("B", 1, "WAIT"))]),
        ("advance", [7], []),
        ("opt", ["unload_timeout", 10], []),
        ("advance", [3], [done("A", 1, "REVOKED"), *can(("B", 1, "NOW"))]),
    ],
    "a deadline that is turned off does not come": [
        budget(4),
        ("opt", ["load_timeout", 5], []),
        ("req", ["A", 1, "L"], can(("A", 1, "NOW"))),
        ("opt", ["load_timeout", 0], []),
        ("advance", [50], []),
    ],
    "options": [
        ("opt", ["unload_timeout", -1], ["caller.error(INVALID_ARGUMENT)"]),
        ("opt", ["unload_timeout", float("inf")], ["caller.error(INVALID_ARGUMENT)"]),
        ("opt", ["colour", 1], ["caller.error(INVALID_ARGUMENT)"]),
    ],
    # ---- minimal residency
    "a young model is not displaced by an equal, and then it is": [
        ("policy", ["turn_taking"], []),
        ("opt", ["min_res", 5], []),
        *load("A", 1),
        ("req", ["B", 1], can(("B", 1, "NO"))),
        ("advance", [1], []),
        ("work_end", ["A", "COMPLETED"], []),
        ("advance", [3.5], []),
        ("advance", [0.5], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    "a newcomer that never worked does not displace a young model either": [
        ("policy", ["turn_taking"], []),
        ("opt", ["min_res", 5], []),
        ("work_end", ["A", "COMPLETED"], []),
        *load("A", 1),
        ("req", ["B", 1], can(("B", 1, "NO"))),
        ("advance", [5], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    "a young model gives way to a more important one": [
        ("policy", ["turn_taking"], []),
        ("opt", ["min_res", 5], []),
        *load("A", 1),
        ("prio", ["B", 100], []),
        ("req", ["B", 1], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    "a gang is as young as the youngest that is left of it": [
        budget(2),
        ("opt", ["min_res", 5], []),
        ("work_end", ["A", "COMPLETED"], []),
        ("gang", ["A", [[1, "S"], [2, "S"]]], can(("A", 1, "NOW"), ("A", 2, "NOW"))),
        ("loaded", ["A", 1], []),
        ("advance", [3], []),
        ("loaded", ["A", 2], []),
        ("unloaded", ["A", 2], [done("A", 2)]),
        ("req", ["B", 1, "M"], can(("B", 1, "NO"))),
        ("advance", [2], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    "the other models of a young one's principal are not protected by it": [
        budget(4),
        ("opt", ["min_res", 5], []),
        *load("A", 1, "M"),
        ("advance", [5], []),
        *load("A", 2, "M"),
        ("work_end", ["A", "COMPLETED"], []),
        ("req", ["B", 1, "M"], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
    # ---- health
    "a lost device revokes, cancels and admits nobody": [
        budget(4),
        ("prio", ["B", 100], []),
        *load("A", 1, "L"),
        ("req", ["B", 1, "L"], [leave("A", 1), *can(("B", 1, "WAIT"))]),
        ("req", ["C", 1, "L"], can(("C", 1, "NO"))),
        ("health", ["LOST"], [done("A", 1, "REVOKED"), done("B", 1, "CANCELLED")]),
        ("req", ["B", 2, "S"], can(("B", 2, "NO"))),
        ("work_end", ["B", "COMPLETED"], []),
        ("health", ["LOST"], []),
        ("health", ["OK"], can(("B", 2, "NOW"))),
        ("cancel", ["B", 2], [done("B", 2, "CANCELLED"), *can(("C", 1, "NOW"))]),
    ],
    "idle copies are lost with the device": [
        budget(4),
        *load("A", 1, "S", "N", "x"),
        ("unloaded", ["A", 1], [done("A", 1)]),
        ("health", ["LOST"], ["manager.evict(x)"]),
    ],
    "a quarantined device keeps what it has": [
        budget(4),
        *load("A", 1, "M"),
        ("health", ["QUARANTINED"], []),
        ("prio", ["B", 100], []),
        ("req", ["B", 1, "L"], can(("B", 1, "NO"))),
        ("health", ["OK"], [leave("A", 1), *can(("B", 1, "WAIT"))]),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    steps = [
        {"event": event, "args": args, "callbacks": callbacks}
        for event, args, callbacks in CASES[name]
    ]
    scenario = read({"scenarios": [{"name": name, "steps": steps, "end": []}]})[0]
    assert [str(d) for d in replay(scenario) if d.event != "end"] == []


# ---- what a scenario does not show ---------------------------------------------------------------


@pytest.fixture
def engine():
    engine = Engine(ManualClock())
    engine.set_policy("budget")
    for who in "AB":
        engine.connect(who, who)
    return engine


def test_every_callback_says_why(engine):
    def why(callbacks):
        return [callback.why for callback in callbacks]

    engine.set_priority("B", Importance(100))
    assert why(engine.can_load_model("A", 1, ModelSize.BETWEEN_1GB_AND_2GB)) == [
        "it fits: with it 2 of 4 weight"
    ]
    assert why(engine.can_load_model("A", 2, ModelSize.GREATER_THAN_2G)) == [
        "it needs 4 weight; what goes before it leaves 2 of 4"
    ]
    engine.notify_model_loaded("A", 1)
    assert why(engine.can_load_model("B", 1, ModelSize.GREATER_THAN_2G)) == [
        "B asked to load 1; it needs 2 weight; what goes before it leaves 0 of 4",
        "it needs 4 weight, of which 2 is free until others unload",
    ]
    assert why(engine.notify_model_unloaded("A", 1)) == [
        "unloaded by the client",
        "it fits: with it 4 of 4 weight",
    ]
    assert why(engine.set_policy("budget", 3)) == [
        "the policy is now budget; it needs 4 weight, more than the whole budget of 3"
    ]
    engine.set_policy("budget", {"dram": 3 * GIB, "contexts": 4})
    assert why(engine.can_load_model("A", 3, 4 * GIB)) == [
        "it needs 4.00 GiB of dram, more than the whole budget of 3.00 GiB"
    ]
    assert why(engine.can_load_model("A", 5, 2 * GIB)) == [
        "it fits: with it 2.00 GiB of 3.00 GiB of dram, 1 of 4 contexts"
    ]
    engine.set_health(Health.LOST, "firmware time-out")
    assert why(engine.can_load_model("A", 4)) == ["the device is LOST"]


def test_info_shows_who_holds_what(engine):
    engine.can_load_model("A", 1, 5, content="llm")
    engine.notify_model_loaded("A", 1)
    engine.can_load_model("B", 7, 5, ModelPriority.BACKGROUND, content="llm")
    engine.work_ended(Work("A"), EndReason.COMPLETED)
    info = engine.info()
    assert info["policy"] == "budget"
    assert info["limits"] == {"weight": 4}
    assert info["charged"] == {"weight": 1}
    assert info["copies"] == {"llm": {"A": 1, "B": 1}}
    assert info["metrics"] == {"warm_hits": 1, "COMPLETED": 1}
    assert [(r["connection"], r["id"], r["state"], r["size"]) for r in info["requests"]] == [
        ("A", 1, "LOADED", 5),
        ("B", 7, "PENDING_LOAD", 5),
    ]
    assert info["requests"][1]["why"] == "it is in memory already"
    engine.notify_model_unloaded("A", 1)
    engine.notify_model_unloaded("B", 7)
    assert engine.info()["warm"] == ["llm"]


def test_refused_calls_change_nothing(engine):
    def refused(code, name, *args):
        before = engine.info()
        with pytest.raises(EngineError) as error:
            getattr(engine, name)(*args)
        assert error.value.code is code
        assert engine.info() == before

    engine.can_load_model("A", 1)
    refused(Code.DUPLICATE_REQUEST, "can_load_model", "A", 1)
    refused(Code.UNKNOWN_REQUEST, "notify_model_loaded", "B", 1)
    refused(Code.UNKNOWN_CONNECTION, "can_load_model", "C", 1)
    refused(Code.UNKNOWN_CONNECTION, "disconnect", "C")
    refused(Code.DUPLICATE_CONNECTION, "connect", "A", "B")
    refused(Code.DUPLICATE_CONNECTION, "connect", "manager", "B")
    refused(Code.INVALID_ARGUMENT, "can_load_model", "A", 2, {})
    refused(Code.INVALID_ARGUMENT, "can_load_model", "A", 2, {"dram": -1})
    refused(Code.INVALID_ARGUMENT, "can_load_model", "A", 2, 1.5)
    refused(Code.INVALID_ARGUMENT, "set_priority", "A", 1001)
    refused(Code.INVALID_ARGUMENT, "set_policy", "turn_taking", 4)
    refused(Code.INVALID_ARGUMENT, "set_policy", "budget", {"dram": 0})
    refused(Code.INVALID_ARGUMENT, "set_policy", "budget", 4, {"XL": 8})
    refused(Code.INVALID_ARGUMENT, "cap_budget", -1)
    engine.set_policy("budget", {"dram": 1, "sram": 1})
    refused(Code.INVALID_ARGUMENT, "cap_budget", 1)
    refused(Code.INVALID_ARGUMENT, "set_option", "min_residency", -1)


def test_the_three_priorities_do_not_mix(engine):
    engine.set_priority("A", 200)  # a plain number is taken for what is asked for
    for wrong in (BufferPriority(200), ModelPriority.NORMAL, True):
        with pytest.raises(TypeError):
            engine.set_priority("A", wrong)
    with pytest.raises(TypeError):
        BufferPriority(Importance(0))
    assert repr(Importance(5)) == "Importance(5)"
    assert str(Importance(5)) == "5"
    assert pickle.loads(pickle.dumps(Importance(5))) == Importance(5)


def test_callbacks_compare_without_their_reason():
    callback = Callback("A", CallbackKind.CAN_LOAD, 1, Status.CAN_LOAD_NOW, "because")
    assert callback == Callback("A", CallbackKind.CAN_LOAD, 1, Status.CAN_LOAD_NOW)
    assert str(callback) == "A.can_load(1,CAN_LOAD_NOW)"


def test_next_deadline_is_where_tick_has_something_to_do():
    clock = ManualClock(100.0)
    engine = Engine(clock, unload_timeout=5, load_timeout=10, min_residency=3)
    engine.set_policy("turn_taking")
    engine.connect("A", "A")
    assert engine.next_deadline() is None
    engine.can_load_model("A", 1)
    assert engine.next_deadline() == 110
    clock.advance(2)
    engine.notify_model_loaded("A", 1)
    assert engine.next_deadline() == 105
    clock.advance(3)
    assert engine.tick() == []
    assert engine.next_deadline() is None
    engine.cap_budget(0)
    assert engine.next_deadline() == 110
    clock.advance(5)
    assert [str(callback) for callback in engine.tick()] == ["A.complete(1,REVOKED)"]
    assert engine.tick() == []


def test_deadlines_that_no_longer_count_are_forgotten():
    engine = Engine(ManualClock(), load_timeout=1000)
    engine.connect("A", "A")
    for number in range(10_000):
        engine.can_load_model("A", number)
        engine.cancel_model_load("A", number)
    assert len(engine._timers) < 200


def test_a_principal_that_reconnects_keeps_its_turn():
    engine = Engine(ManualClock())
    engine.set_policy("turn_taking")
    for who in "AB":
        engine.connect(who, who)
    engine.can_load_model("A", 1)
    engine.notify_model_loaded("A", 1)
    engine.can_load_model("B", 1)
    engine.work_ended(Work("A"), EndReason.COMPLETED)
    engine.disconnect("A")
    engine.connect("A", "A")
    engine.can_load_model("A", 1)
    assert engine.state("B", 1) == "PENDING_LOAD"
    engine.cancel_model_load("B", 1)
    assert [str(c) for c in engine.can_load_model("B", 2)] == [
        "A.complete(1,CANCELLED)",
        "B.can_load(2,CAN_LOAD_NOW)",
    ]


def test_principals_that_left_are_not_kept_for_ever():
    engine = Engine(ManualClock())
    for number in range(REMEMBERED + 100):
        engine.connect("C", f"principal{number}")
        engine.disconnect("C")
    assert len(engine._principals) == REMEMBERED


def test_importances_are_kept_whoever_comes_and_goes():
    engine = Engine(ManualClock())
    engine.set_policy("turn_taking")
    engine.set_priority("editor", Importance(100))
    engine.set_priority("gone", Importance(100))
    engine.connect("E", "was here")
    engine.set_priority("was here", Importance(200))
    engine.disconnect("E")
    for number in range(REMEMBERED + 1):
        engine.work_requested(Work(f"principal{number}"))
    said = []
    for who in ("stranger", "was here", "editor"):
        engine.connect(who, who)
        said += map(str, engine.can_load_model(who, 1))
    assert said == [
        "stranger.can_load(1,CAN_LOAD_NOW)",
        "stranger.complete(1,CANCELLED)",
        "was here.can_load(1,CAN_LOAD_NOW)",
        "was here.complete(1,CANCELLED)",
        "editor.can_load(1,CAN_LOAD_NOW)",
    ]
    assert [r["importance"] for r in engine.info()["requests"]] == [100]
    # With an importance that is taken back goes the memory of its principal, in time.
    for who in ("editor", "gone", "was here"):
        engine.set_priority(who, Importance(1000))
        assert (who in engine._departed) == (who == "gone")
    for connection in ("stranger", "was here", "editor"):
        engine.disconnect(connection)
    assert len(engine._principals) == REMEMBERED


def test_work_for_another_uses_the_turn_of_that_other():
    engine = Engine(ManualClock())
    engine.set_policy("turn_taking")
    for who in "AB":
        engine.connect(who, who)
    engine.can_load_model("A", 1)
    engine.notify_model_loaded("A", 1)
    engine.can_load_model("B", 1)
    assert engine.work_ended(Work("A", original="C"), EndReason.COMPLETED) == []
    assert [str(c) for c in engine.work_ended(Work("C", original="A"), EndReason.COMPLETED)] == [
        "A.request_unload(1)"
    ]
