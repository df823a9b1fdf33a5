# SPDX-License-Identifier: MIT
"""What each kernel header says, one module per header: constants, structures, requests."""

from __future__ import annotations

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """A header's module, imported when it is first asked for."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"npukit.abi.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"npukit.abi.{name}":
            raise
        raise AttributeError(f"npukit.abi has no module {name!r}") from None
