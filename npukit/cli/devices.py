# SPDX-License-Identifier: MIT
"""``npukit devices``: the NPUs of this machine."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table

import npukit


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", default="/", help="Look under this folder instead of /.")
def devices(as_json: bool, root: str) -> None:
    """List the NPUs of this machine and say which npukit can drive."""
    found = npukit.discover(root=root)
    if as_json:
        rows = [{**dataclasses.asdict(node), "drivable": node.drivable} for node in found]
        click.echo(json.dumps(rows, indent=2))
        return
    if not found:
        from npukit.sim import NPUS

        click.echo(f"no NPU found; simulated ones are {', '.join(f'sim:{name}' for name in NPUS)}")
        return
    table = Table("path", "driver", "what it is", "npukit")
    for node in found:
        state = node.problem or ("drives it" if node.drivable else "cannot drive it yet")
        table.add_row(node.path, node.driver, node.description, state)
    Console().print(table)
