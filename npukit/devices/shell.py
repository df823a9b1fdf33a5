# SPDX-License-Identifier: MIT
"""The process image of a DSP, and whether it is the one that it should be."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from npukit.ioctl import NoDevice, NpuError

SHELL_FOLDERS = (
    "/usr/lib/dsp/{domain}",
    "/usr/lib/dsp",
    "/usr/lib/rfsa/adsp",
    "/usr/share/qcom/{domain}",
    "/vendor/lib/rfsa/dsp/{domain}",
    "/vendor/lib/rfsa/adsp",
    "/dsp/{domain}",
)
"""Where vendors install shells."""

_DOMAIN_NUMBER = {"adsp": 0, "mdsp": 1, "sdsp": 2, "cdsp": 3}
_REFERENCE_LIMIT = 1 << 20
_FORBIDDEN_MODE = stat.S_IWGRP | stat.S_IWOTH


class ShellRejected(NpuError):
    """The shell is not the one that it should be, or that cannot be told; nothing was loaded."""


def find_shell(
    domain: str, unsigned: bool, folders: Sequence[str | os.PathLike[str]] = SHELL_FOLDERS
) -> str:
    """The vendor's shell for a DSP; NoDevice names the places where none is."""
    number = _DOMAIN_NUMBER.get(domain[:4], 3)
    name = f"fastrpc_shell_unsigned_{number}" if unsigned else f"fastrpc_shell_{number}"
    places = [Path(str(folder).format(domain=domain)) / name for folder in folders]
    for place in places:
        if place.is_file():
            return str(place)
    raise NoDevice(
        errno.ENOENT,
        f"no {name}, the vendor's process image, is installed",
        hint=f"looked for {', '.join(map(str, places))}; give its path",
    )


def read_shell(path: str | os.PathLike[str], limit: int) -> bytes:
    """The file's bytes, up to one more than ``limit``; NpuError when it cannot be read."""
    return _read(path, limit + 1)[0]


def _read(path: str | os.PathLike[str], most: int) -> tuple[bytes, os.stat_result]:
    """The contents, and the status of the very file that they were read from."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NpuError(error.errno or errno.EIO, path=os.fspath(path)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NpuError(errno.EINVAL, path=os.fspath(path), hint="not an ordinary file")
        data = b""
        while len(data) < most and (piece := os.read(fd, most - len(data))):
            data += piece
        return data, status
    finally:
        os.close(fd)


class Verifier(Protocol):
    """Decides whether a shell may be loaded."""

    def check(self, image: bytes) -> str:
        """The SHA-256 of ``image``, in hexadecimal; ShellRejected when it must not be loaded."""


class _Unverified:
    def check(self, image: bytes) -> str:
        return hashlib.sha256(image).hexdigest()

    def __repr__(self) -> str:
        return "UNVERIFIED"


UNVERIFIED: Verifier = _Unverified()
"""Takes any shell. The DSP's firmware still checks what it loads, by rules of its own."""


@dataclass(frozen=True)
class ShellVerifier:
    """What a shell must be: listed by its SHA-256 in ``reference``, and signed by ``public_key``.

    ``reference`` is a file as sha256sum writes it, owned by ``owner`` (root) and writable by nobody
    else. ``public_key`` is an Ed25519 key: its 32 bytes. ``signature`` is the 64 bytes over the
    shell's, or a file of them. All that cannot be checked is a refusal. Needs the extra ``crypto``.
    """

    reference: str | os.PathLike[str]
    public_key: bytes
    signature: bytes | str | os.PathLike[str]
    owner: int = 0

    def check(self, image: bytes) -> str:
        """The SHA-256 of ``image``, in hexadecimal; ShellRejected when it is not the right one."""
        digest = hashlib.sha256(image).hexdigest()
        known = self._reference()
        if digest not in known:
            raise ShellRejected(
                errno.EKEYREJECTED,
                f"the shell of {len(image)} bytes has SHA-256 {digest}",
                path=os.fspath(self.reference),
                hint=f"which is none of the {len(known)} of the reference file",
            )
        self._check_signature(image, digest)
        return digest

    def _reference(self) -> set[str]:
        path = os.fspath(self.reference)
        try:
            data, status = _read(path, _REFERENCE_LIMIT)
        except NpuError as error:
            raise ShellRejected(
                error.errno or errno.EIO,
                path=path,
                hint=f"the reference file cannot be read: {error.hint or error.strerror}",
            ) from error
        if status.st_uid != self.owner:
            raise ShellRejected(
                errno.EACCES,
                path=path,
                hint=f"the reference file belongs to user {status.st_uid}, not {self.owner}",
            )
        if status.st_mode & _FORBIDDEN_MODE:
            raise ShellRejected(
                errno.EACCES,
                path=path,
                hint=f"the reference file has mode {stat.S_IMODE(status.st_mode):04o}: group or "
                "others may write to it",
            )
        words = [line.split()[0].lower() for line in data.decode("ascii", "replace").splitlines()
                 if line.split()]  # fmt: skip
        return {word for word in words if len(word) == 64}

    def _check_signature(self, image: bytes, digest: str) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError as error:
            raise ShellRejected(
                errno.ENOPKG,
                "the signature cannot be checked: the package cryptography is missing",
                hint="pip install 'npukit[crypto]'",
            ) from error
        signature = self.signature
        if not isinstance(signature, bytes):
            try:
                signature, _status = _read(signature, 65)
            except NpuError as error:
                raise ShellRejected(
                    error.errno or errno.EIO,
                    path=error.filename,
                    hint="the signature cannot be read",
                ) from error
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, image)
        except (InvalidSignature, ValueError) as error:
            raise ShellRejected(
                errno.EKEYREJECTED,
                f"the signature of {len(signature)} bytes is not one of this key over the shell "
                f"with SHA-256 {digest}",
                hint=str(error) or None,
            ) from error
