# SPDX-License-Identifier: MIT
"""Where tensors lie in one arena: those that are never needed at once may share memory.

The order in which operations run gives each tensor a life, from the step that writes it to the
last one that reads it. Largest first, each takes the smallest gap that holds it among those that
live with it and have a place already: "greedy by size for offset calculation" of Pisarchyk and Lee,
Efficient Memory Management for Deep Neural Net Inference (2020, arXiv:2001.03288), TFLite's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

ALIGN = 64
"""Bytes: a cache line, and four atoms."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory for one tensor. ValueError: a size below 1, an alignment that is no power of two."""

    size: int
    """Bytes."""
    first: int
    """Step that writes it; what the step itself uses may not share memory with it."""
    last: int
    """Last step that uses it."""
    align: int = ALIGN
    root: int | None = None
    """A part of this other block of the plan, or that block by another name; None: of its own."""
    offset: int = 0
    """Bytes from the start of ``root``."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.first > self.last:
            raise ValueError(f"{self}: 1 byte or more, and a life that ends after its start")
        if self.align < 1 or self.align & (self.align - 1):
            raise ValueError(f"{self}: the alignment is no power of two")


@dataclass(frozen=True, slots=True)
class Plan:
    """Where blocks lie."""

    offsets: tuple[int, ...]
    """Bytes from the start of the arena, for each block."""
    size: int
    """Bytes of the arena."""
    peak: int
    """Most bytes that live at once: no plan can have a smaller arena."""


def place(blocks: Sequence[Block]) -> Plan:
    """A place for each block, so that no two overlap that live at once, save a block's parts.

    A block lives as long as any of its parts. ValueError: a part that is not within its root, or
    whose alignment its offset breaks, or roots in a circle.
    """
    roots, offsets = _roots(blocks)
    merged: dict[int, Block] = {}
    for block, root, offset in zip(blocks, roots, offsets, strict=True):
        whole = merged.get(root, blocks[root])
        if not 0 <= offset <= whole.size - block.size or offset % block.align:
            raise ValueError(f"{block} does not fit in {whole} at {offset}")
        merged[root] = replace(
            whole,
            first=min(whole.first, block.first),
            last=max(whole.last, block.last),
            align=max(whole.align, block.align),
        )
    places: dict[int, int] = {}
    for index in sorted(merged, key=lambda index: (-merged[index].size, merged[index].first)):
        block = merged[index]
        others = sorted(
            (start, start + merged[other].size)
            for other, start in places.items()
            if merged[other].first <= block.last and block.first <= merged[other].last
        )
        places[index] = _best_gap(others, block)
    return Plan(
        tuple(places[root] + offset for root, offset in zip(roots, offsets, strict=True)),
        max((start + merged[index].size for index, start in places.items()), default=0),
        _peak(list(merged.values())),
    )


def _roots(blocks: Sequence[Block]) -> tuple[list[int], list[int]]:
    """For each block the whole that it is of, and how far it is from the start of that."""
    roots, offsets = [], []
    for index, block in enumerate(blocks):
        root, offset = index, 0
        for _ in blocks:
            if block.root is None:
                break
            root, offset = block.root, offset + block.offset
            block = blocks[root]
        if block.root is not None:
            raise ValueError(f"block {index} is a part of itself")
        roots.append(root)
        offsets.append(offset)
    return roots, offsets


def _best_gap(others: Sequence[tuple[int, int]], block: Block) -> int:
    """Where the smallest gap is that holds ``block``; behind all ``others`` when none does."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in others:
        place = -(-end // block.align) * block.align
        if place + block.size <= start and (best is None or start - end < best[0]):
            best = start - end, place
        end = max(end, stop)
    return best[1] if best else -(-end // block.align) * block.align


def _peak(blocks: Sequence[Block]) -> int:
    """Lives only begin where one begins, so the most is alive at some beginning."""
    return max(
        (
            sum(block.size for block in blocks if block.first <= step <= block.last)
            for step in {block.first for block in blocks}
        ),
        default=0,
    )
