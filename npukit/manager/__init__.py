# SPDX-License-Identifier: MIT
"""Who may use the NPU: admission of models, importance, preemption, and turns among equals."""

from npukit.manager.engine import Engine, LoadRequest
from npukit.manager.policies import Budget, Policy, StatusQuo, TurnTaking, discover
from npukit.manager.sizes import ModelSize
from npukit.manager.types import (
    BufferPriority,
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
)

__all__ = [
    "Budget",
    "BufferPriority",
    "Callback",
    "CallbackKind",
    "Code",
    "EndReason",
    "Engine",
    "EngineError",
    "Health",
    "Importance",
    "LoadRequest",
    "ModelPriority",
    "ModelSize",
    "Policy",
    "StartReason",
    "State",
    "Status",
    "StatusQuo",
    "TurnTaking",
    "Work",
    "discover",
]
