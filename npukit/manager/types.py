# SPDX-License-Identifier: MIT
"""What the manager and its clients say to each other: statuses, callbacks, errors, priorities.

The numbers of statuses, policies and priorities are those of Android's NPU manager; REVOKED, EVICT,
the device's health and the error codes are npukit's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Any, NoReturn, Self

MOST = (1 << 63) - 1
"""The largest number that may be asked for: what a file offset, and a wire, can express."""


class Status(IntEnum):
    """What a callback says about a request; the last three are terminal."""

    CAN_LOAD_NOW = 0
    WAIT_FOR_UNLOAD = 1
    NOT_PRIORITIZED = 2
    CANCELLED = 3
    COMPLETE = 4
    REVOKED = 5


class State(StrEnum):
    """Where a live request stands. PENDING_LOAD, LOADED and UNLOADING are charged to the budget."""

    NOT_PRIORITIZED = "NOT_PRIORITIZED"
    WAIT_FOR_UNLOAD = "WAIT_FOR_UNLOAD"
    PENDING_LOAD = "PENDING_LOAD"
    LOADED = "LOADED"
    UNLOADING = "UNLOADING"


CHARGED = (State.PENDING_LOAD, State.LOADED, State.UNLOADING)


class CallbackKind(StrEnum):
    """Which method of the client a callback calls; EVICT goes to the service itself."""

    CAN_LOAD = "can_load"
    REQUEST_UNLOAD = "request_unload"
    COMPLETE = "complete"
    EVICT = "evict"


MANAGER = "manager"
"""The connection name of callbacks that are for the service and no client."""


@dataclass(frozen=True, slots=True)
class Callback:
    """One thing to tell a client.

    ``request_id`` is the client's own id (for EVICT: the content hash of the idle model to free),
    ``status`` is None for REQUEST_UNLOAD and EVICT. ``why`` is for people: it takes no part in
    equality, and ``str()`` leaves it out.
    """

    connection: str
    kind: CallbackKind
    request_id: int | str
    status: Status | None = None
    why: str = field(default="", compare=False)

    def __str__(self) -> str:
        status = "" if self.status is None else f",{self.status.name}"
        return f"{self.connection}.{self.kind}({self.request_id}{status})"


class Code(StrEnum):
    """Why a call was refused."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNKNOWN_CONNECTION = "UNKNOWN_CONNECTION"
    DUPLICATE_CONNECTION = "DUPLICATE_CONNECTION"
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
    DUPLICATE_REQUEST = "DUPLICATE_REQUEST"
    NOT_GRANTED = "NOT_GRANTED"


class EngineError(Exception):
    """A refused call; nothing has changed. ``code`` is for programs, the text for people."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class WrongType(EngineError, TypeError):
    """An argument of a type that it cannot have."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, text)


def refuse(what: str, value: object, why: str) -> NoReturn:
    """Raises EngineError(INVALID_ARGUMENT) that names the argument."""
    raise EngineError(Code.INVALID_ARGUMENT, f"{what}: {brief(value)} {why}")


def check_type(what: str, value: object, kind: type) -> None:
    """Raises WrongType, which names the argument, for what is no ``kind``."""
    if not isinstance(value, kind):
        raise WrongType(f"{what}: {brief(value)} is no {kind.__name__}")


def brief(value: object) -> str:
    """``value`` for a message, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of more digits than Python prints, or anything in an object
        text = f"{type(value).__name__} without a text"
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Priority(int):
    """A number from 0 (best) to 1000 (worst) that does not mix with the other kinds of priority."""

    def __new__(cls, value: int) -> Self:
        mixed = isinstance(value, _Priority | Enum | bool) and not isinstance(value, cls)
        if mixed or not isinstance(value, int):
            raise WrongType(f"{brief(value)} is no {cls.__name__}")
        if not 0 <= value <= 1000:
            refuse(cls.__name__, value, "is not in 0..1000")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self),)


class Importance(_Priority):
    """How much a principal matters to the person at the machine now.

    Android's process importances: 100 foreground, 125 foreground service, 200 visible,
    230 perceptible, 300 service, 325 top sleeping, 400 cached, 1000 gone or unknown.
    """


FOREGROUND = Importance(100)
UNKNOWN = Importance(1000)


class BufferPriority(_Priority):
    """How much a principal needs one of its buffers: 0 most, 500 usual, 1000 least."""


class ModelPriority(Enum):
    """How a principal ranks its own models among each other."""

    NORMAL = "N"
    BACKGROUND = "B"


class Health(StrEnum):
    """What is known of the device.

    QUARANTINED: suspect (a client died inside it, a job timed out), so nothing new is admitted.
    LOST: its memory is gone, so every grant is revoked.
    """

    OK = "OK"
    LOST = "LOST"
    QUARANTINED = "QUARANTINED"


class StartReason(StrEnum):
    INITIAL = "INITIAL"
    RESUMED = "RESUMED"


class EndReason(StrEnum):
    """Why work ended; only COMPLETED passes the turn."""

    COMPLETED = "COMPLETED"
    CANCELLED_USER = "CANCELLED_USER"
    CANCELLED_SYSTEM = "CANCELLED_SYSTEM"
    PAUSED = "PAUSED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work on the NPU, as its provider reports it.

    ``original`` is the principal on whose behalf ``principal`` works, None for its own.
    ``job_priority`` is 0 to 1000 within the principal, ``group`` joins pieces of one task,
    ``timestamp_ms`` is CLOCK_MONOTONIC.
    """

    principal: str
    original: str | None = None
    job_priority: int = 500
    group: int = 0
    device: int = 0
    timestamp_ms: int = 0

    @property
    def owner(self) -> str:
        """Who the work is for: the one whose turn it uses."""
        return self.principal if self.original is None else self.original
