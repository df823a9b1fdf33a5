# SPDX-License-Identifier: MIT
"""``npukit manager``: try the rules that decide who may load a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from npukit.manager import replay as scenarios
from npukit.manager import simulate as simulation


@click.group()
def manager() -> None:
    """Replay scenarios against the manager's engine, or let random clients loose on it."""


@manager.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(file: Path) -> None:
    """Play the scenarios of FILE (JSON) and print where the engine differs; exit status 1 then."""
    try:
        loaded = scenarios.load(file)
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    wrong = 0
    for scenario in loaded:
        try:
            differences = scenarios.replay(scenario)
        except (TypeError, ValueError) as error:
            raise click.ClickException(f"{file}: {scenario.name}: {error}") from error
        wrong += bool(differences)
        for difference in differences:
            click.echo(f"{scenario.name}: {difference}")
    click.echo(f"{len(loaded) - wrong} of {len(loaded)} scenarios agree")
    sys.exit(wrong > 0)


@manager.command()
@click.option("--clients", default=8, type=click.IntRange(1), show_default=True)
@click.option("--events", default=20_000, type=click.IntRange(1), show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a PNG or SVG.")
def simulate(clients: int, events: int, seed: int, plot: Path | None) -> None:
    """Let honest and dishonest clients act at random, and check every promise of the engine.

    Exit status 1, with what happened last, when a promise is broken.
    """
    try:
        summary = simulation.simulate(clients, events, seed)
    except simulation.BrokenPromise as error:
        raise click.ClickException(str(error)) from error
    click.echo(str(summary))
    if plot is not None:
        _draw(summary, plot)


def _draw(summary: simulation.Summary, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise click.ClickException("--plot needs matplotlib: pip install 'npukit[plot]'") from None
    times, charged, waiting = zip(*summary.samples, strict=True)
    figure = Figure(figsize=(9, 5), layout="constrained")
    budget, queue = figure.subplots(2, 1, sharex=True)
    budget.step(times, charged, where="post")
    budget.set_ylabel("budget charged")
    queue.step(times, waiting, where="post")
    queue.set_ylabel("requests waiting")
    queue.set_xlabel("simulated seconds")
    figure.suptitle(f"{summary.events:,} events of {summary.clients} clients, seed {summary.seed}")
    try:
        figure.savefig(path)
    except ValueError as error:  # a suffix that stands for no format
        raise click.ClickException(f"{path}: {error}") from error
