# SPDX-License-Identifier: MIT
"""Between who answers the requests of other processes and who watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

Memory = Callable[[int, int, int], bytes | None]
"""(name, offset, size) -> bytes of a buffer object; None where there are none."""


class OpenFile(NamedTuple):
    """What a watcher is told of an open file."""

    number: int
    driver: str
    """"" where the path tells it."""
    path: str
    memory: Memory
    """Of its buffers, by handle; by obj_addr where handles are descriptors (rknpu's misc node)."""
    shared: Memory
    """Of the caller's dma-bufs, by descriptor, while the request lasts."""


class Watcher(Protocol):
    """Who is told of what the door answers, with the door's lock held."""

    def __call__(
        self, thread: int, process: int, fd: int, file: OpenFile, request: int, address: int
    ) -> Callable[[int], None]:
        """A request has begun; what is to be called with its answer, negative for an errno."""

    def maps(
        self,
        thread: int,
        process: int,
        fd: int,
        file: OpenFile,
        arguments: dict[str, int],
        place: tuple[int, int],
        error: int,
    ) -> None:
        """The program is going to have an mmap, or gets an errno for it (else 0).

        ``arguments``: length, offset, prot, flags. ``place``: inode and offset of the pages.
        """

    def closed(self, number: int) -> None:
        """No process has the open file of this number any more, nor a mapping of it."""
