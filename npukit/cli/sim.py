# SPDX-License-Identifier: MIT
"""``npukit sim``: programs on a simulated machine."""

from __future__ import annotations

import sys

import click


@click.group()
def sim() -> None:
    """Simulated NPUs for programs that know nothing of them."""


@sim.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Give the machine this device; may be repeated (rknpu, rocket, dma_heap, udmabuf).",
)
@click.option("--strict", is_flag=True, help="Refuse, and say, what a driver would swallow.")
@click.option("--report", is_flag=True, help="At the end, say what the program asked for.")
@click.option(
    "--char-nodes", is_flag=True, help="Have stat show nodes as character devices, as libdrm asks."
)
@click.option(
    "--no-namespace",
    is_flag=True,
    help="Trap open and stat instead of laying out /dev and /sys anew.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    devices: tuple[str, ...],
    strict: bool,
    report: bool,
    char_nodes: bool,
    no_namespace: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on a machine with simulated NPUs.

    The exit status is that of COMMAND (128 + N for signal N), 125 when this machine forbids what it
    takes, 126 or 127 when COMMAND cannot be run.
    """
    from npukit.sim.run import DEFAULT_DEVICES
    from npukit.sim.run import run as run_program

    try:
        status = run_program(
            command,
            devices or DEFAULT_DEVICES,
            strict=strict,
            report=report,
            char_nodes=char_nodes,
            namespaces=not no_namespace,
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--device") from None
    sys.exit(status)
