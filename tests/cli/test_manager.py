# SPDX-License-Identifier: MIT
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import SHARED, needs_shared

from npukit.cli import main


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["manager", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@needs_shared
def test_the_golden_scenarios_agree() -> None:
    path = SHARED / "data" / "manager" / "scenarios.json"
    count = len(json.loads(path.read_text())["scenarios"])
    assert run("replay", str(path)) == f"{count} of {count} scenarios agree\n"


def test_a_difference_is_shown_and_fails(tmp_path: Path) -> None:
    scenario = {
        "name": "one client",
        "steps": [{"event": "req", "args": ["A", 1, "S"], "callbacks": ["A.never(1)"]}],
        "end": [],
    }
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps({"scenarios": [scenario]}))
    text = run("replay", str(path), code=1)
    assert "one client: step 1 req(A, 1, S): expected A.never(1); got A.can_load(1," in text
    assert text.endswith("0 of 1 scenarios agree\n")
    path.write_text('{"scenarios": [{"name": 1}]}')
    assert "Error" in run("replay", str(path), code=1)


def test_a_simulation_is_summed_up_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    text = run(
        "simulate", "--clients", "5", "--events", "2000", "--seed", "7", "--plot", str(picture)
    )
    assert "2,000 events of 5 clients, seed 7: every promise kept" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert text == run("simulate", "--clients", "5", "--events", "2000", "--seed", "7")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/p.png", "No such file or directory"),
        ("p.xyz", "xyz"),
        ("file/p.png", "Not a directory"),
    ],
)
def test_a_picture_that_cannot_be_written(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    text = run("simulate", "--events", "10", "--plot", path, code=1)
    assert path in text
    assert why in text


@pytest.mark.parametrize(
    "step",
    [
        {"event": "no such", "args": [], "callbacks": []},
        {"event": "req", "args": ["A"], "callbacks": []},
        {"event": "req", "args": ["A", 1, "huge"], "callbacks": []},
    ],
)
def test_a_scenario_that_cannot_be_played(tmp_path: Path, step: dict[str, Any]) -> None:
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps({"scenarios": [{"name": "bad", "steps": [step], "end": []}]}))
    assert f"Error: {path}: bad: " in run("replay", str(path), code=1)


def test_a_reader_that_has_gone_is_no_error_message() -> None:
    reader, ours = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "npukit", "manager", "simulate", "--events", "10"],
            stdout=ours,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
    assert (done.returncode, done.stderr) == (1, "")
