# SPDX-License-Identifier: MIT
"""Who goes first, and which requests are in: the ideal set.

The rank of a request is (precedence of its principal, place of the principal among equals, granted
before waiting, model priority, arrival). Requests of one principal stay together, so the ranking is
a tree of seats (one for each principal) that hold a tree of claims each: a principal that changes
place takes all its claims along in one step.

The ideal set is what a walk down the ranking takes while it fits. It is not walked anew for each
event: :meth:`Ranking.repair` finds the claims that an event has put on the wrong side, and turns
those over.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from npukit.manager.sizes import Demand, Dimension, Ledger, Size
from npukit.manager.tree import NIL, Node, Tree, taken_before
from npukit.manager.types import State


class Copy:
    """One model in memory, shared by every request that names the same content hash and size."""

    __slots__ = ("content", "demand", "live", "loaded", "size")

    def __init__(self, content: str, size: Size) -> None:
        self.content = content
        self.size = size
        self.demand: Demand = {}
        self.loaded = False
        self.live = 0  # requests that name it


class Request:
    """One model that a client has asked to load. ``demand`` leaves out what ``copy`` holds."""

    __slots__ = (
        "claim",
        "connection",
        "copy",
        "demand",
        "due",
        "id",
        "since",
        "size",
        "state",
        "why",
    )

    def __init__(
        self, connection: str, request_id: int, size: Size, copy: Copy | None, now: float
    ) -> None:
        self.connection = connection
        self.id = request_id
        self.size = size
        self.copy = copy
        self.demand: Demand = {}
        self.state: State | None = State.NOT_PRIORITIZED  # None: gone
        self.since = now
        self.due = inf
        self.why = ""
        self.claim: Claim

    @property
    def order(self) -> tuple[int, ...]:
        """Decides between deadlines of one moment."""
        return self.claim.arrival, self.id


class Claim(Node):
    """What is admitted and displaced as one: a request, or the requests of a gang."""

    __slots__ = (
        "arrival",
        "background",
        "due",
        "granted",
        "requests",
        "seat",
        "shortage",
        "taken",
        "weight",
    )

    def __init__(self, requests: list[Request], background: bool, arrival: int) -> None:
        super().__init__()
        self.requests = requests
        self.background = background
        self.arrival = arrival
        self.weight = 0
        self.taken = False
        self.granted = False
        self.due = inf
        self.shortage: tuple[Dimension, int, float] | None = None
        self.seat: Seat
        for request in requests:
            request.claim = self

    @property
    def order(self) -> tuple[int, ...]:
        return (self.arrival,)

    @property
    def rank(self) -> tuple[Any, Any]:
        """Sorts claims of one ranking, first goes first."""
        return self.seat.key, self.key


class Seat(Node):
    """The place of a principal's claims in the ranking."""

    __slots__ = ("backgrounds", "claims", "precedence", "principal")

    def __init__(self, principal: str, precedence: Any) -> None:
        super().__init__()
        self.principal = principal
        self.precedence = precedence
        self.claims: Tree[Claim] = Tree()
        self.backgrounds = 0  # how many of them are of BACKGROUND priority

    def place(self) -> tuple[Any, bool, int]:
        """The seat's key: among equals, those with something granted first, then the oldest."""
        waiting, background, arrival = self.claims.first().key
        if not background and self.backgrounds:
            other = self.claims.first_from((waiting, True, 0))
            if other is not None and other.key[0] == waiting:
                arrival = min(arrival, other.arrival)
        return self.precedence, waiting, arrival


class Ranking:
    """The claims of all principals in order, each marked ``taken`` when it is in the ideal set.

    :meth:`repair` works on weights against one limit, :meth:`rewalk` on ledgers in linear time.
    """

    __slots__ = ("_seats",)

    def __init__(self) -> None:
        self._seats: Tree[Seat] = Tree()

    def __iter__(self) -> Iterator[Claim]:
        for seat in self._seats:
            yield from seat.claims

    @property
    def taken(self) -> int:
        """The weight of all claims that are in."""
        return self._seats.root.total

    def waiting(self) -> Iterator[Claim]:
        """The claims that are in but not granted yet, in order."""
        for seat in self._seats.those_waiting():
            yield from seat.claims.those_waiting()

    def waiting_seats(self) -> Iterator[Seat]:
        """The seats of those claims, in order."""
        return self._seats.those_waiting()

    def add(self, claim: Claim, seat: Seat) -> None:
        claim.seat = seat
        seat.backgrounds += claim.background
        self._insert(claim)
        self._reseat(seat)

    def __contains__(self, claim: Claim) -> bool:
        return claim.key is not None

    def drop(self, claim: Claim) -> None:
        claim.seat.claims.remove(claim)
        claim.key = None
        claim.seat.backgrounds -= claim.background
        self._reseat(claim.seat)

    def update(self, claim: Claim) -> None:
        """Take note that ``granted`` or ``weight`` has changed."""
        claim.seat.claims.remove(claim)
        self._insert(claim)
        self._reseat(claim.seat)

    def move(self, seat: Seat, precedence: Any) -> None:
        """Give all of a seat's claims another precedence."""
        seat.precedence = precedence
        self._reseat(seat)

    def repair(self, limit: int) -> list[Claim]:
        """Make ``taken`` right for scalar weights under ``limit``; returns the claims that changed.

        What is before the first wrong claim is right, so turning that one over never makes an
        earlier one wrong: each claim is turned at most once, at O(log n).
        """
        turned = []
        while (seat := self._seats.first_misfit(limit, 0)) is not None:
            inside = seat[0].claims.first_misfit(limit, seat[1])
            assert inside is not None, "a seat's sums are those of its claims"
            self._turn(inside[0])
            turned.append(inside[0])
        return turned

    def rewalk(self, ledger: Ledger) -> list[Claim]:
        """Make ``taken`` right by a walk that fills the empty ``ledger``; returns as repair()."""
        turned = []
        for claim in self:
            claim.shortage = ledger.shortage(claim.requests)
            fits = claim.shortage is None
            if fits:
                ledger.add(claim.requests)
            if fits != claim.taken:
                turned.append(claim)
        for claim in turned:
            self._turn(claim)
        return turned

    def taken_before(self, claim: Claim) -> int:
        """The weight of the ideal set's claims that rank before ``claim``."""
        return taken_before(claim.seat) + taken_before(claim)

    def _turn(self, claim: Claim) -> None:
        claim.taken = not claim.taken
        _share(claim)
        claim.seat.claims.refresh(claim)
        self._refresh(claim.seat)

    def _insert(self, claim: Claim) -> None:
        claim.key = (not claim.granted, claim.background, claim.arrival)
        _share(claim)
        claim.seat.claims.insert(claim)

    def _refresh(self, seat: Seat) -> None:
        claims = seat.claims.root
        seat.own_total, seat.own_need = claims.total, claims.need
        seat.own_waiting = claims.waiting
        self._seats.refresh(seat)

    def _reseat(self, seat: Seat) -> None:
        """Put a seat where it belongs; one without claims belongs nowhere."""
        key = None if seat.claims.root is NIL else seat.place()
        if key == seat.key:
            if key is not None:
                self._refresh(seat)
            return
        if seat.key is not None:
            self._seats.remove(seat)
        seat.key = key
        if key is not None:
            claims = seat.claims.root
            seat.own_total, seat.own_need = claims.total, claims.need
            seat.own_waiting = claims.waiting
            self._seats.insert(seat)


def _share(claim: Claim) -> None:
    """Set what ``claim`` adds to the sums of the tree that it stands in."""
    claim.own_total = claim.weight if claim.taken else 0
    claim.own_need = inf if claim.taken else claim.weight
    claim.own_waiting = claim.taken and not claim.granted
