# SPDX-License-Identifier: MIT
"""What buffer objects hold, told in chunks, each change and each content once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from .buffers import Bo
from .record import Chunk

CHUNK = 4096
"""Bytes of a chunk, at multiples of it; the last of a buffer may be shorter."""
LIMIT = 256 << 20
"""Bytes of different chunks that are recorded in one trace."""
_PIECE = 1 << 20
"""Bytes that are read at once."""
_ZEROS = bytes(CHUNK)

Read = Callable[[int, int], bytes | None]
"""(offset, size) -> bytes of a buffer object; None when they cannot be read."""


class Contents:
    """What has been told of each buffer object's contents. New ones hold zeros, which are not told.

    At most ``limit`` bytes are recorded: chunks beyond have no bytes. Synchronization: none.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._left = limit
        self._kept: set[str] = set()
        self._told: dict[Bo, dict[int, str]] = {}

    def changes(self, bo: Bo, read: Read) -> Iterator[Chunk]:
        """The chunks that differ from what was told last. What cannot be read is left out."""
        told = self._told.setdefault(bo, {})
        for start in range(0, bo.size, _PIECE):
            data = read(start, min(_PIECE, bo.size - start))
            if data is None:
                return
            for place in range(0, len(data), CHUNK):
                piece, offset = data[place : place + CHUNK], start + place
                if offset not in told and piece == _ZEROS[: len(piece)]:
                    continue
                name = digest(piece)
                if told.get(offset) == name:
                    continue
                told[offset] = name
                yield Chunk(bo.handle, offset, name, self._keep(name, piece))

    def _keep(self, name: str, piece: bytes) -> bytes | None:
        if name in self._kept or len(piece) > self._left:
            return None
        self._kept.add(name)
        self._left -= len(piece)
        return piece

    def forget_ended(self) -> None:
        """Let go of buffer objects that are no more."""
        for bo in [bo for bo in self._told if bo.ended_ns is not None]:
            del self._told[bo]


def digest(data: bytes) -> str:
    """The name of a chunk's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
