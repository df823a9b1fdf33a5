# SPDX-License-Identifier: MIT
"""``npukit txn``: XDNA instruction streams as text, as sentences, and back."""

from __future__ import annotations

from typing import BinaryIO

import click

from npukit.programs.xdna import txn as stream

from .xclbin import write


@click.group()
def txn() -> None:
    """Read and write XDNA instruction streams (insts.bin, insts.txt), whatever the file's name."""


@txn.command()
@click.argument("file", type=click.File("rb"))
def dis(file: BinaryIO) -> None:
    """Disassemble FILE: binary, or one hexadecimal word a line ("-": stdin)."""
    click.echo(stream.disassemble(stream.read(file.read())), nl=False)


@txn.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write the binary stream here."
)
def asm(file: BinaryIO, output: str | None) -> None:
    """Assemble FILE; without --output the words are printed, one hexadecimal word a line."""
    result = stream.read(file.read())
    if output is not None:
        write(output, result.to_bytes())
    else:
        click.echo(stream.to_hex(result), nl=False)


@txn.command()
@click.argument("file", type=click.File("rb"))
def explain(file: BinaryIO) -> None:
    """Say what each operation of FILE makes the array do."""
    for number, sentence in enumerate(stream.explain(stream.read(file.read()))):
        click.echo(f"{number:4d}  {sentence}")
