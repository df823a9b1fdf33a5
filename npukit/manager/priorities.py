# SPDX-License-Identifier: MIT
"""Importances down to whoever schedules the NPU, work events up from it.

:class:`PriorityManager` keeps the table of principals, passes each change to the engine and to the
provider, and passes the provider's work events to the engine. A :class:`Provider` is what Android
calls the NPU HAL: something that schedules by the table and reports work. :class:`DriverProvider`
is one for a device of this machine, real or simulated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Protocol

from npukit.manager.engine import Clock, Engine
from npukit.manager.types import (
    FOREGROUND,
    UNKNOWN,
    Callback,
    Code,
    EndReason,
    EngineError,
    Importance,
    StartReason,
    Work,
    check_type,
)

logger = logging.getLogger("npukit.manager")

DEBOUNCE = 0.050
"""Seconds without new work after which work has ended (DEBOUNCE_DURATION_MS of the Android HAL)."""

RETRY = 1.0
"""Seconds between two attempts to reach a provider that has died."""

PINNED = frozenset({"root", "system"})
"""Principals that are always as important as the foreground."""


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """What a provider knows of one principal; of one that it was never told of, the defaults."""

    principal: str
    priority: Importance = UNKNOWN
    has_direct_access: bool = True
    can_attribute_other: bool = False


class WorkListener(Protocol):
    """Who is told of work. ``work.original`` names whom it is for, if not its principal."""

    def on_work_requested(self, work: Work) -> None: ...

    def on_work_started(self, work: Work, reason: StartReason) -> None: ...

    def on_work_ended(self, work: Work, reason: EndReason) -> None: ...


class Provider(Protocol):
    """Who schedules work on an NPU. Any call raises ConnectionError when the provider has died."""

    def set_scheduling_configs(self, configs: Iterable[SchedulingConfig]) -> None:
        """Replace the whole table; [] clears it."""

    def update_scheduling_configs(self, configs: Iterable[SchedulingConfig]) -> None:
        """Add or replace some principals' entries."""

    def set_listener(self, listener: WorkListener) -> None:
        """Report work to ``listener`` from now on, and to no other."""


class PriorityManager:
    """The importance table, and the bridge between the engine and a provider.

    ``deliver`` gets the engine's callbacks, ``connect`` returns a provider or raises OSError, and
    ``lookup`` says how important a principal is that is seen for the first time. :meth:`tick` is to
    be called about once a second: it looks for a provider again when the last one has died.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Callback]], None],
        connect: Callable[[], Provider],
        *,
        clock: Clock,
        lookup: Callable[[str], Importance] = lambda principal: UNKNOWN,
        pinned: Iterable[str] = PINNED,
        block_missing_feature: bool = False,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._connect = connect
        self._clock = clock
        self._lookup = lookup
        self._pinned = frozenset(pinned)
        self._block_missing_feature = block_missing_feature
        self._table: dict[str, SchedulingConfig] = {}
        self._provider: Provider | None = None
        self._retry_at = -inf
        for principal in sorted(self._pinned):
            self._put(SchedulingConfig(principal, FOREGROUND, can_attribute_other=True))
        self.tick()

    # ---- down ---------------------------------------------------------------------------------

    def config(self, principal: str) -> SchedulingConfig:
        """What the provider knows of ``principal``."""
        return self._table.get(principal, SchedulingConfig(principal))

    def set_importance(self, principal: str, value: Importance) -> None:
        """The importance of ``principal`` from now on; that of a pinned one stays."""
        check_type("principal", principal, str)
        if principal not in self._pinned:
            self._put(replace(self.config(principal), priority=Importance(value)))

    def admit(self, principal: str, declared: bool, can_attribute_other: bool = False) -> bool:
        """Whether an application may use the NPU, given whether it ``declared`` that it does.

        One that did not is warned about, or kept out where block_missing_feature is on.
        """
        access = declared or principal in self._pinned or not self._block_missing_feature
        if not (declared or principal in self._pinned):
            logger.warning(
                "%s uses the NPU and has not declared so: %s",
                principal,
                "allowed, for now" if access else "refused",
            )
        self._see(principal)
        self._put(
            replace(
                self.config(principal),
                has_direct_access=access,
                can_attribute_other=can_attribute_other or principal in self._pinned,
            )
        )
        return access

    def forget(self, principal: str) -> None:
        """The principal is gone: to the provider it is one that it was never told of."""
        if principal not in self._pinned and principal in self._table:
            self._put(SchedulingConfig(principal))
            del self._table[principal]

    def _see(self, principal: str) -> None:
        if principal not in self._table:
            self.set_importance(principal, self._lookup(principal))

    def _put(self, config: SchedulingConfig) -> None:
        if self._table.get(config.principal) == config:
            return
        callbacks = self._engine.set_priority(config.principal, config.priority)
        self._table[config.principal] = config
        self._deliver(callbacks)
        if self._provider is not None:
            try:
                self._provider.update_scheduling_configs([config])
            except ConnectionError:
                self.provider_died()

    # ---- the provider -------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._provider is not None

    def provider_died(self) -> None:
        """The provider is gone; the next one is told everything anew."""
        logger.warning("the NPU provider has died")
        self._provider = None

    def tick(self) -> None:
        """Look for a provider, if there is none and it is time to."""
        if self._provider is not None or self._clock() < self._retry_at:
            return
        self._retry_at = self._clock() + RETRY
        try:
            provider = self._connect()
            provider.set_listener(self)
            provider.set_scheduling_configs(list(self._table.values()))
        except OSError as error:
            logger.info("no NPU provider yet: %s", error)
        else:
            self._provider = provider

    # ---- up -----------------------------------------------------------------------------------

    def on_work_requested(self, work: Work) -> None:
        work = self._checked(work)
        self._see(work.owner)
        self._deliver(self._engine.work_requested(work))

    def on_work_started(self, work: Work, reason: StartReason) -> None:
        self._deliver(self._engine.work_started(self._checked(work), reason))

    def on_work_ended(self, work: Work, reason: EndReason) -> None:
        self._deliver(self._engine.work_ended(self._checked(work), reason))

    def _checked(self, work: Work) -> Work:
        """``work``, for its principal itself where that may not attribute it to another."""
        if work.original is None or self.config(work.principal).can_attribute_other:
            return work
        return replace(work, original=None)


class Debounce:
    """Joins the work of one owner that follows within 50 ms to one piece.

    A request is passed on if its owner had no work running or just ended, a start if its request
    was, and an end once 50 ms have passed without a new request. The owner is (principal,
    original): one who works for two others must not hide the work of the one behind the other's.
    """

    def __init__(self, clock: Clock, listener: WorkListener) -> None:
        self._clock = clock
        self._listener = listener
        self._owners: dict[tuple[str, str | None], _Burst] = {}

    def on_work_requested(self, work: Work) -> None:
        if self._join(work):
            self._listener.on_work_requested(work)

    def on_work_started(self, work: Work, reason: StartReason) -> None:
        """A resumed start needs no request: it counts as one that is not passed on."""
        if reason is StartReason.RESUMED:
            self._join(work)
        burst = self._owners.get((work.principal, work.original))
        if burst is None or not burst.started:
            self._listener.on_work_started(work, reason)
        if burst is not None:
            burst.started = True

    def on_work_ended(self, work: Work, reason: EndReason) -> None:
        burst = self._owners.get((work.principal, work.original))
        if burst is None:
            return  # its request was never seen, or its end was reported already
        burst.running -= 1
        if burst.running <= 0:
            burst.end = work, reason
            burst.due = self._clock() + DEBOUNCE

    def next_deadline(self) -> float | None:
        """The clock's value at which tick() has something to do, None if nothing is pending."""
        due = min((burst.due for burst in self._owners.values()), default=inf)
        return None if due == inf else due

    def tick(self) -> None:
        """Report the ends that no new request has followed in time."""
        now = self._clock()
        for owner, burst in list(self._owners.items()):
            if burst.due <= now and burst.end is not None:
                del self._owners[owner]
                self._listener.on_work_ended(*burst.end)

    def _join(self, work: Work) -> bool:
        """Count ``work`` to its owner's burst; whether a new one had to begin."""
        self.tick()
        owner = work.principal, work.original
        fresh = owner not in self._owners
        burst = self._owners.setdefault(owner, _Burst())
        burst.running += 1
        burst.end, burst.due = None, inf
        return fresh


@dataclass(slots=True)
class _Burst:
    running: int = 0
    started: bool = False
    end: tuple[Work, EndReason] | None = None
    due: float = inf


class Level(IntEnum):
    """The coarse priorities that drivers offer."""

    REALTIME = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @classmethod
    def of(cls, importance: Importance) -> Level:
        """Better than any application; foreground; visible or serving; cached or unknown."""
        if importance < FOREGROUND:
            return cls.REALTIME
        if importance < 200:
            return cls.HIGH
        return cls.NORMAL if importance < 400 else cls.LOW


IVPU = {Level.REALTIME: 4, Level.HIGH: 3, Level.NORMAL: 2, Level.LOW: 1}
"""DRM_IVPU_JOB_PRIORITY_{REALTIME,FOCUS,NORMAL,IDLE} of drm/ivpu_accel.h."""

AMDXDNA = {Level.REALTIME: 0x100, Level.HIGH: 0x180, Level.NORMAL: 0x200, Level.LOW: 0x280}
"""AMDXDNA_QOS_{REALTIME,HIGH,NORMAL,LOW}_PRIORITY of drm/amdxdna_accel.h."""

NICE = {Level.REALTIME: -10, Level.HIGH: -5, Level.NORMAL: 0, Level.LOW: 10}
"""Nice values, for drivers without priorities of their own."""


class DriverProvider:
    """The provider for a device of this machine.

    ``apply(principal, value)`` makes the device schedule by ``value``, a member of ``scale`` (IVPU,
    AMDXDNA or NICE). Who drives the device calls the ``on_work_*`` methods and tick() at
    next_deadline().
    """

    def __init__(
        self, clock: Clock, apply: Callable[[str, int], None], scale: Mapping[Level, int]
    ) -> None:
        self._clock = clock
        self._apply = apply
        self._scale = scale
        self._table: dict[str, SchedulingConfig] = {}
        self._debounce: Debounce | None = None

    def config(self, principal: str) -> SchedulingConfig:
        return self._table.get(principal, SchedulingConfig(principal))

    def effective_priority(self, work: Work) -> int:
        """Where ``work`` stands among all: 0, first, to 2000."""
        may_attribute = self.config(work.principal).can_attribute_other
        owner = work.owner if may_attribute else work.principal
        return self.config(owner).priority + work.job_priority

    def set_scheduling_configs(self, configs: Iterable[SchedulingConfig]) -> None:
        """Raises EngineError(INVALID_ARGUMENT) when a principal comes twice."""
        table = _by_principal(configs)
        gone = [SchedulingConfig(name) for name in self._table if name not in table]
        self._table = table
        self._apply_all([*gone, *table.values()])

    def update_scheduling_configs(self, configs: Iterable[SchedulingConfig]) -> None:
        """Raises EngineError(INVALID_ARGUMENT) when a principal comes twice."""
        table = _by_principal(configs)
        self._table |= table
        self._apply_all(table.values())

    def set_listener(self, listener: WorkListener) -> None:
        self._debounce = Debounce(self._clock, listener)

    def on_work_requested(self, work: Work) -> None:
        if self._debounce is not None:
            self._debounce.on_work_requested(work)

    def on_work_started(self, work: Work, reason: StartReason) -> None:
        if self._debounce is not None:
            self._debounce.on_work_started(work, reason)

    def on_work_ended(self, work: Work, reason: EndReason) -> None:
        if self._debounce is not None:
            self._debounce.on_work_ended(work, reason)

    def next_deadline(self) -> float | None:
        return None if self._debounce is None else self._debounce.next_deadline()

    def tick(self) -> None:
        if self._debounce is not None:
            self._debounce.tick()

    def _apply_all(self, configs: Iterable[SchedulingConfig]) -> None:
        for config in configs:
            self._apply(config.principal, self._scale[Level.of(config.priority)])


def _by_principal(configs: Iterable[SchedulingConfig]) -> dict[str, SchedulingConfig]:
    table: dict[str, SchedulingConfig] = {}
    for config in configs:
        if config.principal in table:
            raise EngineError(Code.INVALID_ARGUMENT, f"{config.principal} comes twice")
        table[config.principal] = config
    return table
