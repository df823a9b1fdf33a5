# SPDX-License-Identifier: MIT
import json
from pathlib import Path

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
