# SPDX-License-Identifier: MIT
"""The tree against lists."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from npukit.manager.tree import NIL, Node, Tree, taken_before


def node(key, weight, taken, waiting):
    made = Node()
    made.key = key
    made.own_total = weight if taken else 0
    made.own_need = inf if taken else weight
    made.own_waiting = waiting
    return made


def first_misfit(nodes, limit, before):
    for each in nodes:
        if before + each.own_need <= limit or before + each.own_total > limit:
            return each, before
        before += each.own_total
    return None


def depth(root):
    return 0 if root is NIL else 1 + max(depth(root.left), depth(root.right))


NODES = st.lists(
    st.builds(node, st.integers(0, 1000), st.integers(0, 5), st.booleans(), st.booleans()),
    unique_by=lambda each: each.key,
    max_size=40,
)


@given(NODES, st.data())
def test_it_is_a_sorted_list_with_sums(nodes, data):
    tree = Tree()
    inside = []
    for each in nodes:
        tree.insert(each)
        inside.append(each)
        if data.draw(st.booleans()):
            out = data.draw(st.sampled_from(inside))
            inside.remove(out)
            tree.remove(out)
        if inside:
            changed = data.draw(st.sampled_from(inside))
            changed.own_total, changed.own_need = data.draw(st.sampled_from([(3, inf), (0, 2)]))
            tree.refresh(changed)
        inside.sort(key=lambda each: each.key)
        assert list(tree) == inside
        assert list(tree.those_waiting()) == [each for each in inside if each.own_waiting]
        assert [taken_before(each) for each in inside] == [
            sum(before.own_total for before in inside[:place]) for place in range(len(inside))
        ]
        limit = data.draw(st.integers(0, 40))
        before = data.draw(st.integers(0, min(limit, 5)))
        assert tree.first_misfit(limit, before) == first_misfit(inside, limit, before)
        key = data.draw(st.integers(0, 1000))
        assert tree.first_from(key) is next((each for each in inside if each.key >= key), None)
        if inside:
            assert tree.first() is inside[0]


def test_the_order_of_events_does_not_make_it_deep():
    tree = Tree()
    for key in range(4096):
        tree.insert(node(key, 1, True, False))
    assert depth(tree.root) < 60  # log2 is 12; a list would be 4096
