# SPDX-License-Identifier: MIT
import errno
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.sim.core import Errno
from npukit.sim.iova import BestFit, TopDown

PAGE = 4096


def test_exact_addresses_are_packed_from_the_top() -> None:
    domain = TopDown()
    assert domain.take(PAGE, True) == 0xFFFFF000
    assert domain.take(5 * PAGE, True) == 0xFFFFA000
    assert domain.take(1, True) == 0xFFFF9000


def test_other_addresses_are_aligned_to_a_power_of_two() -> None:
    domain = TopDown()
    assert domain.take(PAGE, False) == 0xFFFFF000
    assert domain.take(5 * PAGE, False) == 0xFFFF0000
    assert domain.take(PAGE, False) == 0xFFFEF000
    # From 32 pages on the length is exact, the alignment is not: 64 pages here.
    assert domain.take(33 * PAGE, False) == 0xFFFC0000
    assert domain.take(PAGE, True) == 0xFFFBF000


def test_the_search_goes_on_below_the_last_range() -> None:
    domain = TopDown()
    first, second, third = (domain.take(PAGE, True) for _ in range(3))
    domain.free(first, True)
    assert domain.take(PAGE, True) == first  # the freed range is above: the search moves up
    domain.free(third, True)
    assert domain.take(PAGE, True) == third
    assert second == 0xFFFFE000


def test_a_freed_power_of_two_comes_back_first() -> None:
    domain = TopDown()
    one, two = domain.take(4 * PAGE, False), domain.take(4 * PAGE, False)
    domain.free(one, False)
    domain.free(two, False)
    assert domain.take(4 * PAGE, False) == two
    assert domain.take(4 * PAGE, False) == one


def test_a_full_domain_says_so_and_works_again_after_a_free() -> None:
    domain = TopDown()
    half = domain.take(1 << 31, True)
    rest = domain.take((1 << 31) - PAGE, True)
    assert rest == PAGE  # address 0 is never given
    with pytest.raises(Errno) as caught:
        domain.take(PAGE, True)
    assert caught.value.code == errno.ENOSPC
    domain.free(half, True)
    assert domain.take(1 << 31, True) == half


def test_cached_ranges_are_given_up_when_space_is_short() -> None:
    domain = TopDown()
    small = domain.take(PAGE, False)
    domain.take((1 << 32) - 2 * PAGE, True)
    domain.free(small, False)
    assert domain.take(2, True) == small


def test_best_fit_takes_the_smallest_hole_then_the_newest() -> None:
    space = BestFit(0, 1 << 32, PAGE)
    a, b, c, d, e = (space.take(size) for size in (8 * PAGE, PAGE, 2 * PAGE, PAGE, 2 * PAGE))
    assert (a, b, c) == (0, 8 * PAGE, 9 * PAGE)
    space.free(a)
    space.free(c)
    assert space.take(PAGE) == c  # the smaller hole, though it is higher
    space.free(d)  # now one hole of two pages follows c's first
    space.free(e)
    assert space.take(8 * PAGE) == a


def test_best_fit_aligns_and_keeps_unaligned_lengths() -> None:
    space = BestFit(0, 1 << 32, PAGE)
    assert space.take(100) == 0
    assert space.take(100) == PAGE
    with pytest.raises(Errno):
        space.take(0)
    with pytest.raises(Errno):
        space.take(1 << 32)


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 5)), max_size=60))
def test_ranges_never_overlap_and_all_comes_back(steps: list[tuple[int, bool, int]]) -> None:
    domain, space = TopDown(), BestFit(0, 1 << 20, PAGE)
    held: list[tuple[int, int, bool, int]] = []
    for pages, exact, drop in steps:
        size = pages * PAGE
        try:
            other = space.take(size)
        except Errno:
            continue
        held.append((domain.take(size, exact), size, exact, other))
        if drop == 0:
            address, _, was_exact, other = held.pop(0)
            domain.free(address, was_exact)
            space.free(other)
        for column in (0, 3):
            ranges = sorted((row[column], row[column] + row[1]) for row in held)
            pairs = itertools.pairwise(ranges)
            assert all(end <= start for (_, end), (start, _) in pairs)
            assert all(start % PAGE == 0 for start, _ in ranges)
    for address, _, exact, other in held:
        domain.free(address, exact)
        space.free(other)
    assert space.take(1 << 20) == 0
    assert domain.take((1 << 32) - PAGE, True) == PAGE
