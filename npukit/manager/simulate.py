# SPDX-License-Identifier: MIT
"""Random clients, honest and not, on an engine whose promises are checked at every step.

The checks know nothing of the engine's inside: :class:`Watch` sees the calls, the answers and the
clock, as a client that could see all the others would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from random import Random

from npukit.manager.engine import Engine
from npukit.manager.replay import ManualClock
from npukit.manager.sizes import ModelSize
from npukit.manager.types import (
    Callback,
    CallbackKind,
    Code,
    EndReason,
    EngineError,
    Importance,
    ModelPriority,
    State,
    Status,
    Work,
)

WEIGHTS = {
    ModelSize.LESS_THAN_1GB: 1,
    ModelSize.BETWEEN_1GB_AND_2GB: 2,
    ModelSize.GREATER_THAN_2G: 4,
}
IMPORTANCES = [Importance(n) for n in (100, 200, 200, 200, 300, 400)]
UNLOAD_TIMEOUT = 5.0
LOAD_TIMEOUT = 10.0


class BrokenPromise(AssertionError):
    """The engine broke one of its invariants."""


class Vice(Enum):
    """What a dishonest client does, beside what an honest one does."""

    NEVER_UNLOADS = "never unloads when asked"
    NEVER_LOADS = "never loads what it was granted"
    LOADS_UNGRANTED = "reports loads that it was not granted"
    REUSES_IDS = "asks again under ids that are in use"
    DIES = "dies at any point and comes back"


@dataclass(slots=True)
class Seen:
    """A request as its client sees it."""

    size: ModelSize
    state: State | None = None
    since: float = 0.0


class Watch:
    """Checks what the engine says against what it promises; raises BrokenPromise."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.requests: dict[tuple[str, int], Seen] = {}
        self.importance: dict[str, int] = {}
        self.connected: set[str] = set()
        self.limit = 0
        self.weights: Mapping[ModelSize, int] = WEIGHTS
        self.limited_at = 0.0
        self.drained_to: int | None = None  # what may be charged while a lower budget drains
        self.unload_timeout = 0.0
        self.last_admitted: dict[str, float] = {}  # when a client last was told to load or wait
        self.longest_wait = 0.0
        self.waits: list[float] = []

    def charged(self) -> int:
        return sum(
            self.weights[seen.size]
            for seen in self.requests.values()
            if seen.state in (State.PENDING_LOAD, State.LOADED, State.UNLOADING)
        )

    def waiting(self) -> list[tuple[str, int]]:
        return [r for r, seen in self.requests.items() if seen.state is State.WAIT_FOR_UNLOAD]

    def check(self, callbacks: Iterable[Callback]) -> None:
        """Take in what the engine has said, in order."""
        for callback in callbacks:
            self._take(callback)
        charged = self.charged()
        if charged <= self.limit:
            self.drained_to = None
        elif self.drained_to is None or charged > self.drained_to:
            raise BrokenPromise(f"{charged - self.limit} over the budget")
        else:
            self.drained_to = charged  # what has drained stays out

    def set_limit(self, limit: int, weights: Mapping[ModelSize, int]) -> None:
        """The engine is about to be told of another budget, to which it may have to drain."""
        self.limit, self.weights = limit, weights
        self.limited_at = self.clock.now
        self.drained_to = self.charged()

    def check_waits(self) -> None:
        """Nobody waits beyond the unload deadline, counted from the last change that explains it.

        Such a change is a new budget, or one no less important who was admitted later.
        """
        if not self.unload_timeout:
            return
        for client, number in self.waiting():
            seen = self.requests[client, number]
            since = max(
                (
                    admitted
                    for other, admitted in self.last_admitted.items()
                    if self.importance[other] <= self.importance[client]
                ),
                default=0.0,
            )
            since = max(since, seen.since, self.limited_at)
            if self.clock.now - since > self.unload_timeout + 1e-6:
                raise BrokenPromise(f"{client}/{number} waits since {seen.since}")

    def _take(self, callback: Callback) -> None:
        key = callback.connection, int(callback.request_id)
        seen = self.requests.get(key)
        if seen is None or callback.connection not in self.connected:
            raise BrokenPromise(f"{callback} to one who has no such request")
        if not callback.why:
            raise BrokenPromise(f"{callback} gives no reason")
        state = seen.state
        if callback.kind is CallbackKind.REQUEST_UNLOAD:
            if state is not State.LOADED:
                raise BrokenPromise(f"{callback} to a request that is {state}")
            self._enter(seen, State.UNLOADING)
        elif callback.kind is CallbackKind.COMPLETE:
            if state is State.LOADED and callback.status is Status.REVOKED:
                raise BrokenPromise(f"{callback} without a request to unload")
            if state is State.WAIT_FOR_UNLOAD:
                self._waited(seen)
            del self.requests[key]
        elif callback.status is Status.CAN_LOAD_NOW:
            if state not in (None, State.WAIT_FOR_UNLOAD, State.NOT_PRIORITIZED):
                raise BrokenPromise(f"{callback} to a request that is {state}")
            if state is State.WAIT_FOR_UNLOAD:
                self._waited(seen)
            self._admit(callback.connection, seen, State.PENDING_LOAD)
        elif callback.status is Status.WAIT_FOR_UNLOAD:
            if state not in (None, State.NOT_PRIORITIZED):
                raise BrokenPromise(f"{callback} to a request that is {state}")
            self._admit(callback.connection, seen, State.WAIT_FOR_UNLOAD)
        elif state is not None:
            raise BrokenPromise(f"{callback} to a request that is {state}")
        else:
            self._enter(seen, State.NOT_PRIORITIZED)

    def _enter(self, seen: Seen, state: State) -> None:
        seen.state, seen.since = state, self.clock.now

    def _admit(self, client: str, seen: Seen, state: State) -> None:
        self.last_admitted[client] = self.clock.now
        self._enter(seen, state)

    def _waited(self, seen: Seen) -> None:
        self.waits.append(self.clock.now - seen.since)


@dataclass
class Summary:
    """What happened. Times are simulated seconds; ``samples`` are (time, charged, waiting)."""

    clients: int
    events: int
    seed: int
    callbacks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    grants: Counter[str] = field(default_factory=Counter)
    vices: dict[str, str] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        def listed(counter: Counter[str]) -> str:
            return ", ".join(f"{n:,} {name}" for name, n in counter.most_common()) or "none"

        waits = sorted(self.waits) or [0.0]
        return "\n".join(
            [
                f"{self.events:,} events of {self.clients} clients, seed {self.seed}: "
                "every promise kept",
                f"dishonest: {len(self.vices)} clients",
                f"callbacks: {listed(self.callbacks)}",
                f"refused calls: {listed(self.errors)}",
                f"waits: median {waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.2f} s",
            ]
        )


def jain(shares: Iterable[float]) -> float:
    """Jain's fairness index of ``shares``: 1 when all are equal, 1/n when one has everything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class Simulation:
    """Clients that act at random, one after the other, on one engine."""

    def __init__(self, clients: int, seed: int, dishonest: float) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self.watch = Watch(self.clock)
        self.summary = Summary(clients, 0, seed)
        self.clients = [f"client{n}" for n in range(clients)]
        self.vices: dict[str, Vice] = {}
        for client in self.clients:
            if self.random.random() < dishonest:
                self.vices[client] = self.random.choice(list(Vice))
                self.summary.vices[client] = self.vices[client].value
        self._option("unload_timeout", UNLOAD_TIMEOUT if dishonest else 0)
        self._option("load_timeout", LOAD_TIMEOUT if dishonest else 0)
        self._policy("budget", 8)
        for client in self.clients:
            self._connect(client)
            self._importance(client)

    def step(self) -> None:
        """One event: time passes, then somebody does something."""
        self.summary.events += 1
        self._pass(self.random.expovariate(4.0))
        chance = self.random.random()
        if chance < 0.0005:
            self._policy(*self.random.choice([("budget", 8), ("budget", 5), ("turn_taking", None)]))
        elif chance < 0.001:
            full, weights = self.watch.limit, self.watch.weights
            self.watch.set_limit(min(full, self.random.choice([2, 4])), weights)
            self._tell(self.engine.cap_budget(self.watch.limit))
            self.watch.set_limit(full, weights)
            self._tell(self.engine.cap_budget(None))
        elif chance < 0.05:
            self._importance(self.random.choice(self.clients))
        elif chance < 0.25:
            self._work(self.random.choice(self.clients))
        else:
            self._act(self.random.choice(self.clients))
        self.watch.check_waits()

    def drain(self) -> None:
        """Everybody stops asking and does what it was told, until nothing happens any more."""
        while True:
            self._pass(0.1)
            todo = [
                (client, number, seen.state)
                for (client, number), seen in self.watch.requests.items()
                if seen.state in (State.UNLOADING, State.PENDING_LOAD)
            ]
            if not todo:
                break
            client, number, state = todo[0]
            if state is State.UNLOADING:
                self._call("notify_model_unloaded", client, number)
            else:
                self._load(client, number)
        if self.watch.waiting():
            raise BrokenPromise(f"{self.watch.waiting()} wait for ever")

    # ---- what clients do ----------------------------------------------------------------------

    def _act(self, client: str) -> None:
        """The client's next step: first what it was asked for, else something new."""
        vice = self.vices.get(client)
        mine = [(n, s) for (who, n), s in self.watch.requests.items() if who == client]
        if vice is Vice.DIES and self.random.random() < 0.1:
            self._die(client)
            return
        if vice is Vice.LOADS_UNGRANTED and mine and self.random.random() < 0.5:
            self._load(client, self.random.choice(mine)[0])
            return
        if vice is Vice.REUSES_IDS and mine and self.random.random() < 0.5:
            self._ask(client, self.random.choice(mine)[0])
            return
        for number, seen in mine:
            if seen.state is State.UNLOADING and vice is not Vice.NEVER_UNLOADS:
                self._call("notify_model_unloaded", client, number)
                return
            if seen.state is State.PENDING_LOAD and vice is not Vice.NEVER_LOADS:
                self._load(client, number)
                return
        if len(mine) < 4 and self.random.random() < 0.7:
            used = {number for number, _ in mine}
            self._ask(client, next(number for number in count() if number not in used))
        elif mine:
            number, seen = self.random.choice(mine)
            if seen.state is State.LOADED and self.random.random() < 0.5:
                self._call("notify_model_unloaded", client, number)
            elif self.random.random() < 0.2:
                self._call("cancel_model_load", client, number)

    def _ask(self, client: str, number: int) -> None:
        size = self.random.choice(list(ModelSize))
        key = client, number
        if key in self.watch.requests:
            self._refused("can_load_model", Code.DUPLICATE_REQUEST, client, number, size)
            return
        self.watch.requests[key] = Seen(size)
        priority = self.random.choice(list(ModelPriority))
        self._tell(self.engine.can_load_model(client, number, size, priority))
        if key in self.watch.requests and self.watch.requests[key].state is None:
            raise BrokenPromise(f"{client}/{number} got no answer")

    def _load(self, client: str, number: int) -> None:
        seen = self.watch.requests[client, number]
        if seen.state in (State.PENDING_LOAD, State.LOADED, State.UNLOADING):
            self._call("notify_model_loaded", client, number)
            if seen.state is State.PENDING_LOAD:
                seen.state = State.LOADED
        else:
            self._refused("notify_model_loaded", Code.NOT_GRANTED, client, number)

    def _die(self, client: str) -> None:
        for key in [key for key in self.watch.requests if key[0] == client]:
            del self.watch.requests[key]
        self.watch.connected.discard(client)
        self._call("disconnect", client)
        self._connect(client)

    def _connect(self, client: str) -> None:
        self.watch.connected.add(client)
        self._call("connect", client, client)

    def _work(self, client: str) -> None:
        reason = self.random.choice([EndReason.COMPLETED, EndReason.COMPLETED, *EndReason])
        if any(
            who == client and seen.state in (State.LOADED, State.UNLOADING)
            for (who, _), seen in self.watch.requests.items()
        ):
            self._tell(self.engine.work_ended(Work(client), reason))

    # ---- what happens to them -----------------------------------------------------------------

    def _importance(self, client: str) -> None:
        value = self.random.choice(IMPORTANCES)
        self.watch.importance[client] = value
        self._call("set_priority", client, value)

    def _policy(self, name: str, limit: int | None) -> None:
        weights = WEIGHTS if limit else dict.fromkeys(ModelSize, 1)
        self.watch.set_limit(limit or 1, weights)
        self._call("set_policy", name, limit)

    def _option(self, name: str, seconds: float) -> None:
        if name == "unload_timeout":
            self.watch.unload_timeout = seconds
        self._call("set_option", name, seconds)

    def _pass(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while (due := self.engine.next_deadline()) is not None and due <= until:
            self.clock.now = max(self.clock.now, due)
            self._tell(self.engine.tick())
        self.clock.now = until

    def _call(self, name: str, *args: object) -> None:
        self._tell(getattr(self.engine, name)(*args))

    def _refused(self, name: str, code: Code, *args: object) -> None:
        try:
            callbacks = getattr(self.engine, name)(*args)
        except EngineError as error:
            if error.code is not code:
                raise BrokenPromise(f"{name}{args}: {error.code} instead of {code}") from error
            self.summary.errors[code] += 1
        else:
            raise BrokenPromise(f"{name}{args} was not refused but gave {callbacks}")

    def _tell(self, callbacks: list[Callback]) -> None:
        self.watch.check(callbacks)
        for callback in callbacks:
            name = callback.kind if callback.status is None else callback.status.name
            self.summary.callbacks[str(name)] += 1
            if callback.status is Status.CAN_LOAD_NOW:
                self.summary.grants[callback.connection] += 1


def simulate(
    clients: int = 8, events: int = 20_000, seed: int = 0, *, dishonest: float = 0.3
) -> Summary:
    """Let ``clients`` act ``events`` times; a share ``dishonest`` of them has one vice each.

    With none dishonest there are no deadlines, and in the end nobody may be left waiting. Raises
    BrokenPromise where the engine does.
    """
    simulation = Simulation(clients, seed, dishonest)
    every = max(1, events // 1000)
    for number in range(events):
        simulation.step()
        if number % every == 0:
            watch = simulation.watch
            sample = simulation.clock.now, watch.charged(), len(watch.waiting())
            simulation.summary.samples.append(sample)
    if not dishonest:
        simulation.drain()
    simulation.summary.waits = simulation.watch.waits
    return simulation.summary
