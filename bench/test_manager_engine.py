# SPDX-License-Identifier: MIT
"""Decisions of the manager's engine a second, beside a reference that sorts everything each time.

The events are recorded once, from a run in which clients answer what they are told, and then played
to both: 20 % can_load, 20 % loaded, 15 % unloaded, 5 % cancel or death, 5 % priority, 35 % work.
A request that the engine itself has cancelled is one fewer to unload, so 7 to 9 of 100 events are
unload notices that come too late and are refused; 1 or 2 are such loads. Importances are few, so
most clients have equals, and six out of seven requests fit. The target is 50,000 events a second at
64 live requests and 20,000 at 4,096.
"""

import sys
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from random import Random

import pytest

from npukit.manager.engine import Engine
from npukit.manager.replay import ManualClock
from npukit.manager.sizes import ModelSize
from npukit.manager.types import (
    EndReason,
    EngineError,
    Health,
    Importance,
    StartReason,
    State,
    Work,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from manager.reference import Reference

LIVE = (8, 64, 512, 4096)
PER_CLIENT = 4
IMPORTANCES = [Importance(n) for n in (100, 200, 200, 300, 400)]
MIX = {"can_load": 20, "loaded": 20, "unloaded": 15, "leave": 5, "priority": 5, "work": 35}


class Recorder:
    """Runs clients on an engine and notes each call that they make."""

    def __init__(self, live):
        self.random = Random(live)
        self.engine = Engine(ManualClock())
        self.calls = []
        self.ids = count(1)
        self.clients = [f"client{n}" for n in range(max(2, live // PER_CLIENT))]
        self.states = {}
        self.live = live
        self.call("set_policy", "budget", 2 * live)
        for client in self.clients:
            self.call("connect", client, client)
            self.call("set_priority", client, self.random.choice(IMPORTANCES))
        self.call(
            "set_health", Health.QUARANTINED
        )  # so that nothing is decided until all are there
        while len(self.states) < live:
            self.can_load()
        self.call("set_health", Health.OK)
        for request, state in list(self.states.items()):
            if state is State.PENDING_LOAD:
                self.call("notify_model_loaded", *request)
        self.start = len(self.calls)

    def call(self, name, *args):
        self.calls.append((name, args))
        callbacks = getattr(self.engine, name)(*args)
        for callback in callbacks:
            request = callback.connection, callback.request_id
            if callback.kind == "complete":
                self.states.pop(request)
            elif callback.kind == "request_unload":
                self.states[request] = State.UNLOADING
            else:
                name = "PENDING_LOAD" if callback.status == 0 else callback.status.name
                self.states[request] = State(name)

    def step(self):
        kind = self.random.choices(list(MIX), list(MIX.values()))[0]
        if not self.states:
            self.can_load()
        elif kind in ("unloaded", "leave") and len(self.states) < self.live:
            self.late()  # else the requests that the engine cancels would have to come back
        else:
            getattr(self, kind)()

    def can_load(self):
        client, size = self.random.choice(self.clients), self.random.choice(list(ModelSize))
        self.call("can_load_model", client, next(self.ids), size)

    def some(self, *states):
        """A random request in one of ``states``, or, after some tries, in any."""
        requests = list(self.states)
        for _ in range(20):
            request = self.random.choice(requests)
            if self.states[request] in states:
                break
        return request

    def loaded(self):
        request = self.some(State.PENDING_LOAD)
        with suppress(EngineError):
            self.call("notify_model_loaded", *request)
            if self.states[request] is State.PENDING_LOAD:
                self.states[request] = State.LOADED

    def late(self):
        """A client that was cancelled meanwhile says that it has unloaded."""
        with suppress(EngineError):
            self.call("notify_model_unloaded", self.random.choice(self.clients), 0)

    def unloaded(self):
        self.call("notify_model_unloaded", *self.some(State.UNLOADING, State.LOADED))

    def leave(self):
        if self.random.random() < 0.9:
            self.call("cancel_model_load", *self.some(*State))
            return
        client = self.random.choice(self.clients)
        self.call("disconnect", client)
        self.states = {key: state for key, state in self.states.items() if key[0] != client}
        self.call("connect", client, client)

    def priority(self):
        client = self.random.choice(self.clients)
        self.call("set_priority", client, self.random.choice(IMPORTANCES))

    def work(self):
        work = Work(self.random.choice(self.clients))
        kind = self.random.randrange(3)
        if kind == 0:
            self.call("work_requested", work)
        elif kind == 1:
            self.call("work_started", work, StartReason.INITIAL)
        else:
            self.call("work_ended", work, EndReason.COMPLETED)


@cache
def recorded(live, events):
    """(calls that lead to ``live`` requests, ``events`` calls after them)."""
    recorder = Recorder(live)
    while len(recorder.calls) < recorder.start + events:
        recorder.step()
    return recorder.calls[: recorder.start], recorder.calls[recorder.start :]


def play(engine, calls):
    for name, args in calls:
        try:
            getattr(engine, name)(*args)
        except EngineError:
            continue  # a refusal is an answer, too


def measure(benchmark, make, live, events, rounds):
    """Each round plays the next ``events`` events on one engine."""
    before, calls = recorded(live, events * (rounds + 1))
    engine = make(ManualClock())
    play(engine, before)
    stretches = iter(range(0, len(calls), events))

    def setup():
        start = next(stretches)
        return (engine, calls[start : start + events]), {}

    benchmark.group = f"manager engine, {live} live requests, an event"
    benchmark.extra_info["ops"] = events
    benchmark.pedantic(play, setup=setup, rounds=rounds, warmup_rounds=1)
    if benchmark.stats:
        rate = events / benchmark.stats.stats.median
        benchmark.extra_info["events_per_second"] = round(rate)
        print(f"\n{make.__name__}, {live} live requests: {rate:,.0f} events/s")


@pytest.mark.parametrize("live", LIVE)
def test_engine(benchmark, live):
    if live == max(LIVE):
        benchmark.extra_info["limit_ratio"] = 1 / 20
    measure(benchmark, Engine, live, 5_000, 5)


@pytest.mark.parametrize("live", LIVE)
def test_baseline_sort_everything(benchmark, live):
    measure(benchmark, Reference, live, {8: 3000, 64: 1000, 512: 250, 4096: 50}[live], 3)
