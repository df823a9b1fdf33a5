# SPDX-License-Identifier: MIT
"""``npukit regcmd``: RK3588 command streams as text and back."""

from __future__ import annotations

import json
import os
import string
import sys
from typing import BinaryIO, TextIO

import click

from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import text
from npukit.programs.rk3588.explain import describe, explain_words
from npukit.programs.rk3588.program import Words


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


def _words(data: bytes) -> Words:
    """The words of a file, which may be a listing."""
    try:
        return text.read_words(data)
    except ProgramError as error:
        try:
            return text.assemble(data.decode("ascii"))
        except ProgramError as other:
            reason = f"{error.strerror}; nor a listing: {other.strerror}"
        except UnicodeDecodeError:
            raise error from None
    raise ProgramError(message=reason)


@regcmd.command()
@click.argument("source", nargs=-1, required=True, metavar="FILE|HEX...")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(source: tuple[str, ...], as_json: bool) -> None:
    """Say what a stream does, and what is wrong with it: of FILE ("-": stdin), or of words in HEX.

    FILE may be a listing of `npukit regcmd dis`, too. Exit status 1 when something is wrong.
    """
    if len(source) == 1 and (source[0] == "-" or os.path.exists(source[0])):
        try:
            with click.open_file(source[0], "rb") as file:
                words = _words(file.read())
        except IsADirectoryError as error:
            raise click.UsageError(f"{source[0]}: {error.strerror}") from None
    elif any(set(part) - set(f"{string.hexdigits}xX \n") for part in source):
        raise click.UsageError(f"{' '.join(source)}: neither a file nor hexadecimal words")
    else:
        words = text.read_words(" ".join(source).encode())
    tasks = describe(words)
    click.echo(json.dumps(tasks, indent=2) if as_json else explain_words(words))
    sys.exit(any(task["problems"] for task in tasks))
