# SPDX-License-Identifier: MIT
"""Which request of which driver is a number? Several drivers share most numbers."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass

import npukit.abi
from npukit.ioctl import Ioctl, decode


@dataclass(frozen=True, slots=True)
class Match:
    """A request that a number may be. ``exact`` is False where only direction or size differ: DRM
    goes by type and number alone and pads or cuts the argument."""

    module: str
    request: Ioctl
    exact: bool


@functools.cache
def all_requests() -> tuple[tuple[str, Ioctl], ...]:
    """(module name in npukit.abi, request) of every driver."""
    found: dict[tuple[str, str, int], Ioctl] = {}
    for info in pkgutil.iter_modules(npukit.abi.__path__):
        module = importlib.import_module(f"npukit.abi.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Ioctl):
                found.setdefault((info.name, value.name, int(value)), value)
    return tuple((module, request) for (module, _, _), request in found.items())


def requests_of(number: int) -> list[Match]:
    """Every request that ``number`` may be, exact ones first; without one, those of its type and
    number with another size or direction."""
    number &= 0xFFFFFFFF
    exact = [Match(m, r, True) for m, r in all_requests() if r == number]
    if exact:
        return exact
    parts = decode(number)
    return [
        Match(module, request, False)
        for module, request in all_requests()
        if (request.type, request.nr) == (parts.type, parts.nr)
    ]
