# SPDX-License-Identifier: MIT
import os
import subprocess
import sys

import pytest
from support import ROOT

from npukit.manager import (
    Code,
    EndReason,
    Engine,
    EngineError,
    ModelSize,
    Policy,
    Work,
    policies,
)
from npukit.manager.replay import ManualClock


class OnePerImportance(Policy):
    """A policy of a user: two models, and the least important first."""

    name = "upside_down"
    limits = {"slots": 2}

    def demand(self, size):
        return {"slots": 1, "not limited": 7}

    def precedence(self, importance, last_completed):
        return -importance, last_completed


def test_a_policy_of_one_s_own():
    engine = Engine(ManualClock(), policies={"upside_down": OnePerImportance, **policies.BUILTIN})
    for who, importance in (("A", 100), ("B", 200), ("C", 300)):
        engine.connect(who, who)
        engine.set_priority(who, importance)
    engine.set_policy("budget")
    said = [str(c) for who in "ABC" for c in engine.can_load_model(who, 1, ModelSize.LESS_THAN_1GB)]
    assert said == [f"{who}.can_load(1,CAN_LOAD_NOW)" for who in "ABC"]
    assert [str(c) for c in engine.set_policy("upside_down")] == ["A.complete(1,CANCELLED)"]
    assert engine.info()["charged"] == {"slots": 2, "not limited": 14}


class Flawed(policies.Budget):
    """A policy with mistakes: it raises for one size and one importance, or answers nonsense."""

    name = "flawed"
    answer = None

    def demand(self, size):
        if size == 13:
            if self.answer is None:
                raise ZeroDivisionError
            return self.answer
        return super().demand(size)

    def precedence(self, importance, last_completed):
        if importance == 7 or last_completed == self.worst:
            raise ZeroDivisionError
        return super().precedence(importance, last_completed)

    worst = None


def flawed(**options):
    """An engine with that policy, and a client "A" that has loaded 1 and 2 of a budget of 4."""
    clock = ManualClock()
    engine = Engine(clock, policies={**policies.BUILTIN, "flawed": Flawed}, **options)
    for who in "AB":
        engine.connect(who, who)
    engine.set_policy("flawed", 4)
    for number in (1, 2):
        engine.can_load_model("A", number, 5)
        engine.notify_model_loaded("A", number)
    return engine


def unchanged(engine, error, call, *arguments):
    """The call raises ``error``, and everything goes on as if it had not been made."""
    before, due = engine.info(), engine.next_deadline()
    with pytest.raises(error):
        call(*arguments)
    assert (engine.info(), engine.next_deadline()) == (before, due)


def goes_on(engine):
    """What is there can be ended, and the whole budget of 4 is free then."""
    engine._policy.worst = None
    for who in "AB":
        engine.disconnect(who)
    assert engine.info()["charged"] == {}
    assert engine.info()["requests"] == []
    engine.connect("A", "A")
    assert [str(c) for n in range(5) for c in engine.can_load_model("A", n, 5)] == [
        *(f"A.can_load({n},CAN_LOAD_NOW)" for n in range(4)),
        "A.can_load(4,NOT_PRIORITIZED)",
    ]


def test_a_gang_of_which_one_member_cannot_be_measured():
    engine = flawed()
    unchanged(engine, ZeroDivisionError, engine.can_load_gang, "A", [(3, 5), (4, 13)])
    goes_on(engine)


@pytest.mark.parametrize("nonsense", [3, "x", {1: 5}, {"weight": -1}, {"weight": "x"}, [("w", 1)]])
def test_what_a_policy_answers_is_checked(nonsense):
    engine = flawed()
    engine._policy.answer = nonsense
    unchanged(engine, EngineError, engine.can_load_gang, "A", [(3, 5), (4, 13)])
    unchanged(engine, EngineError, engine.can_load_model, "A", 3, 13)
    goes_on(engine)


@pytest.mark.parametrize("size", [{1: 5}, {("x",): 1}, {"a": "b"}, {"a": 1 << 63}, 1 << 63])
def test_a_size_of_which_nobody_can_say_what_it_is(size):
    engine = flawed()
    unchanged(engine, EngineError, engine.can_load_gang, "A", [(3, 5), (4, size)])
    unchanged(engine, EngineError, engine.can_load_model, "A", 3, size)
    goes_on(engine)


def test_a_policy_that_cannot_measure_what_is_there_is_not_taken():
    engine = flawed()
    engine.set_policy("budget", 4)
    engine.can_load_model("B", 1, 13)
    unchanged(engine, ZeroDivisionError, engine.set_policy, "flawed", 4)
    assert engine.info()["charged"] == {"weight": 3}
    assert [str(c) for n in (2, 3) for c in engine.can_load_model("B", n, 5)] == [
        "B.can_load(2,CAN_LOAD_NOW)",
        "B.can_load(3,NOT_PRIORITIZED)",
    ]
    engine.cancel_model_load("B", 1)
    engine.set_policy("flawed", 4)
    goes_on(engine)


def test_a_policy_that_cannot_rank_who_is_there_is_not_taken():
    engine = flawed()
    engine.set_policy("budget", 4)
    engine.set_priority("B", 7)
    engine.can_load_model("B", 1, 5)
    unchanged(engine, ZeroDivisionError, engine.set_policy, "flawed", 4)
    engine.set_priority("B", 8)
    engine.set_policy("flawed", 4)
    goes_on(engine)


def test_an_importance_that_cannot_be_ranked():
    engine = flawed()
    unchanged(engine, ZeroDivisionError, engine.set_priority, "A", 7)
    unchanged(engine, ZeroDivisionError, engine.set_priority, "stranger", 7)
    goes_on(engine)


def test_a_turn_that_cannot_be_ranked():
    engine = flawed()
    engine._policy.worst = 1
    unchanged(engine, ZeroDivisionError, engine.work_ended, Work("A"), EndReason.COMPLETED)
    engine._policy.worst = 2
    unchanged(engine, ZeroDivisionError, engine.disconnect, "A")
    goes_on(engine)


def test_deadlines_of_those_who_cannot_be_ranked_are_not_lost():
    engine = flawed(load_timeout=5)
    engine.can_load_model("A", 3, 5)
    engine.can_load_model("B", 1, 5)
    engine._clock.advance(5)
    engine._policy.worst = 2  # the turn of the second whose time is up
    unchanged(engine, ZeroDivisionError, engine.tick)
    engine._policy.worst = None
    assert [str(c) for c in engine.tick()] == ["A.complete(3,CANCELLED)", "B.complete(1,CANCELLED)"]
    goes_on(engine)


@pytest.mark.parametrize("limits", [{1: 5}, {"a": "x"}, {"a": -1}, 5, None])
def test_limits_that_are_none(limits):
    class Limited(Policy):
        name = "limited"

    Limited.limits = limits
    engine = Engine(ManualClock(), policies={"limited": Limited})
    unchanged(engine, EngineError, engine.set_policy, "limited")


def test_built_in_policies_are_found():
    assert set(policies.discover()) >= {"status_quo", "budget", "turn_taking"}


def test_an_entry_point_leads_to_a_policy_class():
    assert policies.as_policy("upside_down", OnePerImportance) is OnePerImportance
    for wrong in (OnePerImportance(), dict, 3):
        with pytest.raises(TypeError, match="upside_down"):
            policies.as_policy("upside_down", wrong)


def test_a_policy_of_an_installed_package(tmp_path):
    (tmp_path / "first.py").write_text(
        "from npukit.manager import Policy\nclass First(Policy):\n    name = 'first'\n"
    )
    metadata = tmp_path / "first-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: first\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[npukit.policies]\nfirst = first:First\n")
    code = "from npukit.manager import discover; print(sorted(discover()))"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "['budget', 'first', 'status_quo', 'turn_taking']"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("budget", (0,)),
        ("budget", (-1,)),
        ("budget", (1.5,)),
        ("budget", ({"dram": 1.5},)),
        ("budget", ({"weight": 3},)),
        ("budget", ({"weight": 3, "contexts": 2},)),
        ("budget", (4, {"S": 0})),
        ("budget", (4, {"huge": 1})),
        ("turn_taking", (1,)),
        ("status_quo", (None, {"S": 1})),
    ],
)
def test_wrong_parameters(name, parameters):
    with pytest.raises(EngineError) as error:
        policies.BUILTIN[name](*parameters)
    assert error.value.code is Code.INVALID_ARGUMENT
