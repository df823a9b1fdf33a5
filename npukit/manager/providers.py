# SPDX-License-Identifier: MIT
"""What a principal's importance changes in each driver.

A provider takes the table that PriorityManager pushes down. ivpu and amdxdna take a priority with
each submission or context and have no request that changes it later, so their providers say which
value the next one is to be given; for drivers without priorities the threads of the principal are
made nicer or less nice. A simulated device is reached through the same class as a real one, so it
has the same provider.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from npukit.manager.engine import Clock
from npukit.manager.priorities import AMDXDNA, IVPU, NICE, DriverProvider, Level

SetNice = Callable[[int, int], None]


class PriorityPerUse(DriverProvider):
    """For drivers that are told a priority each time: ``value_of(principal)`` is what to tell."""

    def __init__(self, clock: Clock, scale: dict[Level, int]) -> None:
        self._values: dict[str, int] = {}
        self._default = scale[Level.LOW]
        super().__init__(clock, self._values.__setitem__, scale)

    def value_of(self, principal: str) -> int:
        """The driver's value for ``principal``; the lowest for one that nobody has spoken of."""
        return self._values.get(principal, self._default)


def ivpu(clock: Clock) -> PriorityPerUse:
    """Values for ``priority`` of drm_ivpu_submit and drm_ivpu_cmdq_create."""
    return PriorityPerUse(clock, IVPU)


def amdxdna(clock: Clock) -> PriorityPerUse:
    """Values for ``AmdxdnaDevice.context(priority=...)``."""
    return PriorityPerUse(clock, AMDXDNA)


class NiceProvider(DriverProvider):
    """For drivers without priorities: the nice value of each thread of a principal.

    ``threads_of(principal)`` gives thread ids. ``refused`` holds the threads whose value could not
    be set, with the reason: a value below the present one needs CAP_SYS_NICE. Threads that are gone
    are passed over.
    """

    def __init__(
        self,
        clock: Clock,
        threads_of: Callable[[str], Iterable[int]],
        set_nice: SetNice = lambda thread, value: os.setpriority(os.PRIO_PROCESS, thread, value),
    ) -> None:
        self._threads_of = threads_of
        self._set_nice = set_nice
        self.refused: dict[int, str] = {}
        super().__init__(clock, self._apply_nice, NICE)

    def _apply_nice(self, principal: str, value: int) -> None:
        for thread in self._threads_of(principal):
            self.refused.pop(thread, None)
            try:
                self._set_nice(thread, value)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                self.refused[thread] = f"nice {value}: {error.strerror}"
