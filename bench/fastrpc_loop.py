# SPDX-License-Identifier: MIT
"""The counterpart of tests/sim/fastrpc_client.c loop: for each number read, so many calls."""

import sys

from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL

HEAD, DATA = b"\x10\0\0\0\x10\0\0\0", b"0123456789abcdef"


def main() -> None:
    with FastRpcDevice.open() as device:
        device.start(SHELL, verify=UNVERIFIED)
        with idl.load("echo.idl").open(device) as echo:
            print("ready", flush=True)
            for line in sys.stdin:
                if sys.argv[1] == "stub":
                    for _ in range(int(line)):
                        echo.echo(DATA, 16)
                else:
                    for _ in range(int(line)):
                        device.invoke(echo.handle, 2, [HEAD, DATA], [16])
                print("done", flush=True)


if __name__ == "__main__":
    main()
