# SPDX-License-Identifier: MIT
"""The command line: one file per command group, and no logic of its own."""

from __future__ import annotations

import errno
import importlib
import pkgutil
import sys
from typing import Any

import click

from npukit.ioctl import NpuError

COMMANDS = sorted(info.name for info in pkgutil.iter_modules(__path__))
"""Each module here holds one click command, of the module's name."""


class Lazy(click.Group):
    """Loads a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE and error.filename is None:
                raise  # whoever reads the output has gone, which click takes care of
            click.echo(f"npukit: {_text(error)}", err=True)
            sys.exit(1)


def _text(error: OSError) -> str:
    """Why a device refused, or which file it was that could not be read or written."""
    if isinstance(error, NpuError) or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


@click.group(cls=Lazy)
@click.version_option(package_name="npukit")
def main() -> None:
    """Talk to any Linux NPU through its kernel driver, or to a simulated one."""
