# SPDX-License-Identifier: MIT
"""``npukit sim``: programs on a simulated machine."""

from __future__ import annotations

import contextlib
import sys

import click

from npukit.sim import DEVICES
from npukit.sim.run import CANNOT_RUN, DEFAULT_DEVICES


@click.group()
def sim() -> None:
    """Simulated NPUs for programs that know nothing of them."""


@sim.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help=f"Give the machine this device; may be repeated. There are {', '.join(DEVICES)}; "
    f"without this option it has {', '.join(DEFAULT_DEVICES)}.",
)
@click.option("--strict", is_flag=True, help="Refuse, and say, what a driver would swallow.")
@click.option("--report", is_flag=True, help="At the end, say what the program asked for.")
@click.option(
    "--char-nodes", is_flag=True, help="Have stat show nodes as character devices, as libdrm asks."
)
@click.option(
    "--no-namespace",
    is_flag=True,
    help="Trap open and stat instead of laying out /dev and /sys anew: no folder shows the nodes, "
    "discovery finds none, and programs must name one.",
)
@click.option(
    "--door",
    type=click.Choice(["seccomp", "preload"]),
    default="seccomp",
    show_default=True,
    help="How calls are had: trapped by the kernel, or by a preloaded library (any architecture).",
)
@click.option(
    "--library",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The library that the preload door preloads, if not the one of npukit.",
)
@click.option(
    "--trace",
    "trace_to",
    metavar="FILE",
    is_flag=False,
    flag_value="-",
    help="Trace the program's requests to FILE, which show and replay read (write --trace=FILE); "
    "alone: as text (put -- before COMMAND).",
)
@click.option("--data", is_flag=True, help="With --trace: record what buffers hold, too.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def run(
    devices: tuple[str, ...],
    strict: bool,
    report: bool,
    char_nodes: bool,
    no_namespace: bool,
    door: str,
    library: str | None,
    trace_to: str | None,
    data: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on a machine with simulated NPUs.

    The exit status is that of COMMAND (128 + N for signal N), 125 when this machine forbids what it
    takes, 126 or 127 when COMMAND cannot be run.
    """
    from npukit.sim.run import run as run_program

    if not command:
        usage = "give the program to run: npukit sim run [OPTIONS] -- COMMAND..."
        if trace_to not in (None, "-"):
            usage += f"; {trace_to!r} was taken for the FILE of --trace"
        raise click.UsageError(usage)
    names = devices or DEFAULT_DEVICES
    with contextlib.ExitStack() as stack:
        watcher = writer = None
        if data and trace_to is None:
            raise click.UsageError("--data is for --trace")
        if trace_to is not None and door == "preload":
            raise click.BadParameter("traces are taken in the seccomp door", param_hint="--trace")
        if trace_to is not None:
            from npukit.trace.contents import Contents
            from npukit.trace.format import Writer
            from npukit.trace.outside import Supervised

            from .trace import written

            text = trace_to == "-"
            file = stack.enter_context(written(None if text else trace_to))
            writer = Writer(file, "text" if text else "jsonl")
            watcher = Supervised(writer, contents=Contents() if data else None)
        try:
            if door == "preload":
                from npukit.sim.serving import run_preloaded

                status = run_preloaded(
                    command,
                    names,
                    strict=strict,
                    report=report,
                    namespaces=not no_namespace,
                    library=library,
                )
            else:
                status = run_program(
                    command,
                    names,
                    strict=strict,
                    report=report,
                    char_nodes=char_nodes,
                    namespaces=not no_namespace,
                    watcher=watcher,
                )
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--device") from None
        if watcher is not None and watcher.error is not None:
            raise watcher.error
        if writer is not None:
            writer.close()
            if writer.empty and status not in (CANNOT_RUN, 126, 127):
                click.echo("npukit sim run: no request to an NPU was seen", err=True)
    sys.exit(status)


@sim.command()
@click.option("--socket", "path", required=True, metavar="PATH", help="Where to serve it.")
@click.option("--device", "devices", multiple=True, metavar="NAME", help="As for run.")
@click.option("--strict", is_flag=True, help="Refuse, and say, what a driver would swallow.")
@click.option("--report", is_flag=True, help="At the end, say what programs asked for.")
def serve(path: str, devices: tuple[str, ...], strict: bool, report: bool) -> None:
    """Serve a machine with simulated NPUs at a Unix socket, until Ctrl-C or SIGTERM.

    Programs reach it with the two variables that are printed after its nodes, Python by
    npukit.open("sim:NAME@PATH") and npukit.sim.SocketKernel(PATH).
    """
    from npukit.sim.serving import serve_until_told

    try:
        serve_until_told(path, devices or DEFAULT_DEVICES, strict=strict, report=report)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--device") from None
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
