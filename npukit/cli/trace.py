# SPDX-License-Identifier: MIT
"""``npukit trace``: what a program said to its NPU."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import click

SIMULATED = {
    "rknpu": ("rknpu",),
    "rocket": ("rocket",),
    "amdxdna_accel_driver": ("amdxdna", "amdxdna-npu1"),
    "fastrpc": ("fastrpc-cdsp",),
    "dma_heap": ("dma_heap",),
    "udmabuf": ("udmabuf",),
    "wrapfd": ("wrapfd",),
}
"""Driver -> the simulated devices that have it."""


def _load(path: str) -> list[Any]:
    from npukit.trace.record import read_trace

    try:
        with open(path) as file:
            return list(read_trace(file))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from None


@contextlib.contextmanager
def written(path: str | None) -> Iterator[TextIO]:
    """A new file, or standard error; an error of writing names the file."""
    if path is None:
        yield sys.stderr
        return
    try:
        with open(path, "w") as file:
            yield file
    except OSError as error:
        if error.filename is None and error.errno != errno.EPIPE:
            error.filename = path
        raise


class _Trace(click.Group):
    """A group that traces a program when none of its commands is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Trace)
def trace() -> None:
    """What programs say to their NPUs.

    npukit trace [OPTIONS] -- PROGRAM ARGS... traces a program; npukit trace run --help has more.
    """


@trace.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write there, not to stderr.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "jsonl", "chrome"]),
    default="text",
    show_default=True,
    help="chrome opens in Perfetto; show and replay read jsonl.",
)
@click.option(
    "-p",
    "--pid",
    type=click.IntRange(1, 2**31 - 1),
    help="Trace this process, until it ends or Ctrl-C.",
)
@click.option("--data", is_flag=True, help="Record what buffers hold, too.")
@click.option("--root", default="/", help="Whose sys/dev/char tells drivers.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    output: str | None,
    form: str,
    pid: int | None,
    data: bool,
    root: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and show each request of it, and of what it starts, to an NPU.

    The exit status is that of COMMAND (128 + N for signal N), 125 when it cannot be traced here,
    126 or 127 when it cannot be run.
    """
    from npukit.trace.contents import Contents
    from npukit.trace.format import Writer
    from npukit.trace.program import CannotTrace, trace_process, trace_program

    if bool(command) == (pid is not None):
        raise click.UsageError("give a program or a process (-p)")
    status = 0
    traced = True
    contents = Contents() if data else None
    with written(output) as file:
        writer = Writer(file, form)
        try:
            if pid is not None:
                trace_process(pid, writer, root, contents)
            else:
                status = trace_program(command, writer, root, contents)
        except CannotTrace as error:
            click.echo(f"npukit trace: {error.strerror}", err=True)
            status, traced = 125, False
        except OSError as error:
            if not command or error.filename != command[0]:
                raise
            click.echo(f"npukit trace: {error.filename}: {error.strerror}", err=True)
            status, traced = 127 if isinstance(error, FileNotFoundError) else 126, False
        writer.close()
    if traced and writer.empty:
        click.echo("npukit trace: no request to an NPU was seen", err=True)
    sys.exit(status)


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
    """Play the trace FILE on a simulated machine with the devices that it opens, and compare. Of
    several NPUs that one driver serves, it is the one that answers most alike.

    What the simulated drivers would have printed is printed, too: some hide that a job failed. Exit
    status 0 when every call answered as recorded.
    """
    from npukit.sim import SimKernel
    from npukit.trace.meaning import RKNPU_NODE
    from npukit.trace.replay import opened
    from npukit.trace.replay import replay as play

    records = _load(file)
    candidates: dict[str, tuple[str, ...]] = {}
    for path, driver in opened(records).items():
        if driver not in SIMULATED:
            raise click.ClickException(f"{path}: nothing simulates {driver or 'its driver'}")
        candidates[path] = ("rknpu-misc",) if path == RKNPU_NODE else SIMULATED[driver]

    def run(devices: tuple[str, ...]) -> tuple[list[Any], list[str]]:
        kernel = SimKernel(tuple(dict.fromkeys(devices)))
        nodes = dict(zip(candidates, map(kernel.path, devices), strict=True))
        return play(records, kernel, nodes), kernel.log

    # No request tells the generation of every NPU: it is the one that answers alike.
    best = None
    for devices in itertools.product(*candidates.values()):
        found = run(devices)
        if best is None or len(found[0]) < len(best[0]):
            best = found
        if not best[0]:
            break
    assert best is not None
    differences, log = best
    for difference in differences:
        click.echo(difference)
    for line in log:
        click.echo(f"log: {line}")
    click.echo(f"{len(records)} calls, {len(differences)} differences")
    sys.exit(bool(differences))
