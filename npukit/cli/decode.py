# SPDX-License-Identifier: MIT
"""``npukit decode``: what a request number means."""

from __future__ import annotations

import json

import click

from npukit.ioctl import decode as split
from npukit.requests import requests_of


def _number(text: str) -> int:
    try:
        number = int(text, 0)
        split(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a 32-bit request number") from None
    return number


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("numbers", metavar="NUMBER...", nargs=-1, required=True, type=_number)
def decode(as_json: bool, numbers: tuple[int, ...]) -> None:
    """Split request numbers (0x-hexadecimal or decimal) and name each driver's request for them."""
    rows = []
    for number in numbers:
        parts = split(number)
        matches = requests_of(number)
        rows.append(
            {
                "number": number & 0xFFFFFFFF,
                "direction": parts.direction,
                "type": parts.type,
                "nr": parts.nr,
                "size": parts.size,
                "requests": [
                    {
                        "driver": match.module,
                        "name": match.request.name,
                        "struct": getattr(match.request.struct, "__name__", None),
                        "exact": match.exact,
                    }
                    for match in matches
                ],
            }
        )
        if as_json:
            continue
        click.echo(f"{number & 0xFFFFFFFF:#010x}  {parts}")
        for match in matches:
            note = "" if match.exact else f"  (of {match.request.size} bytes there)"
            struct = getattr(match.request.struct, "__name__", "no structure")
            click.echo(f"  {match.module}: {match.request.name}, {struct}{note}")
        if not matches:
            click.echo("  no driver that npukit knows")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
