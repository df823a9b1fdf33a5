# SPDX-License-Identifier: MIT
"""Address allocators with the placement rules of the kernel's own."""

from __future__ import annotations

import bisect
import errno

from .core import Errno

_PAGE = 4096
"""The IOMMU's page, whatever the CPU's is."""


class TopDown:
    """Addresses of one IOMMU domain under the vendor driver (the kernel's iova allocator).

    Next-fit from the top of the 4 GiB down: the search starts below the range given last. A freed
    range at or above that point moves it up again. Without ``exact`` the length is rounded up to a
    power of two below 32 pages, and the address aligned to the power of two that holds the length;
    a freed range of such a length is given again first (drivers/iommu/iova.c).
    """

    LIMIT = 1 << 32

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._cursor = self.LIMIT
        self._cache: dict[int, list[int]] = {}

    def take(self, size: int, exact: bool) -> int:
        """The address of ``size`` bytes; Errno(ENOSPC) when none is free."""
        pages = -(-size // _PAGE)
        align = _PAGE
        if not exact:
            power = 1 << (pages - 1).bit_length()
            align = power * _PAGE
            pages = power if pages < 32 else pages
            if self._cache.get(pages):
                return self._cache[pages].pop()
        length = pages * _PAGE
        start = self._search(self._cursor, length, align)
        if start is None:
            start = self._search(self.LIMIT, length, align)
        if start is None and self._cache:
            self._flush()
            start = self._search(self.LIMIT, length, align)
        if start is None:
            raise Errno(errno.ENOSPC)
        bisect.insort(self._starts, start)
        self._ends[start] = start + length
        self._cursor = start
        return start

    def _search(self, top: int, length: int, align: int) -> int | None:
        index = bisect.bisect_left(self._starts, top)
        while True:
            floor = self._ends[self._starts[index - 1]] if index else _PAGE
            start = (top - length) // align * align
            if start >= floor:
                return start
            if index == 0:
                return None
            index -= 1
            top = self._starts[index]

    def free(self, start: int, exact: bool) -> None:
        """Give an address back, with the same ``exact`` as it was taken."""
        pages = (self._ends[start] - start) // _PAGE
        if not exact and pages <= 32 and pages & (pages - 1) == 0:
            self._cache.setdefault(pages, []).append(start)
        else:
            self._drop(start)

    def _drop(self, start: int) -> None:
        index = bisect.bisect_left(self._starts, start)
        del self._starts[index], self._ends[start]
        if start >= self._cursor:
            self._cursor = self._starts[index] if index < len(self._starts) else self.LIMIT

    def _flush(self) -> None:
        for start in (start for starts in self._cache.values() for start in starts):
            self._drop(start)
        self._cache.clear()


class BestFit:
    """The kernel's range allocator in mode BEST (drivers/gpu/drm/drm_mm.c): the smallest hole that
    fits, its lowest aligned address; of holes of one size the one that came last."""

    def __init__(self, start: int, end: int, align: int) -> None:
        self._align = align
        self._holes = [(start, end)]
        """In the order in which they came to be."""
        self._sizes: dict[int, int] = {}

    def take(self, size: int) -> int:
        """The address of ``size`` bytes; Errno(ENOSPC) when there is no hole, or size is 0."""
        best: tuple[int, int] | None = None
        for hole in self._holes:
            start, end = hole
            fits = self._aligned(start) + size <= end
            if fits and (best is None or end - start <= best[1] - best[0]):
                best = hole
        if size == 0 or best is None:
            raise Errno(errno.ENOSPC)
        start = self._aligned(best[0])
        self._holes.remove(best)
        for left in ((best[0], start), (start + size, best[1])):
            if left[0] < left[1]:
                self._holes.append(left)
        self._sizes[start] = size
        return start

    def free(self, start: int) -> None:
        end = start + self._sizes.pop(start)
        for hole in [hole for hole in self._holes if end == hole[0] or start == hole[1]]:
            self._holes.remove(hole)
            start, end = min(start, hole[0]), max(end, hole[1])
        self._holes.append((start, end))

    def _aligned(self, address: int) -> int:
        return -(-address // self._align) * self._align
