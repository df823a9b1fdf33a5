# SPDX-License-Identifier: MIT
"""The engine of the manager: who may have a model on the NPU now, and who has to leave.

One engine rules one device. It is synchronous and pure: the clock is injected, nothing is read or
sent, and each call returns the callbacks that it causes, in the order in which they are to be sent.
Callers serialise their calls. ``docs/manager.md`` states the rules and where they differ from
Android's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from numbers import Real
from typing import Any, NamedTuple

from npukit.manager.policies import BUILTIN, MaxBudget, Policy, StatusQuo, Weights
from npukit.manager.ranking import Claim, Copy, Ranking, Request, Seat
from npukit.manager.sizes import (
    PER_PROCESS,
    Dimension,
    Ledger,
    ModelSize,
    Size,
    amount,
    check_amounts,
    check_size,
    is_of_copy,
    quantity,
)
from npukit.manager.types import (
    CHARGED,
    MANAGER,
    MOST,
    UNKNOWN,
    Callback,
    CallbackKind,
    Code,
    EndReason,
    EngineError,
    Health,
    Importance,
    ModelPriority,
    StartReason,
    State,
    Status,
    Work,
    check_type,
    refuse,
)

Clock = Callable[[], float]
"""Seconds that never go back, such as time.monotonic."""

Places = tuple[Any, Any]
"""Precedences of a principal, and of its models that are within their minimal residency."""

REMEMBERED = 4096
"""Principals without connection and importance whose last turn is kept; the oldest go first.

One that was given an importance is kept until that is 1000 again, so it is whoever calls
set_priority who bounds how many there are.
"""


class LoadRequest(NamedTuple):
    """One member of a gang; the arguments of :meth:`Engine.can_load_model`."""

    request_id: int
    size: Size = ModelSize.LESS_THAN_1GB
    model_priority: ModelPriority = ModelPriority.NORMAL
    content: str | None = None


class Connection:
    """One client process and its live requests by id."""

    __slots__ = ("name", "principal", "requests")

    def __init__(self, name: str, principal: Principal) -> None:
        self.name = name
        self.principal = principal
        self.requests: dict[int, Request] = {}


class Principal:
    """One application, whatever the number of its connections."""

    __slots__ = ("connections", "importance", "last_completed", "name", "seat", "young_seat")

    def __init__(self, name: str) -> None:
        self.name = name
        self.importance = UNKNOWN
        self.last_completed = 0
        self.connections = 0
        self.seat = Seat(name, None)
        self.young_seat = Seat(name, None)  # of models that are within their minimal residency


class Engine:
    """Admission, preemption and turns on one device.

    ``unload_timeout``: seconds after request_unload at which a grant is revoked; ``load_timeout``:
    seconds after CAN_LOAD_NOW at which a grant that was not used lapses; ``min_residency``: seconds
    for which a loaded model goes before its principal's equals. 0 turns each off. :meth:`tick` must
    be called at :meth:`next_deadline`.

    Every method raises EngineError for a call that it refuses, and then changes nothing; so it is
    with whatever a policy raises.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        unload_timeout: float = 0,
        load_timeout: float = 0,
        min_residency: float = 0,
        policies: Mapping[str, type[Policy]] = BUILTIN,
    ) -> None:
        self.health = Health.OK
        self.metrics: Counter[str] = Counter()
        self._clock = clock
        self._policies = policies
        self._options = {"unload_timeout": 0.0, "load_timeout": 0.0, "min_residency": 0.0}
        self._policy: Policy = StatusQuo()
        self._cap: Mapping[str, int] | int | None = None
        self._limits: Mapping[str, int] = {}
        self._dimension, self._limit = "", 0  # the only limit, where there is one
        self._scalar = True
        self._per_process = False
        self._connections: dict[str, Connection] = {}
        self._principals: dict[str, Principal] = {}
        self._departed: OrderedDict[str, None] = OrderedDict()
        self._ranking = Ranking()
        self._charged = Ledger({})
        self._turned: set[Claim] = set()  # in or out of the ideal set since they were last told
        self._copies: dict[str, Copy] = {}
        self._warm: OrderedDict[Copy, None] = OrderedDict()  # idle, the longest idle first
        self._idle: Counter[Dimension] = Counter()  # what they take
        self._shared = 0  # copies that several live requests share
        self._arrivals = count(1)
        self._turns = count(1)
        self._timers: list[tuple[float, tuple[int, ...], int, Request | Claim]] = []
        self._timers_bound = 64  # more than this many, and those that no longer count are dropped
        self._timer_ids = count()
        self._cause = ""
        for name, seconds in {
            "unload_timeout": unload_timeout,
            "load_timeout": load_timeout,
            "min_residency": min_residency,
        }.items():
            self.set_option(name, seconds)

    # ---- who is there -------------------------------------------------------------------------

    def connect(self, connection: str, principal: str) -> list[Callback]:
        """Make a connection of ``principal`` known under a name that is not in use."""
        check_type("connection", connection, str)
        if connection in self._connections or connection == MANAGER:
            raise EngineError(Code.DUPLICATE_CONNECTION, f"{connection} is connected already")
        owner = self._principal(principal)
        owner.connections += 1
        self._keep(owner)
        self._connections[connection] = Connection(connection, owner)
        return []

    def disconnect(self, connection: str) -> list[Callback]:
        """The connection is gone, and what it held is free."""
        client = self._connection(connection)
        self._cause = f"{connection} has gone"
        # To die with a grant is to have had a turn, as to miss a deadline is: otherwise one who
        # comes back again and again would go before its equals each time.
        if any(request.state in CHARGED for request in client.requests.values()):
            self._stamp(client.principal, self._turn(client.principal))
        for request in list(client.requests.values()):
            self._end(request)
        del self._connections[connection]
        client.principal.connections -= 1
        self._keep(client.principal)
        return self._evaluate()

    def set_priority(self, principal: str, value: Importance) -> list[Callback]:
        """The importance of ``principal`` is ``value`` from now on (1000 until the first call).

        It holds, connected or not, until it is set to 1000 again.
        """
        importance = Importance(value)
        owner = self._principal(principal)
        if importance == owner.importance:
            return []
        places = self._places(importance, owner.last_completed)
        self._cause = f"importance of {principal} went from {owner.importance} to {importance}"
        owner.importance = importance
        self._keep(owner)
        self._seat(owner, places)
        return self._evaluate()

    # ---- requests -----------------------------------------------------------------------------

    def can_load_model(
        self,
        connection: str,
        request_id: int,
        size: Size = ModelSize.LESS_THAN_1GB,
        model_priority: ModelPriority = ModelPriority.NORMAL,
        *,
        content: str | None = None,
    ) -> list[Callback]:
        """Ask whether a model may be loaded; one can_load callback answers, others may follow.

        Requests with the same ``content`` hash, which must be of one size, share one copy. It is
        charged once and stays in memory, idle, after the last of them until its room is needed. The
        hash must be the service's own finding, or a client could ride on another's charge.
        """
        return self._ask(connection, [LoadRequest(request_id, size, model_priority, content)])

    def can_load_gang(
        self, connection: str, requests: Iterable[LoadRequest | tuple[Any, ...]]
    ) -> list[Callback]:
        """Ask for several models of which none is of use without the others.

        They are admitted and displaced together; each is reported, loaded and unloaded by itself.
        One that the client unloads or cancels leaves the gang, and the rest stays one.
        """
        try:
            wanted = [LoadRequest(*request) for request in requests]
        except TypeError as error:
            refuse("requests", requests, f"are no requests: {error}")
        return self._ask(connection, wanted)

    def _ask(self, connection: str, wanted: list[LoadRequest]) -> list[Callback]:
        client = self._connection(connection)
        for request in wanted:
            _check_id(request.request_id)
            check_size(request.size)
            check_type("model_priority", request.model_priority, ModelPriority)
            if request.content is not None:
                check_type("content", request.content, str)
        numbers = {request.request_id for request in wanted}
        if not numbers.isdisjoint(client.requests) or len(numbers) < len(wanted):
            raise EngineError(
                Code.DUPLICATE_REQUEST, f"{connection} has a live request of {sorted(numbers)}"
            )
        if not wanted:
            raise EngineError(Code.INVALID_ARGUMENT, "a gang needs a member")
        sizes: dict[str, Size] = {}
        for request in wanted:
            if request.content is not None:
                copy = self._copies.get(request.content)
                size = request.size if copy is None else copy.size
                if sizes.setdefault(request.content, size) != request.size:
                    raise EngineError(Code.INVALID_ARGUMENT, f"{request.content} is of size {size}")
        demands = [_demand(self._policy, request.size) for request in wanted]
        now = self._clock()
        members = []
        background = True
        for (number, size, model_priority, content), demand in zip(wanted, demands, strict=True):
            member = Request(connection, number, size, self._copy(content, size), now)
            self._measure(member, demand)
            client.requests[number] = member
            members.append(member)
            background &= model_priority is ModelPriority.BACKGROUND
        claim = Claim(members, background, next(self._arrivals))
        claim.weight = self._weigh(claim)
        others = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
        self._cause = f"{connection} asked to load {wanted[0].request_id}{others}"
        roomy = self._by_weight and self._ranking.taken + claim.weight <= self._limit
        if roomy and self.health is Health.OK:
            # It is in and pushes nobody out, wherever it stands: spare the ranking to find out.
            claim.taken = True
            self._turned.add(claim)
        self._ranking.add(claim, client.principal.seat)
        return self._evaluate(claim)

    def notify_model_loaded(self, connection: str, request_id: int) -> list[Callback]:
        """The client has loaded what it was granted; once more is harmless."""
        request = self._request(connection, request_id)
        if request.state is State.PENDING_LOAD:
            self._enter(request, State.LOADED)
            if request.copy is not None:
                request.copy.loaded = True
            if self._options["min_residency"]:
                self._start_residency(request.claim)
        elif request.state not in CHARGED:
            raise EngineError(
                Code.NOT_GRANTED,
                f"{connection} was not granted {request_id}: it is {request.state}",
            )
        return []

    def notify_model_unloaded(self, connection: str, request_id: int) -> list[Callback]:
        """The client no longer holds the model."""
        return self._leave(connection, request_id, Status.COMPLETE)

    def cancel_model_load(self, connection: str, request_id: int) -> list[Callback]:
        """The client no longer wants the model and, if it had loaded it, holds it no more."""
        return self._leave(connection, request_id, Status.CANCELLED)

    # ---- work ---------------------------------------------------------------------------------

    def work_requested(self, work: Work) -> list[Callback]:
        """Work has been queued; its owner, if never seen, is a principal of importance 1000."""
        check_type("work", work, Work)
        self._principal(work.owner)
        self.metrics["requested"] += 1
        return []

    def work_started(self, work: Work, reason: StartReason) -> list[Callback]:
        """Work runs; counted and nothing else."""
        check_type("work", work, Work)
        check_type("reason", reason, StartReason)
        self.metrics[reason] += 1
        return []

    def work_ended(self, work: Work, reason: EndReason) -> list[Callback]:
        """Work has ended. COMPLETED passes the turn to an equal who waits, if there is one."""
        check_type("work", work, Work)
        check_type("reason", reason, EndReason)
        if reason is not EndReason.COMPLETED:
            self.metrics[reason] += 1
            return []
        principal = self._principal(work.owner)
        self._stamp(principal, self._turn(principal))
        self.metrics[reason] += 1
        self._cause = f"{principal.name} has completed its work and equals wait"
        if self.health is not Health.OK:
            return []
        self._choose()
        losers = [
            claim
            for claim in self._turned
            if not claim.taken
            and claim.seat.principal == principal.name
            and all(request.state is State.LOADED for request in claim.requests)
        ]
        if not losers or not self._equals_wait(principal):
            return []
        return self._displace(losers)

    # ---- settings -----------------------------------------------------------------------------

    def set_option(self, name: str, value: float) -> list[Callback]:
        """Set unload_timeout, load_timeout or min_residency, in seconds; 0 turns it off.

        It applies to what is under way too, counted from when that began.
        """
        check_type("name", name, str)
        if name not in self._options:
            refuse("name", name, "is no option")
        check_type(name, value, Real)
        if not 0 <= value <= MOST:
            refuse(name, value, "is no number of seconds")
        self._options[name] = float(value)
        self._cause = f"{name} is now {value} s"
        self._timers.clear()
        for request in self._requests():
            self._set_deadline(request)
        for claim in list(self._ranking):
            self._start_residency(claim)
        return self._evaluate() if name == "min_residency" else []

    def set_policy(
        self, name: str, max_budget: MaxBudget | None = None, weights: Weights | None = None
    ) -> list[Callback]:
        """Decide by another policy from now on; requests, states and turns are kept.

        Parameters that are not given have their defaults, whatever they were before. Raises
        EngineError(INVALID_ARGUMENT) for an unknown policy or wrong parameters.
        """
        check_type("name", name, str)
        if name not in self._policies:
            refuse("name", name, "is no policy")
        policy = self._policies[name](max_budget, weights)
        check_amounts(f"limits of {name}", policy.limits)
        idle = [(copy, _demand(policy, copy.size)) for copy in self._warm]
        measures = [(request, _demand(policy, request.size)) for request in self._requests()]
        seats = [
            (each, _places(policy, each.importance, each.last_completed))
            for each in self._principals.values()
        ]
        self._policy = policy
        self._cause = f"the policy is now {name}"
        self._apply_limits()
        self._idle.clear()
        for copy, demand in idle:
            copy.demand = {name: n for name, n in demand.items() if is_of_copy(name)}
            self._idle.update(copy.demand)
        self._charged = Ledger(self._limits)
        claims = list(self._ranking)
        for claim in claims:
            self._ranking.drop(claim)
        for principal, places in seats:
            self._seat(principal, places)
        for request, demand in measures:
            self._measure(request, demand)
            if request.state in CHARGED:
                self._charged.add([request])
        for claim in claims:
            claim.weight = self._weigh(claim)
            self._ranking.add(claim, claim.seat)
        return self._evaluate()

    def cap_budget(self, limits: MaxBudget | None, why: str = "") -> list[Callback]:
        """Hold the policy's limits below ``limits`` (memory pressure, heat) until called with None.

        Who no longer fits is asked to unload. A number caps a budget of one dimension, and does
        nothing to one of several that a later set_policy brings.
        """
        check_type("why", why, str)
        if isinstance(limits, Mapping):
            check_amounts("limits", limits)
            limits = dict(limits)
        elif limits is not None and not (
            isinstance(limits, int) and 0 <= limits <= MOST and len(self._limits) <= 1
        ):
            refuse("limits", limits, f"is no cap of {self._limits}")
        self._cap = limits
        self._cause = why or ("the cap was lifted" if limits is None else f"capped at {limits}")
        self._apply_limits()
        self._charged.limits = self._limits
        return self._evaluate()

    def set_health(self, health: Health, why: str = "") -> list[Callback]:
        """What is known of the device from now on.

        LOST revokes every grant and cancels who waits for room; QUARANTINED admits and displaces
        nobody. In both, new requests stay NOT_PRIORITIZED until the device is OK again.
        """
        check_type("health", health, Health)
        check_type("why", why, str)
        if health is self.health:
            return []
        self.health = health
        self._cause = f"the device is {health}" + (f": {why}" if why else "")
        if health is not Health.LOST:
            return self._evaluate()
        callbacks = []
        for request in list(self._requests()):
            if request.state in CHARGED:
                callbacks.append(self._finish(request, Status.REVOKED, self._cause))
            elif request.state is State.WAIT_FOR_UNLOAD:
                callbacks.append(self._finish(request, Status.CANCELLED, self._cause))
        return callbacks + self._evict(everything=True)

    # ---- time ---------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The clock's value at which tick() has something to do, None if nothing runs."""
        while self._timers and self._timers[0][3].due != self._timers[0][0]:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def tick(self) -> list[Callback]:
        """Do what is due by the clock."""
        now = self._clock()
        expired = []
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            if timer[3].due == timer[0]:
                expired.append(timer)
        # A deadline that was missed is a turn that was used: otherwise one who never loads or never
        # unloads would go before its equals for ever.
        turns = {}
        try:
            for _, _, _, subject in expired:
                if isinstance(subject, Request):
                    owner = self._connections[subject.connection].principal
                    turns[subject] = owner, self._turn(owner)
        except BaseException:
            for timer in expired:
                heappush(self._timers, timer)  # all of it is still to be done
            raise
        callbacks = []
        for due, _, _, subject in expired:
            if subject.due != due:
                continue
            subject.due = inf
            if isinstance(subject, Claim):
                self._start_residency(subject)
                continue
            self._stamp(*turns[subject])
            held = now - subject.since
            if subject.state is State.UNLOADING:
                why = f"did not unload within {held:g} s"
                callbacks.append(self._finish(subject, Status.REVOKED, why))
            else:
                why = f"did not load within {held:g} s"
                callbacks.append(self._finish(subject, Status.CANCELLED, why))
        if not expired:
            return []
        self._cause = "a time limit has passed"
        return callbacks + self._evaluate()

    # ---- what others may know -----------------------------------------------------------------

    def state(self, connection: str, request_id: int) -> State:
        """Where a live request stands."""
        state = self._request(connection, request_id).state
        assert state is not None, "requests that are gone are not found"
        return state

    def info(self) -> dict[str, Any]:
        """Everything that a person needs to see who holds what and why, as plain data."""
        return {
            "policy": self._policy.name,
            "health": str(self.health),
            "limits": dict(self._limits),
            "charged": {
                name if isinstance(name, str) else "/".join(name): n
                for name, n in self._charged.used.items()
            },
            "options": dict(self._options),
            "metrics": dict(self.metrics),
            "warm": [copy.content for copy in self._warm],
            "copies": {copy.content: self._holders(copy) for copy in self._charged.copies},
            "requests": [
                {
                    "connection": client.name,
                    "principal": client.principal.name,
                    "importance": int(client.principal.importance),
                    "id": request.id,
                    "size": request.size.name
                    if isinstance(request.size, ModelSize)
                    else request.size,
                    "state": str(request.state),
                    "since": request.since,
                    "why": request.why,
                }
                for client in self._connections.values()
                for request in client.requests.values()
            ],
        }

    def _holders(self, copy: Copy) -> dict[str, int]:
        """How many references each principal holds to ``copy``."""
        return dict(
            Counter(
                self._connections[request.connection].principal.name
                for request in self._requests()
                if request.copy is copy and request.state in CHARGED
            )
        )

    # ---- look-ups -----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Request]:
        for client in self._connections.values():
            yield from client.requests.values()

    def _connection(self, name: str) -> Connection:
        try:
            return self._connections[name]
        except (KeyError, TypeError):
            check_type("connection", name, str)
            raise EngineError(Code.UNKNOWN_CONNECTION, f"{name} is not connected") from None

    def _request(self, connection: str, request_id: int) -> Request:
        try:
            return self._connection(connection).requests[request_id]
        except (KeyError, TypeError):
            _check_id(request_id)
            raise EngineError(
                Code.UNKNOWN_REQUEST, f"{connection} has no live request {request_id}"
            ) from None

    def _principal(self, name: str) -> Principal:
        try:
            return self._principals[name]
        except (KeyError, TypeError):
            check_type("principal", name, str)
        places = self._places(UNKNOWN, 0)
        principal = self._principals[name] = Principal(name)
        self._seat(principal, places)
        self._keep(principal)
        return principal

    def _keep(self, principal: Principal) -> None:
        """Keep a principal in mind, but not for ever if it is of no importance and is not here."""
        if principal.connections or principal.importance != UNKNOWN:
            self._departed.pop(principal.name, None)
            return
        self._departed[principal.name] = None
        if len(self._departed) > REMEMBERED:
            oldest, _ = self._departed.popitem(last=False)
            del self._principals[oldest]

    # ---- rank and size ------------------------------------------------------------------------

    def _places(self, importance: Importance, last_completed: int) -> Places:
        return _places(self._policy, importance, last_completed)

    def _seat(self, principal: Principal, places: Places) -> None:
        """Put a principal where its importance and its last turn belong."""
        self._ranking.move(principal.seat, places[0])
        self._ranking.move(principal.young_seat, places[1])

    def _turn(self, principal: Principal) -> tuple[int, Places]:
        """What one more turn would make of a principal. They are counted, so no two are alike."""
        turn = next(self._turns)
        return turn, self._places(principal.importance, turn)

    def _stamp(self, principal: Principal, turn: tuple[int, Places]) -> None:
        """The principal has had a turn."""
        principal.last_completed = turn[0]
        self._seat(principal, turn[1])

    def _copy(self, content: str | None, size: Size) -> Copy | None:
        if content is None:
            return None
        copy = self._copies.setdefault(content, Copy(content, size))
        copy.live += 1
        self._shared += copy.live == 2
        return copy

    def _measure(self, request: Request, demand: Mapping[str, int]) -> None:
        """Set what a request takes under the policy, and what of that its copy takes."""
        copy = request.copy
        if copy is not None:
            copy.demand = {name: n for name, n in demand.items() if is_of_copy(name)}
            demand = {name: n for name, n in demand.items() if not is_of_copy(name)}
        request.demand = demand
        if self._per_process:
            request.demand = {
                (name, request.connection) if name.endswith(PER_PROCESS) else name: n
                for name, n in demand.items()
            }

    def _apply_limits(self) -> None:
        limits = dict(self._policy.limits)
        if isinstance(self._cap, Mapping):
            for name in limits.keys() & self._cap.keys():
                limits[name] = min(limits[name], self._cap[name])
        elif self._cap is not None and len(limits) == 1:
            limits = {name: min(n, self._cap) for name, n in limits.items()}
        self._limits = limits
        self._per_process = any(name.endswith(PER_PROCESS) for name in limits)
        self._scalar = len(limits) <= 1 and not self._per_process
        self._dimension, self._limit = next(iter(limits.items()), ("", 0))

    def _weigh(self, claim: Claim) -> int:
        """What a claim takes of the only dimension, where there is but one."""
        weight = 0
        for request in claim.requests:
            weight += request.demand.get(self._dimension, 0)
            if request.copy is not None:
                weight += request.copy.demand.get(self._dimension, 0)
        return weight

    def _unrank(self, claim: Claim) -> None:
        claim.due = inf
        self._turned.discard(claim)
        self._ranking.drop(claim)

    # ---- deciding -----------------------------------------------------------------------------

    @property
    def _by_weight(self) -> bool:
        """Whether one number for each claim against one limit says all."""
        return self._scalar and not self._shared

    def _choose(self) -> None:
        """Bring the ideal set up to date; what changed is in ``_turned`` until it is told."""
        if self._by_weight:
            self._turned.update(self._ranking.repair(self._limit))
        else:
            self._turned.update(self._ranking.rewalk(Ledger(self._limits)))

    def _evaluate(self, newcomer: Claim | None = None) -> list[Callback]:
        """Displace who is no longer in the ideal set, admit who is; ``newcomer`` gets an answer."""
        callbacks: list[Callback] = []
        if self.health is Health.OK:
            self._choose()
            turned, self._turned = self._turned, set()
            losers = [
                claim
                for claim in turned
                if not claim.taken and claim.requests[0].state is not State.NOT_PRIORITIZED
            ]
            if losers:
                callbacks = self._displace(losers)
            callbacks += self._admit(turned)
        if newcomer is not None and not newcomer.taken:
            why = self._why_not(newcomer)
            callbacks += [
                self._tell(request, CallbackKind.CAN_LOAD, Status.NOT_PRIORITIZED, why)
                for request in newcomer.requests
            ]
        return callbacks

    def _displace(self, losers: list[Claim]) -> list[Callback]:
        """Take ``losers`` out: first ask for what is loaded, then cancel what is not."""
        losers.sort(key=_rank, reverse=True)
        whys = [f"{self._cause}; {self._why_not(claim)}" for claim in losers]
        asked, cancelled = [], []
        for claim, why in zip(losers, whys, strict=True):
            self._unrank(claim)
            for request in reversed(claim.requests.copy()):
                if request.state is State.LOADED:
                    self._enter(request, State.UNLOADING)
                    asked.append(self._tell(request, CallbackKind.REQUEST_UNLOAD, None, why))
                else:
                    cancelled.append(self._finish(request, Status.CANCELLED, why))
        return asked + cancelled

    def _admit(self, turned: Iterable[Claim]) -> list[Callback]:
        """Grant what is in the ideal set and finds room now; tell the others of it to wait.

        Room is given strictly in rank order: who goes first keeps what has come free for it, or
        small requests could hold up a large one for as long as they kept coming.
        """
        granted = list(self._grantable())
        for claim in granted:
            claim.granted = True
            self._charged.add(claim.requests)
        news = granted + [
            claim
            for claim in turned
            if claim.taken
            and not claim.granted
            and claim.requests[0].state is State.NOT_PRIORITIZED
        ]
        callbacks = [
            self._grant(request) if claim.granted else self._wait(request)
            for claim in sorted(news, key=_rank)
            for request in claim.requests
        ]
        for claim in granted:
            self._ranking.update(claim)
        return (self._evict(everything=not self._limits) if self._warm else []) + callbacks

    def _grantable(self) -> Iterator[Claim]:
        """Those of the ideal set that wait and find room beside all who wait before them."""
        if self._by_weight:
            room = self._limit - self._charged.used.get(self._dimension, 0)
            for claim in self._ranking.waiting():
                if claim.weight > max(room, 0):
                    return  # those after it would find less
                room -= claim.weight
                yield claim
            return
        waiting = list(self._ranking.waiting())
        for claim in waiting:
            if self._charged.shortage(claim.requests) is None:
                yield claim
            self._charged.add(claim.requests)
        for claim in waiting:
            self._charged.remove(claim.requests)

    def _equals_wait(self, principal: Principal) -> bool:
        return any(
            seat.principal != principal.name
            and self._principals[seat.principal].importance == principal.importance
            for seat in self._ranking.waiting_seats()
        )

    # ---- one request --------------------------------------------------------------------------

    def _grant(self, request: Request) -> Callback:
        self._enter(request, State.PENDING_LOAD)
        copy = request.copy
        if copy is not None and copy.loaded:
            self.metrics["warm_hits"] += 1
            if copy in self._warm:
                self._take_warm(copy)
            why = "it is in memory already"
        else:
            why = self._why_now()
        return self._tell(request, CallbackKind.CAN_LOAD, Status.CAN_LOAD_NOW, why)

    def _wait(self, request: Request) -> Callback:
        self._enter(request, State.WAIT_FOR_UNLOAD)
        why = self._why_wait(request.claim)
        return self._tell(request, CallbackKind.CAN_LOAD, Status.WAIT_FOR_UNLOAD, why)

    def _leave(self, connection: str, request_id: int, status: Status) -> list[Callback]:
        request = self._request(connection, request_id)
        self._cause = f"{connection} gave up {request_id}"
        why = "unloaded by the client" if status is Status.COMPLETE else "cancelled by the client"
        callback = self._finish(request, status, why)
        return [callback, *self._evaluate()]

    def _finish(self, request: Request, status: Status, why: str) -> Callback:
        """End a request with its terminal callback."""
        self._end(request, intact=status is not Status.REVOKED)
        return self._tell(request, CallbackKind.COMPLETE, status, why)

    def _end(self, request: Request, intact: bool = True) -> None:
        """Forget a request; a copy that it was the last to hold stays warm while ``intact``."""
        claim, state = request.claim, request.state
        del self._connections[request.connection].requests[request.id]
        request.state = None
        request.due = inf
        if claim not in self._ranking:
            claim.requests.remove(request)
        elif len(claim.requests) == 1:
            self._unrank(claim)
            claim.requests.clear()
        else:
            claim.requests.remove(request)
            claim.weight = self._weigh(claim)
            self._ranking.update(claim)
            self._start_residency(claim)
        if state in CHARGED:
            self._charged.remove([request])
        if request.copy is not None:
            self._release(request.copy, intact)

    def _release(self, copy: Copy, intact: bool) -> None:
        self._shared -= copy.live == 2
        copy.live -= 1
        if copy.loaded and copy not in self._charged.copies and copy not in self._warm:
            if intact and self._limits:
                self._warm[copy] = None
                self._idle.update(copy.demand)
            else:
                copy.loaded = False
        if not copy.live and copy not in self._warm:
            del self._copies[copy.content]

    def _evict(self, everything: bool = False) -> list[Callback]:
        """Free idle copies, the longest idle first, until the rest fits beside what is charged.

        A copy that takes nothing of what is short stays: to free it would help nobody.
        """
        callbacks: list[Callback] = []
        while self._warm:
            short = [
                name
                for name, limit in self._limits.items()
                if self._charged.used.get(name, 0) + self._idle[name] > limit
            ]
            if not short and not everything:
                break
            helping = (
                idle
                for idle in self._warm
                if everything or any(idle.demand.get(name) for name in short)
            )
            victim = next(helping, None)
            if victim is None:
                break
            self._take_warm(victim)
            victim.loaded = False
            if not victim.live:
                del self._copies[victim.content]
            content = victim.content
            callbacks.append(Callback(MANAGER, CallbackKind.EVICT, content, None, self._cause))
        return callbacks

    def _take_warm(self, copy: Copy) -> None:
        """``copy`` is no longer idle."""
        del self._warm[copy]
        self._idle.subtract(copy.demand)

    def _enter(self, request: Request, state: State) -> None:
        request.state = state
        request.since = self._clock()
        self._set_deadline(request)

    def _tell(
        self, request: Request, kind: CallbackKind, status: Status | None, why: str
    ) -> Callback:
        request.why = why
        return Callback(request.connection, kind, request.id, status, why)

    # ---- reasons ------------------------------------------------------------------------------

    def _why_not(self, claim: Claim) -> str:
        """Why ``claim`` is not in the ideal set, or not admitted to it."""
        if self.health is not Health.OK:
            return f"the device is {self.health}"
        name: Dimension
        left: float
        if self._by_weight:
            name, needed = self._dimension, claim.weight
            left = self._limit - self._ranking.taken_before(claim)
        else:
            assert claim.shortage is not None, "the walk has left it out"
            name, needed, left = claim.shortage
        limit = self._charged.limit(name)
        if needed > limit:
            whole = quantity(name, limit)
            return f"it needs {amount(name, needed)}, more than the whole budget of {whole}"
        room = f"{quantity(name, left)} of {quantity(name, limit)}"
        return f"it needs {amount(name, needed)}; what goes before it leaves {room}"

    def _why_now(self) -> str:
        if not self._limits:
            return "nothing is limited"
        used = self._charged.used
        given = ", ".join(
            f"{quantity(name, used.get(name, 0))} of {amount(name, limit)}"
            for name, limit in self._limits.items()
            if not name.endswith(PER_PROCESS)
        )
        return f"it fits: with it {given}"

    def _why_wait(self, claim: Claim) -> str:
        shortage = self._charged.shortage(claim.requests)
        if shortage is None:
            return "others go before it into the room that comes free"
        name, needed, left = shortage
        free = quantity(name, left)
        return f"it needs {amount(name, needed)}, of which {free} is free until others unload"

    # ---- time limits --------------------------------------------------------------------------

    def _set_deadline(self, request: Request) -> None:
        timeout = 0.0
        if request.state is State.UNLOADING:
            timeout = self._options["unload_timeout"]
        elif request.state is State.PENDING_LOAD:
            timeout = self._options["load_timeout"]
        if timeout:
            request.due = request.since + timeout
            self._arm(request)
        else:
            request.due = inf

    def _start_residency(self, claim: Claim) -> None:
        """Seat a claim before its equals while its latest load is young, else among them."""
        principal = self._connections[claim.requests[0].connection].principal
        loaded = [r.since for r in claim.requests if r.state is State.LOADED]
        due = max(loaded) + self._options["min_residency"] if loaded else -inf
        young = due > self._clock()
        claim.due = due if young else inf
        if young:
            self._arm(claim)
        seat = principal.young_seat if young else principal.seat
        if claim.seat is not seat:
            self._ranking.drop(claim)
            self._ranking.add(claim, seat)

    def _arm(self, subject: Request | Claim) -> None:
        heappush(self._timers, (subject.due, subject.order, next(self._timer_ids), subject))
        if len(self._timers) > self._timers_bound:
            self._timers = [timer for timer in self._timers if timer[3].due == timer[0]]
            heapify(self._timers)
            self._timers_bound = 64 + 2 * len(self._timers)


def _check_id(value: object) -> None:
    if not isinstance(value, int) or not -MOST <= value <= MOST:
        refuse("request_id", value, "is no number of 64 bits")


def _demand(policy: Policy, size: Size) -> Mapping[str, int]:
    """What ``policy`` says that one of ``size`` takes; it may be anybody's, so it is checked."""
    demand = policy.demand(size)
    check_amounts(f"policy {policy.name}", demand)
    return demand


def _places(policy: Policy, importance: Importance, last_completed: int) -> Places:
    """Where a principal's two seats belong."""
    return policy.precedence(importance, last_completed), policy.precedence(importance, -1)


def _rank(claim: Claim) -> tuple[Any, Any]:
    return claim.rank
