# SPDX-License-Identifier: MIT
"""A sorted tree that knows, for every subtree, where greedy admission went wrong.

Admission walks the requests in rank order and takes each one that still fits. Of every node the
tree keeps three sums over its subtree, from which the first request that is wrongly in or wrongly
out is found by one descent:

* ``total``: the weight of those taken;
* ``need``: the smallest limit at which one of those not taken would fit, counting only what this
  subtree takes before it;
* ``waiting``: whether one is taken but has not been granted yet.

The tree is a treap: sorted by ``key``, heap-ordered by a random number, so its depth is logarithmic
whatever the order of events. The random numbers shape the tree and no decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random
from typing import Any, Generic, TypeVar, cast

_chance = Random().random


class Node:
    """What can stand in a tree; ``own_*`` is its own share of the sums, set before refresh()."""

    __slots__ = (
        "chance",
        "key",
        "left",
        "need",
        "own_need",
        "own_total",
        "own_waiting",
        "right",
        "total",
        "up",
        "waiting",
    )

    key: Any
    up: Node
    left: Node
    right: Node
    own_total: int
    own_need: float
    own_waiting: bool
    total: int
    need: float
    waiting: bool

    def __init__(self) -> None:
        self.key = None  # None: in no tree
        self.chance = _chance()
        self.up = self.left = self.right = NIL
        self.own_total = self.total = 0
        self.own_need = self.need = inf
        self.own_waiting = self.waiting = False


NIL: Node = Node.__new__(Node)
"""The empty subtree. Its sums are neutral, so that no code need ask whether a child is there."""
Node.__init__(NIL)

N = TypeVar("N", bound=Node)


class Tree(Generic[N]):
    """Nodes in the order of their keys, which must differ and must not change while inside."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: Node = NIL

    def insert(self, node: N) -> None:
        node.left = node.right = NIL
        key = node.key
        parent, below = NIL, self.root
        while below is not NIL:
            parent = below
            below = below.left if key < below.key else below.right
        node.up = parent
        if parent is NIL:
            self.root = node
        elif key < parent.key:
            parent.left = node
        else:
            parent.right = node
        node.total = -1  # a sum that it cannot have, so that refresh() does not stop at once
        self.refresh(node)
        while node.up is not NIL and node.chance < node.up.chance:
            self._raise(node)

    def remove(self, node: N) -> None:
        while node.left is not NIL and node.right is not NIL:
            self._raise(node.left if node.left.chance < node.right.chance else node.right)
        child, parent = node.right if node.left is NIL else node.left, node.up
        self._replace(node, child)
        self.refresh(parent)

    def refresh(self, node: Node) -> None:
        """Bring the sums of ``node`` and of all above it up to date."""
        while node is not NIL:
            left, right = node.left, node.right
            before = left.total
            need = left.need
            if before + node.own_need < need:
                need = before + node.own_need
            before += node.own_total
            if before + right.need < need:
                need = before + right.need
            total = before + right.total
            waiting = left.waiting or node.own_waiting or right.waiting
            if total == node.total and need == node.need and waiting == node.waiting:
                return  # nothing above can have changed either
            node.total, node.need, node.waiting = total, need, waiting
            node = node.up

    def _raise(self, node: Node) -> None:
        """Rotate ``node`` above its parent."""
        parent = node.up
        self._replace(parent, node)
        if node is parent.left:
            parent.left = node.right
            if node.right is not NIL:
                node.right.up = parent
            node.right = parent
        else:
            parent.right = node.left
            if node.left is not NIL:
                node.left.up = parent
            node.left = parent
        parent.up = node
        # Of the two together nothing has changed, and that is now what is below node.
        node.total, node.need, node.waiting = parent.total, parent.need, parent.waiting
        self.refresh(parent)

    def _replace(self, old: Node, new: Node) -> None:
        """Let ``new`` take the place of ``old`` under its parent."""
        parent = old.up
        if parent is NIL:
            self.root = new
        elif parent.left is old:
            parent.left = new
        else:
            parent.right = new
        if new is not NIL:
            new.up = parent

    def __iter__(self) -> Iterator[N]:
        return self._in_order(waiting=False)

    def those_waiting(self) -> Iterator[N]:
        """The nodes whose own share is waiting, in order, without a look at the others."""
        return self._in_order(waiting=True)

    def _in_order(self, waiting: bool) -> Iterator[N]:
        path: list[Any] = []
        node: Any = self.root
        while True:
            while node is not NIL and (node.waiting or not waiting):
                path.append(node)
                node = node.left
            if not path:
                return
            node = path.pop()
            if node.own_waiting or not waiting:
                yield node
            node = node.right

    def first(self) -> N:
        """The first node of a tree that is not empty."""
        node = self.root
        while node.left is not NIL:
            node = node.left
        return cast(N, node)

    def first_from(self, key: Any) -> N | None:
        """The first node whose key is not below ``key``."""
        found = NIL
        node = self.root
        while node is not NIL:
            if node.key < key:
                node = node.right
            else:
                found, node = node, node.left
        if found is NIL:
            return None
        return cast(N, found)

    def first_misfit(self, limit: int, before: int) -> tuple[N, int] | None:
        """The first node whose share is wrong when ``before`` is taken already.

        Wrong is a taken one that exceeds the limit, or one not taken that would fit. Returned with
        what is taken before it. ``before`` itself must not exceed the limit.
        """
        node: Any = self.root
        if before + node.need > limit and before + node.total <= limit:
            return None
        while True:
            left = node.left
            if before + left.need <= limit or before + left.total > limit:
                node = left
                continue
            before += left.total
            if before + node.own_need <= limit or before + node.own_total > limit:
                return node, before
            before += node.own_total
            node = node.right


def taken_before(node: Node) -> int:
    """The weight taken by the nodes that come before ``node`` in its tree."""
    total = node.left.total
    while node.up is not NIL:
        if node is node.up.right:
            total += node.up.left.total + node.up.own_total
        node = node.up
    return total
