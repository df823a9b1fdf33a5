# SPDX-License-Identifier: MIT
"""How large a model is, and what is charged in each dimension of a budget.

A dimension is a name: a memory domain (amounts in bytes), ``contexts`` (hardware contexts of the
device), or a name that ends in ``_per_process`` (counted for each connection by itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from math import inf
from typing import TYPE_CHECKING

from npukit.manager.types import MOST, refuse

if TYPE_CHECKING:
    from npukit.manager.ranking import Copy, Request

GIB = 1 << 30

WEIGHT = "weight"
MODELS = "models"
CONTEXTS = "contexts"
PER_PROCESS = "_per_process"
GRAPHS_PER_PROCESS = "graphs_per_process"

Dimension = str | tuple[str, str]
"""A dimension's name, or (name, connection) for what is counted per process."""

Demand = Mapping[str, int] | Mapping[Dimension, int]


class ModelSize(Enum):
    """The three sizes that Android's clients may name."""

    LESS_THAN_1GB = "S"
    BETWEEN_1GB_AND_2GB = "M"
    GREATER_THAN_2G = "L"


Size = ModelSize | int | Mapping[str, int]
"""A bucket, a number of bytes, or bytes (or a count) by dimension."""


def check_size(size: Size) -> None:
    """Raises EngineError(INVALID_ARGUMENT) for what is no size."""
    if isinstance(size, ModelSize):
        return
    if isinstance(size, Mapping):
        check_amounts("size", size)
        if any(size.values()):
            return
    elif isinstance(size, int) and 0 < size <= MOST:
        return
    refuse("size", size, "is no model size")


def check_amounts(what: str, amounts: object) -> None:
    """Raises EngineError(INVALID_ARGUMENT) for what is no mapping of dimensions to amounts."""
    if not isinstance(amounts, dict | Mapping):  # dict first: asking Mapping takes longer
        refuse(what, amounts, "is no mapping of dimensions")
    for name, n in amounts.items():
        if not isinstance(name, str):
            refuse(what, name, "is no dimension's name")
        if not isinstance(n, int) or not 0 <= n <= MOST:
            refuse(what, n, f"is no amount of {name}")


@cache
def is_bytes(dimension: str) -> bool:
    """Whether ``dimension`` is a memory domain."""
    return dimension not in (WEIGHT, MODELS) and is_of_copy(dimension)


@cache
def is_of_copy(dimension: str) -> bool:
    """Whether a copy that several requests share takes ``dimension`` once, and not each of them."""
    return dimension != CONTEXTS and not dimension.endswith(PER_PROCESS)


def bucket(size: Size) -> ModelSize:
    """The bucket of ``size``; exact sizes by their bytes in all domains together."""
    if isinstance(size, ModelSize):
        return size
    if isinstance(size, Mapping):
        count = sum(n for name, n in size.items() if is_bytes(name))
    else:
        count = size
    if count < GIB:
        return ModelSize.LESS_THAN_1GB
    return ModelSize.BETWEEN_1GB_AND_2GB if count <= 2 * GIB else ModelSize.GREATER_THAN_2G


def quantity(dimension: Dimension, n: float) -> str:
    """``n`` for people: bytes as GiB, nothing less than nothing."""
    name = dimension if isinstance(dimension, str) else dimension[0]
    return f"{max(n, 0) / GIB:.2f} GiB" if is_bytes(name) else str(max(n, 0))


def amount(dimension: Dimension, n: float) -> str:
    """``n`` with what it is an amount of, for people."""
    name = dimension if isinstance(dimension, str) else dimension[0]
    of = " of" if is_bytes(name) else ""
    return f"{quantity(dimension, n)}{of} {name.removesuffix(PER_PROCESS)}"


class Ledger:
    """What requests hold of each limited dimension; a copy that several share is held once."""

    __slots__ = ("copies", "limits", "used")

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self.used: dict[Dimension, int] = {}
        self.copies: dict[Copy, int] = {}

    def limit(self, dimension: Dimension) -> float:
        """The limit of ``dimension``, infinite where there is none."""
        return self.limits.get(dimension if isinstance(dimension, str) else dimension[0], inf)

    def cost(self, requests: list[Request]) -> Demand:
        """What ``requests`` would add to ``used``."""
        if len(requests) == 1 and requests[0].copy is None:
            return requests[0].demand
        cost: dict[Dimension, int] = {}
        fresh: set[Copy] = set()
        for request in requests:
            demands = [request.demand]
            copy = request.copy
            if copy is not None and copy not in self.copies and copy not in fresh:
                fresh.add(copy)
                demands.append(copy.demand)
            for demand in demands:
                for dimension, n in demand.items():
                    cost[dimension] = cost.get(dimension, 0) + n
        return cost

    def shortage(self, requests: list[Request]) -> tuple[Dimension, int, float] | None:
        """The first (dimension, amount needed, amount left) that does not suffice, or None."""
        for dimension, n in self.cost(requests).items():
            left = self.limit(dimension) - self.used.get(dimension, 0)
            if n > max(left, 0):
                return dimension, n, left
        return None

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._change(request.demand, 1)
            copy = request.copy
            if copy is not None:
                holders = self.copies.get(copy, 0)
                if not holders:
                    self._change(copy.demand, 1)
                self.copies[copy] = holders + 1

    def remove(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._change(request.demand, -1)
            copy = request.copy
            if copy is not None:
                self.copies[copy] -= 1
                if not self.copies[copy]:
                    del self.copies[copy]
                    self._change(copy.demand, -1)

    def _change(self, demand: Demand, sign: int) -> None:
        used = self.used
        for dimension, n in demand.items():
            now = used.get(dimension, 0) + sign * n
            if now:
                used[dimension] = now
            else:
                used.pop(dimension, None)
