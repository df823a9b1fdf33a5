# SPDX-License-Identifier: MIT
"""``npukit doctor``: which NPUs are here, who may use them, and what is in the way."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from npukit.verify.doctor import Diagnosis, Npu, Problem, diagnose


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--root", type=Path, default=Path("/"), help="Look at the system under this folder instead."
)
def doctor(as_json: bool, root: Path) -> None:
    """Say which NPUs this machine has, whether you can use them, and the fix where you cannot.

    Exit status 1 when there is an NPU that you cannot use yet.
    """
    diagnosis = diagnose(root)
    if as_json:
        click.echo(json.dumps(asdict(diagnosis), indent=2))
    else:
        _print(diagnosis)
    sys.exit(diagnosis.blocked)


def _print(diagnosis: Diagnosis) -> None:
    # Lines are not wrapped: the fixes are commands to copy.
    console = Console(soft_wrap=True)
    console.print(Text(", ".join(filter(None, (diagnosis.model, diagnosis.kernel)))))
    if not diagnosis.npus:
        from npukit.sim import NPUS

        names = ", ".join(f"sim:{name}" for name in NPUS)
        console.print(f"\nno NPU found; simulated ones are {names}")
    for npu in diagnosis.npus:
        _print_npu(console, npu)
    console.print()
    for found in diagnosis.findings:
        console.print(Text(f"{found.name:14} {found.value}"))
        if found.problem:
            _print_problem(console, found.problem)


def _print_npu(console: Console, npu: Npu) -> None:
    where = ", ".join((*npu.places, *npu.nodes)) or "no device"
    versions = "".join(f", {name} {text}" for name, text in npu.versions.items())
    console.print(Text(f"\n{npu.title}: {where}{versions}", "bold"))
    for problem in npu.problems:
        _print_problem(console, problem)
    if not npu.problems:
        drives = "npukit drives it" if npu.drivable else "npukit cannot drive it yet"
        console.print(Text(f"    ready: {drives}", "green"))


def _print_problem(console: Console, problem: Problem) -> None:
    console.print(Text(f"    {problem.what}", "red"))
    if problem.fix:
        console.print(Text(f"    fix: {problem.fix}", "yellow"))
