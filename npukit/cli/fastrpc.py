# SPDX-License-Identifier: MIT
"""``npukit fastrpc``: Hexagon DSPs."""

from __future__ import annotations

from pathlib import Path

import click

from npukit.devices.fastrpc import SHELL_LIMIT
from npukit.devices.shell import ShellVerifier, read_shell


@click.group()
def fastrpc() -> None:
    """Hexagon DSPs under the FastRPC driver."""


def _key(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
    """An Ed25519 key: 64 hexadecimal digits, or a file of its 32 bytes or of those digits."""
    text = value
    if Path(value).is_file():
        data = Path(value).read_bytes()
        if len(data) == 32:
            return data
        text = data.decode("ascii", "replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        what = "" if Path(value).is_file() else f"{value!r} is neither a file nor 64 hex digits: "
        raise click.BadParameter(f"{what}an Ed25519 public key has 32 bytes")
    return key


@fastrpc.command("verify-shell")
@click.option("--reference", required=True, metavar="FILE", help="Digests, as sha256sum writes.")
@click.option("--key", required=True, callback=_key, metavar="HEX|FILE", help="Ed25519 public key.")
@click.option("--signature", required=True, metavar="FILE", help="The 64 bytes of the signature.")
@click.option(
    "--owner", default=0, show_default=True, metavar="UID", help="Who owns the reference."
)
@click.argument("shell", metavar="SHELL")
def verify_shell(reference: str, key: bytes, signature: str, owner: int, shell: str) -> None:
    """Is SHELL, a DSP's process image, the one it should be? Exit status 0 only if it is.

    Its SHA-256 must be in the reference file, which only its owner may write, and the signature
    must be one of the key over its bytes.
    """
    image = read_shell(shell, SHELL_LIMIT)
    if len(image) > SHELL_LIMIT:
        raise click.ClickException(f"{shell} has more than the driver's {SHELL_LIMIT} bytes")
    digest = ShellVerifier(reference, key, signature, owner).check(image)
    click.echo(f"{shell}: {len(image)} bytes, SHA-256 {digest}: right")
