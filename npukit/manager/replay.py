# SPDX-License-Identifier: MIT
"""Scenarios as data: what clients do, step by step, and what they must be told.

The format is JSON::

    {"scenarios": [{"name", "steps": [{"event", "args", "callbacks"}], "end"}]}

A client's name is its connection and, up to a ``#``, its principal: ``A#2`` is a second connection
of ``A``; it connects with its first request. ``callbacks`` are strings as ``str(Callback)`` gives
them, a refused call is ``WHO.error(CODE)``; ``end`` lists [client, id, state] of what is live then.

Events and their arguments:

=========== ==========================================================================
policy      name[, {"max": budget, "weights": {bucket: weight}}]
prio        principal, importance
req         client, id, size (S, M, L, bytes, or {dimension: amount})[, N or B[, content]]
gang        client, [[id, size, ...], ...]
loaded      client, id (also ``unloaded`` and ``cancel``)
die         client
work_req    principal (also ``work_start`` with a reason, default INITIAL)
work_end    principal, reason
opt         unload_timeout, load_timeout or min_res, seconds
cap         budget or null
health      OK, LOST or QUARANTINED
advance     seconds by which the clock moves on
=========== ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.manager.engine import Engine, LoadRequest
from npukit.manager.sizes import ModelSize
from npukit.manager.types import (
    Callback,
    EndReason,
    EngineError,
    Health,
    Importance,
    ModelPriority,
    StartReason,
    Work,
)


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class Step:
    event: str
    args: tuple[Any, ...]
    callbacks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.event}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]
    end: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay left its scenario: ``step`` counts from 1, ``event`` may be "end"."""

    step: int
    event: str
    expected: tuple[str, ...]
    got: tuple[str, ...]

    def __str__(self) -> str:
        def listed(lines: tuple[str, ...]) -> str:
            return ", ".join(lines) or "(none)"

        return (
            f"step {self.step} {self.event}: expected {listed(self.expected)}; "
            f"got {listed(self.got)}"
        )


def read(data: Mapping[str, Any]) -> list[Scenario]:
    """The scenarios of parsed JSON. Raises ValueError, naming the place, where it is malformed."""
    try:
        return [
            Scenario(
                scenario["name"],
                tuple(
                    Step(step["event"], tuple(step["args"]), tuple(step["callbacks"]))
                    for step in scenario["steps"]
                ),
                tuple((client, number, state) for client, number, state in scenario["end"]),
            )
            for scenario in data["scenarios"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no scenario file: {type(error).__name__} {error}") from error


def load(path: Path | str) -> list[Scenario]:
    """The scenarios of a file."""
    return read(json.loads(Path(path).read_text(encoding="utf-8")))


def replay(scenario: Scenario) -> list[Difference]:
    """Play ``scenario`` on a new engine; [] when everything came as it should."""
    player = Player()
    differences = []
    for number, step in enumerate(scenario.steps, 1):
        got = tuple(player.play(step))
        if got != step.callbacks:
            differences.append(Difference(number, str(step), step.callbacks, got))
    expected = tuple(sorted(f"{client}/{number} {state}" for client, number, state in scenario.end))
    got = tuple(sorted(player.end()))
    if got != expected:
        differences.append(Difference(len(scenario.steps), "end", expected, got))
    return differences


class Player:
    """Plays steps on an engine of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self._connected: set[str] = set()

    def play(self, step: Step) -> Iterator[str]:
        """Yields what the step caused, as a scenario file writes it. ValueError: no such event."""
        event = _EVENTS.get(step.event)
        if event is None:
            raise ValueError(f"no event is called {step.event!r}")
        who = str(step.args[0]) if step.event in _CLIENT_EVENTS else "caller"
        try:
            yield from map(str, event(self, *step.args))
        except EngineError as error:
            yield f"{who}.error({error.code})"

    def end(self) -> Iterator[str]:
        """What is live, as ``CLIENT/ID STATE``."""
        for request in self.engine.info()["requests"]:
            yield f"{request['connection']}/{request['id']} {request['state']}"

    def connect(self, client: str) -> None:
        if client not in self._connected:
            self.engine.connect(client, client.partition("#")[0])
            self._connected.add(client)

    def policy(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Callback]:
        parameters = parameters or {}
        return self.engine.set_policy(name, parameters.get("max"), parameters.get("weights"))

    def request(self, client: str, *request: Any) -> list[Callback]:
        self.connect(client)
        return self.engine.can_load_gang(client, [_load_request(*request)])

    def gang(self, client: str, requests: list[list[Any]]) -> list[Callback]:
        self.connect(client)
        return self.engine.can_load_gang(client, [_load_request(*request) for request in requests])

    def loaded(self, client: str, number: int) -> list[Callback]:
        self.connect(client)
        return self.engine.notify_model_loaded(client, number)

    def unloaded(self, client: str, number: int) -> list[Callback]:
        self.connect(client)
        return self.engine.notify_model_unloaded(client, number)

    def cancel(self, client: str, number: int) -> list[Callback]:
        self.connect(client)
        return self.engine.cancel_model_load(client, number)

    def die(self, client: str) -> list[Callback]:
        self._connected.discard(client)
        return self.engine.disconnect(client)

    def option(self, name: str, seconds: float) -> list[Callback]:
        return self.engine.set_option("min_residency" if name == "min_res" else name, seconds)

    def advance(self, seconds: float) -> list[Callback]:
        """Moves from one deadline to the next, so that none is seen late."""
        until = self.clock.now + seconds
        callbacks = []
        while (due := self.engine.next_deadline()) is not None and due <= until:
            self.clock.now = max(self.clock.now, due)
            callbacks += self.engine.tick()
        self.clock.now = until
        return callbacks


def _load_request(
    number: int, size: Any = "S", priority: str = "N", content: str | None = None
) -> LoadRequest:
    bucket = ModelSize(size) if isinstance(size, str) else size
    return LoadRequest(number, bucket, ModelPriority(priority), content)


_CLIENT_EVENTS = frozenset({"req", "gang", "loaded", "unloaded", "cancel", "die"})

_EVENTS: Mapping[str, Callable[..., list[Callback]]] = {
    "policy": Player.policy,
    "prio": lambda player, who, value: player.engine.set_priority(who, Importance(value)),
    "req": Player.request,
    "gang": Player.gang,
    "loaded": Player.loaded,
    "unloaded": Player.unloaded,
    "cancel": Player.cancel,
    "die": Player.die,
    "work_req": lambda player, who: player.engine.work_requested(Work(who)),
    "work_start": lambda player, who, reason="INITIAL": player.engine.work_started(
        Work(who), StartReason(reason)
    ),
    "work_end": lambda player, who, reason: player.engine.work_ended(Work(who), EndReason(reason)),
    "opt": Player.option,
    "cap": lambda player, budget: player.engine.cap_budget(budget),
    "health": lambda player, health: player.engine.set_health(Health(health)),
    "advance": Player.advance,
}
