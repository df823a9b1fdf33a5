# SPDX-License-Identifier: MIT
"""usage: python -m bench.empty_door PROGRAM ARGS...

npukit sim run with one device, /dev/empty, whose driver reads the argument of a request and writes
it back.
"""

import os
import sys

from npukit.sim.core import Caller, SimDevice, SimFile
from npukit.sim.door import Door
from npukit.sim.run import run_behind


class EmptyFile(SimFile):
    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        caller.copy_to_user(address, caller.copy_from_user(address, 24))
        return 0


class EmptySim(SimDevice):
    name = "empty"
    major = 10

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        return EmptyFile(self.kernel), os.memfd_create("empty")


door = Door([])
door.devices.append(EmptySim(door, ("/dev/empty",)))
sys.exit(run_behind(door, sys.argv[1:]))
