# SPDX-License-Identifier: MIT
"""``npukit regcmd``: RK3588 command streams as text and back."""

from __future__ import annotations

from typing import BinaryIO, TextIO

import click

from npukit.programs.rk3588 import text


@click.group()
def regcmd() -> None:
    """Read and write RK3588 command streams."""


@regcmd.command()
@click.argument("file", type=click.File("rb"))
def dis(file: BinaryIO) -> None:
    """Disassemble FILE: 64-bit little-endian words, or one hexadecimal word a line ("-": stdin)."""
    click.echo(text.disassemble(text.read_words(file.read())), nl=False)


@regcmd.command()
@click.argument("file", type=click.File("r"))
@click.option("-o", "--output", type=click.File("wb"), help="Write 64-bit words here.")
def asm(file: TextIO, output: BinaryIO | None) -> None:
    """Assemble FILE; without --output the words are printed, one hexadecimal word a line."""
    words = text.assemble(file.read())
    if output is not None:
        output.write(words.astype("<u8").tobytes())
        return
    for word in words:
        click.echo(f"{int(word):016x}")
