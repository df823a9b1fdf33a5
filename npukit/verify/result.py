# SPDX-License-Identifier: MIT
"""What a witness says about one interface."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from .interface import Comparison, Difference


class Verdict(enum.Enum):
    AGREED = "agreed"
    DIFFERS = "differs"
    UNCHECKED = "cannot be checked"


@dataclass(frozen=True, slots=True)
class Result:
    """One ``witness`` ("header", "btf", "module", "snapshot") about one ``driver``.

    ``source`` is what it looked at. ``facts`` counts what agreed: sizes, fields, constants and
    requests. ``absent`` are names that npukit has and the source does not speak of, ``unknown``
    those that it has and npukit does not; neither is a difference. ``reason`` says why nothing
    could be checked, ``notes`` what else is worth knowing.
    """

    driver: str
    witness: str
    source: str
    verdict: Verdict
    facts: int = 0
    differences: tuple[Difference, ...] = ()
    absent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()

    def asdict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "driver": self.driver,
            "witness": self.witness,
            "source": self.source,
            "verdict": self.verdict.value,
            "facts": self.facts,
            "differences": [
                {
                    "subject": found.subject,
                    "what": found.what,
                    "npukit": found.ours,
                    "kernel": found.theirs,
                }
                for found in self.differences
            ],
            "absent": list(self.absent),
            "unknown": list(self.unknown),
            "reason": self.reason,
            "notes": list(self.notes),
        }


def judge(
    driver: str,
    witness: str,
    source: str,
    compared: Comparison,
    *,
    reason: str,
    notes: tuple[str, ...] = (),
) -> Result:
    """The result of a comparison; ``reason`` is why, when not one fact could be compared."""
    if compared.differences:
        verdict = Verdict.DIFFERS
    elif compared.facts:
        verdict = Verdict.AGREED
    else:
        return unchecked(driver, witness, source, reason)
    return Result(
        driver,
        witness,
        source,
        verdict,
        compared.facts,
        tuple(compared.differences),
        tuple(compared.absent),
        tuple(compared.unknown),
        notes=notes,
    )


def unchecked(driver: str, witness: str, source: str, reason: str) -> Result:
    """Nothing could be checked."""
    return Result(driver, witness, source, Verdict.UNCHECKED, reason=reason)
