# SPDX-License-Identifier: MIT
"""Each floor of the house imports only the floors below it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "npukit"
FLOORS = {
    "_fast": 0,
    "ioctl": 1,
    "abi": 2,
    "devices": 3,
    "programs": 4,
    "manager": 5,
    "trace": 6,
    "sim": 6,
    "verify": 6,
    "cli": 7,
}
# Beside the floors: the face and what only it and the command line use.
FACE = {"__init__", "__main__", "smoke", "requests", "digits"}


def imported(path: Path) -> set[str]:
    """Names of the floors (or face modules) that a file imports, also inside functions."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            steps = name.split(".")
            if steps[0] == "npukit":
                found.add(steps[1] if len(steps) > 1 else "__init__")
    return found


FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] in FLOORS
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_floor_imports_only_those_below(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    for name in imported(path) - {own}:
        if name in FLOORS:
            assert FLOORS[name] < FLOORS[own], f"{own} imports {name}"
        else:
            assert own == "cli", f"{own} imports npukit.{name}"


def test_every_module_stands_on_a_floor() -> None:
    names = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()
    }
    assert names <= FLOORS.keys() | FACE | {"data"}


def printed_by(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_import_loads_neither_command_line_nor_simulator_nor_numpy() -> None:
    code = (
        "import sys, npukit; "
        "print([m for m in sys.modules if m.split('.')[0] in ('click', 'rich', 'numpy') "
        "or m.startswith('npukit.')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_real_path_never_loads_the_simulator() -> None:
    code = (
        "import sys, npukit.devices, npukit.programs.rk3588.matmul; "
        "print([m for m in sys.modules if m.startswith('npukit.sim')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_every_file_states_its_licence() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".toml"}
    names = [name for name in listed.stdout.split("\0") if Path(name).suffix in suffixes]
    assert len(names) > 50
    for name in [*names, "Makefile"]:
        path = ROOT / name
        if path.exists():
            assert "SPDX-License-Identifier: MIT" in path.read_text()[:200], name


def test_everything_is_reached_by_attributes() -> None:
    code = (
        "import npukit; "
        "print(npukit.abi.rocket.drm_rocket_submit.__name__, npukit.abi.drm.DRM_CAP_PRIME, "
        "npukit.ioctl.Ioctl.__name__, hasattr(npukit, 'toast'), hasattr(npukit.abi, 'toast'))"
    )
    assert printed_by(code) == "drm_rocket_submit 5 Ioctl False False"
