# SPDX-License-Identifier: MIT
"""The manager's rules written down as plainly as possible: sort everything, walk everything.

It holds no derived state and is the measure of the engine twice: the same events must give the same
callbacks, and it is the baseline of the engine's benchmark.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from math import inf

from npukit.manager.engine import LoadRequest
from npukit.manager.policies import BUILTIN
from npukit.manager.types import EndReason, EngineError, Importance, ModelPriority

CHARGED = ("PENDING_LOAD", "LOADED", "UNLOADING")


@dataclass(eq=False)
class Request:
    connection: str
    id: int
    size: object
    content: str | None
    claim: "Claim"
    state: str = "NOT_PRIORITIZED"
    since: float = 0.0
    demand: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)


@dataclass(eq=False)
class Claim:
    principal: str
    background: bool
    arrival: int
    requests: list = field(default_factory=list)
    granted: bool = False


class Reference:
    """Engine's calls; callbacks are returned as strings."""

    def __init__(self, clock):
        self.clock = clock
        self.connections = {}
        self.importance = {}
        self.stamps = {}
        self.requests = {}
        self.ranked = []
        self.warm = {}  # idle content: its demand; oldest first
        self.warm_sizes = {}
        self.loaded_copies = set()
        self.options = {"unload_timeout": 0, "load_timeout": 0, "min_residency": 0}
        self.arrivals, self.turns = count(1), count(1)
        self.cap = None
        self.health = "OK"
        self.ticked = -inf
        self.set_policy("status_quo")

    # ---- events -------------------------------------------------------------------------------

    def connect(self, connection, principal):
        self.connections[connection] = principal
        return []

    def disconnect(self, connection):
        mine = [r for r in self.requests.values() if r.connection == connection]
        if any(request.state in CHARGED for request in mine):
            self.stamps[self.connections[connection]] = next(self.turns)
        for request in mine:
            self.end(request)
        del self.connections[connection]
        return self.evaluate()

    def set_priority(self, principal, value):
        if self.importance.get(principal, 1000) == Importance(value):
            return []
        self.importance[principal] = int(value)
        return self.evaluate()

    def can_load_model(self, connection, number, size, priority=ModelPriority.NORMAL, content=None):
        return self.can_load_gang(connection, [(number, size, priority, content)])

    def can_load_gang(self, connection, requests):
        wanted = [LoadRequest(*request) for request in requests]
        numbers = [request.request_id for request in wanted]
        live = any((connection, number) in self.requests for number in numbers)
        if live or len(set(numbers)) < len(numbers):
            return [f"{connection}.error(DUPLICATE_REQUEST)"]
        sizes = {r.content: r.size for r in self.requests.values()} | dict(self.warm_sizes)
        for _, size, _, content in wanted:
            if content is not None and sizes.setdefault(content, size) != size:
                return [f"{connection}.error(INVALID_ARGUMENT)"]
        background = all(r.model_priority is ModelPriority.BACKGROUND for r in wanted)
        claim = Claim(self.connections[connection], background, next(self.arrivals))
        for number, size, _, content in wanted:
            request = Request(connection, number, size, content, claim, since=self.clock())
            self.measure(request)
            claim.requests.append(request)
            self.requests[connection, number] = request
        self.ranked.append(claim)
        return self.evaluate(claim)

    def notify_model_loaded(self, connection, number):
        request = self.requests.get((connection, number))
        if request is None:
            return [f"{connection}.error(UNKNOWN_REQUEST)"]
        if request.state not in CHARGED:
            return [f"{connection}.error(NOT_GRANTED)"]
        if request.state == "PENDING_LOAD":
            self.enter(request, "LOADED")
            if request.content is not None:
                self.loaded_copies.add(request.content)
        return []

    def notify_model_unloaded(self, connection, number):
        return self.leave(connection, number, "COMPLETE")

    def cancel_model_load(self, connection, number):
        return self.leave(connection, number, "CANCELLED")

    def work_requested(self, work):
        return []

    def work_started(self, work, reason):
        return []

    def work_ended(self, work, reason):
        if reason is not EndReason.COMPLETED:
            return []
        who = work.owner
        self.stamps[who] = next(self.turns)
        if self.health != "OK":
            return []
        order, ideal = self.ideal()
        losers = [
            claim
            for claim in order
            if claim.principal == who
            and claim not in ideal
            and all(request.state == "LOADED" for request in claim.requests)
        ]
        equals_wait = any(
            not claim.granted
            and claim.principal != who
            and self.importance.get(claim.principal, 1000) == self.importance.get(who, 1000)
            for claim in ideal
        )
        return self.displace(losers[::-1]) if equals_wait else []

    def set_option(self, name, value):
        self.options[name] = value
        return self.evaluate() if name == "min_residency" else []

    def set_policy(self, name, max_budget=None, weights=None):
        try:
            self.policy = BUILTIN[name](max_budget, weights)
        except (KeyError, EngineError):
            return ["caller.error(INVALID_ARGUMENT)"]
        for request in self.requests.values():
            self.measure(request)
        for content, size in self.warm_sizes.items():
            if content in self.warm:
                self.warm[content] = self.shared(size)
        return self.evaluate()

    def cap_budget(self, limits):
        if isinstance(limits, int) and len(self.policy.limits) > 1:
            return ["caller.error(INVALID_ARGUMENT)"]
        self.cap = limits
        return self.evaluate()

    def set_health(self, health):
        if health == self.health:
            return []
        self.health = health
        if health != "LOST":
            return self.evaluate()
        callbacks = []
        for connection in self.connections:
            for request in [r for r in self.requests.values() if r.connection == connection]:
                if request.state in CHARGED:
                    callbacks.append(self.finish(request, "REVOKED"))
                elif request.state == "WAIT_FOR_UNLOAD":
                    callbacks.append(self.finish(request, "CANCELLED"))
        return callbacks + self.evict(everything=True)

    def tick(self):
        now = self.clock()
        due = [r for r in self.requests.values() if self.deadline(r) <= now]
        grown = any(self.ticked < self.young_until(claim) <= now for claim in self.ranked)
        self.ticked = now
        callbacks = []
        for request in sorted(due, key=lambda r: (self.deadline(r), r.claim.arrival, r.id)):
            self.stamps[self.connections[request.connection]] = next(self.turns)
            status = "REVOKED" if request.state == "UNLOADING" else "CANCELLED"
            callbacks.append(self.finish(request, status))
        return callbacks + self.evaluate() if due or grown else []

    # ---- rules --------------------------------------------------------------------------------

    def limits(self):
        limits = dict(self.policy.limits)
        if isinstance(self.cap, dict):
            return {name: min(n, self.cap.get(name, n)) for name, n in limits.items()}
        if self.cap is not None and len(limits) == 1:
            return {name: min(n, self.cap) for name, n in limits.items()}
        return limits

    def measure(self, request):
        """Sets what a request takes for itself, and what with all who share its copy."""
        request.demand, request.shared = {}, {}
        for name, n in self.policy.demand(request.size).items():
            if name.endswith("_per_process"):
                request.demand[name, request.connection] = n
            elif request.content is not None and name != "contexts":
                request.shared[name] = n
            else:
                request.demand[name] = n

    def shared(self, size):
        return {
            name: n
            for name, n in self.policy.demand(size).items()
            if name != "contexts" and not name.endswith("_per_process")
        }

    def ideal(self):
        """The ranked claims in order, and those of them that a greedy walk takes."""
        first = {}
        for claim in self.ranked:
            seat = claim.principal, self.young(claim)
            order = not claim.granted, claim.arrival
            first[seat] = min(first.get(seat, order), order)

        def rank(claim):
            young = self.young(claim)
            return (
                self.importance.get(claim.principal, 1000),
                -1 if young else self.stamps.get(claim.principal, 0),
                first[claim.principal, young],
                not claim.granted,
                claim.background,
                claim.arrival,
            )

        order = sorted(self.ranked, key=rank)
        room = Room(self.limits())
        return order, {claim: None for claim in order if room.take(claim.requests)}

    def evaluate(self, newcomer=None):
        callbacks = []
        ideal = {}
        if self.health == "OK":
            order, ideal = self.ideal()
            losers = [c for c in order if c not in ideal and self.told(c)]
            callbacks += self.displace(losers[::-1])
            callbacks += self.admit(ideal)
        if newcomer is not None and newcomer not in ideal:
            for request in newcomer.requests:
                callbacks.append(f"{request.connection}.can_load({request.id},NOT_PRIORITIZED)")
        return callbacks

    def told(self, claim):
        return claim.requests[0].state != "NOT_PRIORITIZED"

    def displace(self, losers):
        asked, cancelled = [], []
        for claim in losers:
            self.ranked.remove(claim)
            for request in claim.requests[::-1]:
                if request.state == "LOADED":
                    self.enter(request, "UNLOADING")
                    asked.append(f"{request.connection}.request_unload({request.id})")
                else:
                    cancelled.append(self.finish(request, "CANCELLED"))
        return asked + cancelled

    def admit(self, ideal):
        room = Room(self.limits())
        room.take([r for r in self.requests.values() if r.state in CHARGED], force=True)
        granted, waiting = [], []
        winners = [claim for claim in ideal if not claim.granted]
        if len(winners) > 1:  # those displaced just now may have kept their principal's place
            winners.sort(key=self.ideal()[0].index)
        for claim in winners:
            fits = room.take(claim.requests)
            if not fits:
                room.take(claim.requests, force=True)
            (granted if fits else waiting).append(claim)
        callbacks, evictions = [], []
        for claim in winners:
            for request in claim.requests:
                if claim in granted:
                    self.enter(request, "PENDING_LOAD")
                    if request.content is not None:
                        self.warm.pop(request.content, None)
                        self.warm_sizes.pop(request.content, None)
                    callbacks.append(f"{request.connection}.can_load({request.id},CAN_LOAD_NOW)")
                elif request.state == "NOT_PRIORITIZED":
                    self.enter(request, "WAIT_FOR_UNLOAD")
                    callbacks.append(f"{request.connection}.can_load({request.id},WAIT_FOR_UNLOAD)")
        for claim in granted:
            claim.granted = True
        if self.warm:
            evictions = self.evict(everything=not self.policy.limits)
        return evictions + callbacks

    def evict(self, everything=False):
        callbacks = []
        while self.warm:
            room = Room(self.limits())
            room.take([r for r in self.requests.values() if r.state in CHARGED], force=True)
            for demand in self.warm.values():
                for name, n in demand.items():
                    room.used[name] += n
            short = [d for d, n in room.used.items() if n > room.limits.get(d, inf)]
            helping = [
                key
                for key, demand in self.warm.items()
                if everything or any(demand.get(d) for d in short)
            ]
            if not helping:
                break
            key = helping[0]
            del self.warm[key], self.warm_sizes[key]
            self.loaded_copies.discard(key)
            callbacks.append(f"manager.evict({key})")
        return callbacks

    # ---- one request --------------------------------------------------------------------------

    def enter(self, request, state):
        request.state, request.since = state, self.clock()

    def leave(self, connection, number, status):
        request = self.requests.get((connection, number))
        if request is None:
            return [f"{connection}.error(UNKNOWN_REQUEST)"]
        return [self.finish(request, status), *self.evaluate()]

    def finish(self, request, status):
        self.end(request, intact=status != "REVOKED")
        return f"{request.connection}.complete({request.id},{status})"

    def end(self, request, intact=True):
        del self.requests[request.connection, request.id]
        claim = request.claim
        claim.requests = [r for r in claim.requests if r is not request]
        if not claim.requests and claim in self.ranked:
            self.ranked.remove(claim)
        if request.content is None:
            return
        key = request.content
        held = any(r.content == key and r.state in CHARGED for r in self.requests.values())
        if key in self.loaded_copies and not held and key not in self.warm:
            if intact and self.policy.limits:
                self.warm[key] = self.shared(request.size)
                self.warm_sizes[key] = request.size
            else:
                self.loaded_copies.discard(key)

    def deadline(self, request):
        name = {"UNLOADING": "unload_timeout", "PENDING_LOAD": "load_timeout"}.get(request.state)
        timeout = self.options.get(name, 0)
        return request.since + timeout if timeout else inf

    def young_until(self, claim):
        residency = self.options["min_residency"]
        if not residency:
            return -inf
        loaded = [request.since for request in claim.requests if request.state == "LOADED"]
        return max(loaded) + residency if loaded else -inf

    def young(self, claim):
        return self.young_until(claim) > self.clock()


class Room:
    """What is left of the limits while claims take from them."""

    def __init__(self, limits):
        self.limits = limits
        self.used = defaultdict(int)
        self.copies = set()

    def take(self, requests, force=False):
        """Take what ``requests`` need if it is there (or in any case); whether it was there."""
        need, copies = {}, set()
        for request in requests:
            for key, n in request.demand.items():
                need[key] = need.get(key, 0) + n
            if request.content is not None:
                copy = request.content
                if copy not in self.copies and copy not in copies:
                    copies.add(copy)
                    for key, n in request.shared.items():
                        need[key] = need.get(key, 0) + n
        fits = True
        for key, n in need.items():
            limit = self.limits[key if isinstance(key, str) else key[0]]
            if n > max(limit - self.used[key], 0):
                fits = False
        if fits or force:
            for key, n in need.items():
                self.used[key] += n
            self.copies |= copies
        return fits
