# SPDX-License-Identifier: MIT
"""``npukit trace``: what a program said to its NPU."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

SIMULATED = {
    "rknpu": "rknpu",
    "rocket": "rocket",
    "amdxdna_accel_driver": "amdxdna",
    "fastrpc": "fastrpc-cdsp",
    "dma_heap": "dma_heap",
    "udmabuf": "udmabuf",
    "wrapfd": "wrapfd",
}
"""Driver -> the simulated device that has it."""


def _load(path: str) -> list[Any]:
    from npukit.trace.record import read_trace

    try:
        with open(path) as file:
            return list(read_trace(file))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from None


@click.group()
def trace() -> None:
    """Traces of what programs said to their NPUs."""


@trace.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "chrome"]),
    default="text",
    show_default=True,
    help="chrome opens in Perfetto.",
)
def show(file: str, form: str) -> None:
    """Show the trace FILE. As text it ends with what the trace comes to."""
    from npukit.trace.format import to_chrome, to_text
    from npukit.trace.summary import summarize, to_lines

    records = _load(file)
    if form == "chrome":
        click.echo(json.dumps(to_chrome(records)))
    else:
        for line in to_text(records):
            click.echo(line)
        click.echo()
        for line in to_lines(summarize(records)):
            click.echo(line)


@trace.command()
@click.argument("file", type=click.Path(dir_okay=False))
def replay(file: str) -> None:
    """Play the trace FILE on a simulated machine with the devices that it opens, and compare.

    What the simulated drivers would have printed is printed, too: some hide that a job failed. Exit
    status 0 when every call answered as recorded.
    """
    from npukit.sim import SimKernel
    from npukit.trace.replay import opened
    from npukit.trace.replay import replay as play

    records = _load(file)
    devices = {}
    for path, driver in opened(records).items():
        if driver not in SIMULATED:
            raise click.ClickException(f"{path}: nothing simulates {driver or 'its driver'}")
        devices[path] = "rknpu-misc" if path == "/dev/rknpu" else SIMULATED[driver]
    kernel = SimKernel(tuple(dict.fromkeys(devices.values())))
    nodes = {path: kernel.path(name) for path, name in devices.items()}
    differences = play(records, kernel, nodes)
    for difference in differences:
        click.echo(difference)
    for line in kernel.log:
        click.echo(f"log: {line}")
    click.echo(f"{len(records)} calls, {len(differences)} differences")
    sys.exit(bool(differences))
