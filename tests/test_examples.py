# SPDX-License-Identifier: MIT
"""What the documentation shows runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT


def run(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path) -> None:
    assert run(str(path))


def test_the_example_scenarios_agree() -> None:
    path = "examples/manager_scenarios.json"
    assert run("-m", "npukit", "manager", "replay", path) == "2 of 2 scenarios agree\n"


def python_blocks() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        pytest.param(block, id=f"{page.name}-{index}")
        for page in pages
        for index, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        )
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_python_in_the_documentation_runs(block: str) -> None:
    run("-c", block)
