# SPDX-License-Identifier: MIT
"""Where tensors lie in an arena."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npukit.programs.rk3588.planner import Block, place

ALIGNS = st.sampled_from([1, 16, 64, 4096])


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    """Some with parts, and parts of parts."""
    found: list[Block] = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 10))
        last = first + draw(st.integers(0, 5))
        align = draw(ALIGNS)
        root = draw(st.none() | st.integers(0, len(found) - 1)) if found else None
        if root is None:
            found.append(Block(draw(st.integers(1, 9000)), first, last, align))
            continue
        if found[root].root is not None:
            align = 1  # a part of a part; its offset from the whole may be any
        offset = draw(st.integers(0, found[root].size - 1)) // align * align
        size = draw(st.integers(1, found[root].size - offset))
        found.append(Block(size, first, last, align, root, offset))
    return found


def root_of(all_blocks: list[Block], index: int) -> tuple[int, int]:
    """The whole that a block is of, and its distance from the whole's start."""
    parent = all_blocks[index].root
    if parent is None:
        return index, 0
    root, offset = root_of(all_blocks, parent)
    return root, offset + all_blocks[index].offset


def live(all_blocks: list[Block], root: int) -> set[int]:
    """The steps at which a whole or any of its parts is in use, and those between."""
    of = [b for i, b in enumerate(all_blocks) if root_of(all_blocks, i)[0] == root]
    return set(range(min(b.first for b in of), max(b.last for b in of) + 1))


@settings(max_examples=300)
@given(blocks())
def test_what_lives_at_once_does_not_overlap(found: list[Block]) -> None:
    plan = place(found)
    wholes = [index for index, block in enumerate(found) if block.root is None]
    for a, b in combinations(wholes, 2):
        if live(found, a) & live(found, b):
            apart = (
                plan.offsets[a] + found[a].size <= plan.offsets[b]
                or plan.offsets[b] + found[b].size <= plan.offsets[a]
            )
            assert apart, (found[a], found[b], plan)
    for index, (block, offset) in enumerate(zip(found, plan.offsets, strict=True)):
        assert offset % block.align == 0
        assert 0 <= offset <= plan.size - block.size
        root, inside = root_of(found, index)
        assert offset == plan.offsets[root] + inside

    alive = [sum(found[w].size for w in wholes if t in live(found, w)) for t in range(20)]
    assert plan.peak == max(alive) <= plan.size
    # The padding before a block is less than its alignment, or that of its parts.
    align = max((block.align for block in found), default=1)
    assert plan.size <= sum(-(-found[w].size // align) * align for w in wholes)


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    sizes = [800, 400, 1600, 400, 800, 100, 50]
    chain = [Block(size * 64, step, step + 1) for step, size in enumerate(sizes)]
    plan = place(chain)
    assert plan.size == plan.peak == 2000 * 64


def test_a_gap_that_fits_best_is_taken() -> None:
    """Two blocks that live on leave gaps of 6 and of 4 units: 3 go into the one of 4."""
    lives = [(6, 0, 1), (5, 0, 9), (4, 0, 1), (3, 0, 9), (3, 2, 9)]
    plan = place([Block(64 * size, first, last) for size, first, last in lives])
    assert plan.offsets == (0, 64 * 6, 64 * 11, 64 * 15, 64 * 11)
    assert plan.size == plan.peak == 64 * 18


def test_what_is_reached_stands_beside_the_bound() -> None:
    """Greedy is not always best: with the first block under the second all would fit in 8."""
    lives = [(3, 2, 3), (4, 1, 2), (3, 3, 3), (2, 3, 3)]
    plan = place([Block(size, first, last, 1) for size, first, last in lives])
    assert (plan.peak, plan.size) == (8, 9)


def test_parts_keep_a_whole_alive() -> None:
    """A concatenation: two operations write its halves, and it is read later."""
    whole = Block(256, 4, 6)
    halves = [Block(128, 0, 0, root=0), Block(128, 2, 2, root=0, offset=128)]
    other = Block(256, 1, 1)
    plan = place([whole, *halves, other])
    assert plan.offsets == (0, 0, 128, 256)
    assert plan.size == plan.peak == 512
    in_place = place([Block(256, 0, 1), Block(256, 1, 2, root=0)])
    assert in_place.offsets == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0, 0, 0), "1 byte"),
        ((1, 2, 1), "ends after"),
        ((1, 0, 0, 48), "power of two"),
        ((1, 0, 0, 0), "power of two"),
    ],
)
def test_blocks_are_checked(arguments: tuple[int, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Block(*arguments)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        (Block(65, 0, 0, root=0), "does not fit"),
        (Block(1, 0, 0, root=0, offset=64), "does not fit"),
        (Block(1, 0, 0, 1, root=0, offset=-1), "does not fit"),
        (Block(1, 0, 0, 16, root=0, offset=8), "does not fit"),
        (Block(1, 0, 0, root=1), "part of itself"),
    ],
)
def test_parts_are_checked(part: Block, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        place([Block(64, 0, 0), part])
