# SPDX-License-Identifier: MIT
"""The manager's promises over a million events: ``python tests/manager/soak.py [N [SEED]]``."""

import sys

from npukit.manager.simulate import simulate


def soak(events=1_000_000, seed=0):
    """A third with honest clients, two thirds with others; raises BrokenPromise."""
    for number, dishonest in enumerate((0.0, 0.3, 0.8)):
        print(simulate(8 << number, events // 3 + 1, seed + number, dishonest=dishonest))


if __name__ == "__main__":
    soak(*map(int, sys.argv[1:]))
