# SPDX-License-Identifier: MIT
"""Is the ABI what we believe? Ask headers, a kernel's type information, its modules, and memory."""

from .check import check
from .errors import FormatError
from .interface import (
    Comparison,
    Difference,
    Field,
    Interface,
    Layout,
    compare,
    of_class,
    of_module,
)
from .result import Result, Verdict
from .subjects import SUBJECTS, Subject

__all__ = [
    "SUBJECTS",
    "Comparison",
    "Difference",
    "Field",
    "FormatError",
    "Interface",
    "Layout",
    "Result",
    "Subject",
    "Verdict",
    "check",
    "compare",
    "of_class",
    "of_module",
]
