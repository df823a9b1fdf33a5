# SPDX-License-Identifier: MIT
"""Policies: what a model weighs, how much may be in at once, and which principal goes first.

A policy holds no state and decides nothing by itself: the engine ranks and admits by these three
answers. A package adds its own by a subclass of :class:`Policy` under the entry point group
``npukit.policies``; :func:`discover` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar

from npukit.manager.sizes import (
    GIB,
    MODELS,
    WEIGHT,
    ModelSize,
    Size,
    bucket,
    check_amounts,
    is_bytes,
)
from npukit.manager.types import MOST, check_type, refuse

MaxBudget = int | Mapping[str, int]
Weights = Mapping[ModelSize | str, int]


class Policy:
    """The interface of policies.

    ``limits`` bounds dimensions by name; what it does not name is not limited. What a policy
    raises goes through the engine to the caller, and the call has changed nothing.
    """

    name: ClassVar[str]
    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, max_budget: MaxBudget | None = None, weights: Weights | None = None) -> None:
        """Takes set_policy's parameters; raises EngineError(INVALID_ARGUMENT) for wrong ones."""
        if max_budget is not None or weights:
            refuse("parameters", (max_budget, weights), f"are more than policy {self.name} has")

    def demand(self, size: Size) -> Mapping[str, int]:
        """What one model of ``size`` takes, by dimension."""
        return {}

    def precedence(self, importance: int, last_completed: int) -> Any:
        """A sort key for principals, first goes first; all keys can be compared with each other.

        ``last_completed`` grows with each completed piece of work of any principal; 0 is never, and
        -1 stands for a model that is still within its minimal residency.
        """
        return importance, last_completed


class StatusQuo(Policy):
    """Everybody loads at once; nobody is asked to leave."""

    name = "status_quo"


class TurnTaking(Policy):
    """One model at a time, whatever its size."""

    name = "turn_taking"
    limits = MappingProxyType({MODELS: 1})

    def demand(self, size: Size) -> Mapping[str, int]:
        return self.limits


class Budget(Policy):
    """As many models as fit.

    ``max_budget`` is a number (default: the weight of the large bucket), against which a model
    counts the weight of its bucket, ``weights`` (default 1, 2 and 4); or a mapping of dimension to
    limit, against which it counts exactly (``weight`` cannot be among them). Of a mapping's
    dimensions a size in plain bytes takes from the first memory domain, and a bucket takes its
    upper bound there (1, 2 and 4 GiB, or ``weights`` in bytes); each model is one of each count
    unless its size says otherwise.
    """

    name = "budget"

    def __init__(self, max_budget: MaxBudget | None = None, weights: Weights | None = None) -> None:
        if weights is not None:
            check_type("weights", weights, Mapping)
        exact = isinstance(max_budget, Mapping)
        unit = GIB if exact else 1
        self._weights = {
            ModelSize.LESS_THAN_1GB: 1 * unit,
            ModelSize.BETWEEN_1GB_AND_2GB: 2 * unit,
            ModelSize.GREATER_THAN_2G: 4 * unit,
        }
        for key, weight in (weights or {}).items():
            try:
                self._weights[ModelSize(key)] = weight
            except ValueError:
                refuse("weights", key, "is no bucket")
        if isinstance(max_budget, Mapping):
            check_amounts("max_budget", max_budget)
            if WEIGHT in max_budget:
                why = f"limits {WEIGHT}, which only a plain number does: a mapping counts exactly"
                refuse("max_budget", dict(max_budget), why)
            self.limits = dict(max_budget)
        else:
            large = self._weights[ModelSize.GREATER_THAN_2G]
            self.limits = {WEIGHT: large if max_budget is None else max_budget}
        for number in (*self.limits.values(), *self._weights.values()):
            if not isinstance(number, int) or not 0 < number <= MOST:
                refuse("max_budget or weights", number, "is no budget and no weight")
        self._domain = next((name for name in self.limits if is_bytes(name)), None)
        self._by_bucket = {size: self._demand(size) for size in ModelSize}

    def demand(self, size: Size) -> Mapping[str, int]:
        return self._by_bucket[size] if isinstance(size, ModelSize) else self._demand(size)

    def _demand(self, size: Size) -> Mapping[str, int]:
        if WEIGHT in self.limits:
            return {WEIGHT: self._weights[bucket(size)]}
        given: Mapping[str, int]
        if isinstance(size, Mapping):
            given = size
        elif self._domain is None:
            given = {}
        else:
            count = self._weights[size] if isinstance(size, ModelSize) else size
            given = {self._domain: count}
        return {name: given.get(name, 0 if is_bytes(name) else 1) for name in self.limits}


BUILTIN: Mapping[str, type[Policy]] = {
    policy.name: policy for policy in (StatusQuo, TurnTaking, Budget)
}


def discover() -> dict[str, type[Policy]]:
    """The built-in policies and those of installed packages, by name.

    Raises TypeError where an entry point leads to something other than a Policy class.
    """
    found = dict(BUILTIN)
    for entry in entry_points(group="npukit.policies"):
        found[entry.name] = as_policy(entry.name, entry.load())
    return found


def as_policy(name: str, found: object) -> type[Policy]:
    """``found``, if it is a policy class; raises TypeError otherwise."""
    if isinstance(found, type) and issubclass(found, Policy):
        return found
    raise TypeError(f"{name} of the entry points npukit.policies is no Policy but {found!r}")
