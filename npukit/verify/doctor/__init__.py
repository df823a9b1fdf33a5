# SPDX-License-Identifier: MIT
"""Which NPUs has this machine, can this user use them, and if not, what exactly helps?"""

from .advice import Diagnosis, Finding, Npu, Problem, diagnose, judge
from .machine import Identity, Machine, read

__all__ = [
    "Diagnosis",
    "Finding",
    "Identity",
    "Machine",
    "Npu",
    "Problem",
    "diagnose",
    "judge",
    "read",
]
