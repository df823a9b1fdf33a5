# SPDX-License-Identifier: MIT
"""``npukit abi``: is the kernel's interface the one that npukit speaks?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npukit.ioctl import NpuError
from npukit.verify import SUBJECTS, Result, Verdict, check, show, snapshot

_COLOURS = {Verdict.AGREED: "green", Verdict.DIFFERS: "red", Verdict.UNCHECKED: "dim"}
_UNUSABLE = 2
"""Exit status when what was asked for is not there; 1 is a difference."""


class _Refused(click.ClickException):
    exit_code = _UNUSABLE


@click.group()
def abi() -> None:
    """Check npukit's structures and requests against kernels, show them, compare versions."""


@abi.command("check")
@click.option("--kernel", type=Path, metavar="PATH", help="A kernel image, or a directory of one.")
@click.option("--headers", type=Path, metavar="DIR", help="A directory of kernel headers.")
@click.option("--ko", type=Path, metavar="FILE", help="One module; --kernel may give its base.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]...")
def check_command(
    kernel: Path | None,
    headers: Path | None,
    ko: Path | None,
    as_json: bool,
    drivers: tuple[str, ...],
) -> None:
    """Ask header, BTF, module table and stored snapshot whether they agree with npukit.

    Without an option: the running kernel and the installed headers. Exit status 1 when one of them
    differs, 2 when a source that was asked for is not there, or can tell nothing of any driver.
    """
    if headers is not None and (kernel is not None or ko is not None):
        raise click.UsageError("--headers goes with neither --kernel nor --ko")
    try:
        results = check(drivers, kernel=kernel, headers=headers, ko=ko)
    except (OSError, ValueError) as error:
        raise _Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps([result.asdict() for result in results], indent=2))
    else:
        _print(results)
    if any(result.verdict is Verdict.DIFFERS for result in results):
        sys.exit(1)
    # The stored snapshot is no part of what was asked for.
    asked = [result for result in results if result.witness != "snapshot"]
    nothing = all(result.verdict is Verdict.UNCHECKED for result in asked)
    sys.exit(_UNUSABLE if nothing and (kernel or headers or ko) else 0)


def _print(results: list[Result]) -> None:
    table = Table("driver", "witness", "verdict", "facts")
    table.add_column("source, or why not", overflow="fold")
    last = ""
    for result in results:
        if last not in ("", result.driver):
            table.add_section()
        table.add_row(
            "" if last == result.driver else result.driver,
            result.witness,
            Text(result.verdict.value, _COLOURS[result.verdict]),
            str(result.facts or ""),
            Text(result.reason or result.source),
        )
        last = result.driver
    console = Console()
    console.print(table)
    for result in results:
        lines = [str(difference) for difference in result.differences]
        lines += result.notes
        if result.verdict is Verdict.AGREED and result.absent:
            lines.append(f"not spoken of: {', '.join(result.absent)}")
        if result.unknown:
            lines.append(f"npukit does not have: {', '.join(result.unknown)}")
        for line in lines:
            console.print(Text(f"{result.driver} ({result.witness}): {line}"))


@abi.command("show")
@click.option("--release", metavar="X.Y", help="As this Linux release has it.")
@click.argument("driver", type=click.Choice(list(SUBJECTS)), metavar="DRIVER")
@click.argument("structure", required=False, metavar="[STRUCT]")
def show_command(release: str | None, driver: str, structure: str | None) -> None:
    """Print the layout of a driver's structures: offsets, sizes, holes, what pointers point to."""
    try:
        version = snapshot.parse_version(release) if release else None
        classes = show.classes(driver, version)
        chosen = [show.named(classes, structure)] if structure else list(classes.values())
    except (NpuError, ValueError) as error:
        raise _Refused(str(error)) from error
    click.echo("\n\n".join(show.text(cls) for cls in chosen))


@abi.command("diff")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
def diff_command(as_json: bool, old: str, new: str) -> None:
    """What changed in the headers between two stored kernel versions, like 6.12 and 7.3."""
    try:
        before, after = (snapshot.load(snapshot.parse_version(text)) for text in (old, new))
    except (NpuError, ValueError, LookupError) as error:
        known = ", ".join(f"{major}.{minor}" for major, minor in snapshot.versions())
        raise _Refused(f"{error.args[0]}; stored are {known}") from error
    changes = snapshot.diff(before, after)
    if as_json:
        click.echo(json.dumps([asdict(change) for change in changes], indent=2))
        return
    last = ""
    for change in changes:
        if change.header != last:
            click.echo(change.header)
        click.echo(f"    {change}")
        last = change.header
