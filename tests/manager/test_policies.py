# SPDX-License-Identifier: MIT
import os
import subprocess
import sys

import pytest
from support import ROOT

from npukit.manager import Code, Engine, EngineError, ModelSize, Policy, policies
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
