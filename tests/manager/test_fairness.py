# SPDX-License-Identifier: MIT
"""Equals take turns, and who breaks the rules costs the others no more than the deadlines."""

from collections import Counter, deque
from contextlib import suppress
from random import Random

import pytest

from npukit.manager import (
    CallbackKind,
    EndReason,
    Engine,
    EngineError,
    Importance,
    ModelSize,
    Status,
    Work,
)
from npukit.manager.replay import ManualClock
from npukit.manager.simulate import Vice, jain

UNLOAD_TIMEOUT, LOAD_TIMEOUT, WORK = 5.0, 10.0, 1.0


class Equals:
    """Clients of one importance that each always want ``models`` models and work when they can."""

    def __init__(self, vices, policy, size, models=1, **options):
        self.clock = ManualClock()
        self.random = Random(1)
        self.engine = Engine(self.clock, **options)
        self.engine.set_policy(*policy)
        self.vices = {f"client{n}": vice for n, vice in enumerate(vices)}
        self.size = size
        # Where several fit at once nobody may have to leave, so some do it on their own.
        self.restless = 0.0 if policy[0] == "turn_taking" else 0.3
        self.models = models
        self.serial = 0
        self.unheard, self.answering = deque(), False
        self.asked = {}
        self.loaded = {}  # request: when its work is done
        self.dying = {}  # client: when
        self.turns = []
        self.waits = Counter()
        for client in self.vices:
            self.engine.set_priority(client, Importance(200))
            self.connect(client)

    def connect(self, client):
        self.engine.connect(client, client)
        for _ in range(self.models):
            self.ask(client)

    def ask(self, client):
        self.serial += 1
        number = self.serial
        self.asked[client, number] = self.clock.now
        self.hear(self.engine.can_load_model(client, number, self.size(self.random)))

    def run(self, turns):
        while len(self.turns) < turns:
            due = [self.engine.next_deadline(), *self.loaded.values(), *self.dying.values()]
            self.clock.now = max(self.clock.now, min(when for when in due if when is not None))
            self.hear(self.engine.tick())
            for client in [who for who, when in self.dying.items() if when <= self.clock.now]:
                del self.dying[client]
                self.hear(self.engine.disconnect(client))
                self.connect(client)
            for request, when in list(self.loaded.items()):
                if when <= self.clock.now and request in self.loaded:
                    self.loaded[request] = self.clock.now + WORK
                    self.hear(self.engine.work_ended(Work(request[0]), EndReason.COMPLETED))
                    if request in self.loaded and self.random.random() < self.restless:
                        self.hear(self.engine.notify_model_unloaded(*request))

    def hear(self, callbacks):
        """Clients hear in order, and what they answer causes more to hear."""
        self.unheard.extend(callbacks)
        if not self.answering:
            self.answering = True
            while self.unheard:
                self.answer(self.unheard.popleft())
            self.answering = False

    def answer(self, callback):
        client, request = callback.connection, (callback.connection, callback.request_id)
        vice = self.vices[client]
        if callback.status is Status.CAN_LOAD_NOW:
            self.turns.append(client)
            wait = self.clock.now - self.asked[request]
            self.waits[client] = max(self.waits[client], wait)
            self.granted(client, request, vice)
        elif callback.kind is CallbackKind.REQUEST_UNLOAD:
            if vice is not Vice.NEVER_UNLOADS:
                self.loaded.pop(request, None)
                self.hear(self.engine.notify_model_unloaded(*request))
        elif callback.kind is CallbackKind.COMPLETE:
            del self.asked[request]
            self.loaded.pop(request, None)
            self.ask(client)
        elif vice is Vice.LOADS_UNGRANTED:
            with suppress(EngineError):
                self.engine.notify_model_loaded(*request)

    def granted(self, client, request, vice):
        if vice is Vice.NEVER_LOADS:
            return
        if vice is Vice.DIES:
            self.dying[client] = self.clock.now + 0.1
            return
        try:
            self.engine.notify_model_loaded(*request)
        except EngineError:
            return  # it was cancelled since
        self.loaded[request] = self.clock.now + WORK
        if vice is Vice.REUSES_IDS:
            with suppress(EngineError):
                self.engine.can_load_model(*request)


def small(random):
    return ModelSize.LESS_THAN_1GB


def any_size(random):
    return random.choice(list(ModelSize))


@pytest.mark.parametrize("clients", [2, 3, 8, 17])
@pytest.mark.parametrize(
    ("policy", "size", "models", "residency"),
    [
        (("turn_taking",), small, 1, 0),
        (("turn_taking",), small, 3, 0),
        (("turn_taking",), small, 1, 5),
        (("budget", 4), any_size, 1, 0),
        (("budget", 4), any_size, 2, 5),
    ],
)
def test_equals_take_turns(clients, policy, size, models, residency):
    equals = Equals([None] * clients, policy, size, models, min_residency=residency)
    equals.run(10_000 if clients == 8 and models == 1 and not residency else 1_500)
    assert jain(Counter(equals.turns).values()) >= 0.95
    last = {}
    for number, client in enumerate(equals.turns):
        # A turn is at most what fits at once, and each of the others has one in between.
        assert number - last.get(client, number) <= 2 * 4 * clients
        last[client] = number
    assert set(last) == set(equals.vices)


@pytest.mark.parametrize("vice", Vice)
@pytest.mark.parametrize("policy", [("turn_taking",), ("budget", 4)])
def test_one_without_manners_costs_its_deadline(vice, policy):
    equals = Equals(
        [vice, None, None, None],
        policy,
        small if policy[0] == "turn_taking" else any_size,
        unload_timeout=UNLOAD_TIMEOUT,
        load_timeout=LOAD_TIMEOUT,
    )
    equals.run(1_500)
    bound = (UNLOAD_TIMEOUT + LOAD_TIMEOUT + WORK) * len(equals.vices)
    honest = [client for client, vice in equals.vices.items() if vice is None]
    assert all(0 < equals.waits[client] <= bound for client in honest)
    turns = Counter(equals.turns)
    assert jain(turns[client] for client in honest) >= 0.95
