# SPDX-License-Identifier: MIT
"""``npukit smoke``: does the whole path work here?"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from typing import TextIO

import click
from rich.console import Console
from rich.table import Table

from npukit.sim import NPUS
from npukit.smoke import Step, run


@click.command()
@click.option(
    "--device",
    metavar="PATH|sim:NAME",
    help=f"Use this device; simulated ones are {', '.join(NPUS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--trace", "trace_to", type=click.File("w"), help="Record all calls to this file.")
@click.option("--data", is_flag=True, help="With --trace: record what buffers hold, too.")
def smoke(device: str | None, as_json: bool, trace_to: TextIO | None, data: bool) -> None:
    """Open an NPU, or a simulated one, use it in every way, and check each result.

    Exit status 0 when all held.
    """
    if data and trace_to is None:
        raise click.UsageError("--data is for --trace")
    with contextlib.ExitStack() as stack:
        watch = None
        if trace_to is not None:
            from npukit.trace.contents import Contents
            from npukit.trace.recorder import Recorder, to_file

            contents = Contents() if data else None
            recorder = Recorder(to_file(trace_to), contents=contents)
            watch = stack.enter_context(recorder).kernel
        try:
            results = list(run(device, watch))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--device") from error
    lines = [result for result in results if isinstance(result, str)]
    steps = [result for result in results if isinstance(result, Step)]
    passed = all(step.passed for step in steps)
    if as_json:
        rows = [dataclasses.asdict(step) for step in steps]
        click.echo(json.dumps({"device": lines[0], "passed": passed, "steps": rows}, indent=2))
    else:
        click.echo("\n".join(lines))
        table = Table("step", "", "ms", "seen")
        for step in steps:
            mark = "[green]ok[/]" if step.passed else "[red]FAILED[/]"
            table.add_row(step.name, mark, f"{step.seconds * 1000:.1f}", step.detail)
        Console().print(table)
    sys.exit(not passed)
