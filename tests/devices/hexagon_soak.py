# SPDX-License-Identifier: MIT
"""Many threads on one session of a simulated DSP. Usage: hexagon_soak.py [SECONDS]"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from npukit.devices.fastrpc import UNVERIFIED, DmaBuffer, FastRpcDevice
from npukit.devices.fastrpc_errors import HexagonError
from npukit.devices.fastrpc_host import Host
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL
from npukit.sim.fastrpc import FastRpcSim

ECHO = idl.load("echo.idl")
THREADS = 16


def work(
    module: idl.Module,
    device: FastRpcDevice,
    files: Sequence[tuple[str, int]],
    chosen: random.Random,
    more: Callable[[int], bool],
    done: Counter[str],
) -> None:
    """Calls of each kind, chosen by ``chosen``, until ``more`` (calls so far) says no."""
    with device.alloc(8192) as buffer:
        count = 0
        while more(count):
            kind = chosen.choice(("echo", "echo", "shared", "mapped", "file", "file", "fail"))
            _ONE[kind](module, buffer, files, chosen)
            done[kind] += 1
            count += 1


def _echo(
    module: idl.Module, _buffer: DmaBuffer, _files: Sequence[tuple[str, int]], chosen: random.Random
) -> None:
    data = chosen.randbytes(chosen.randrange(0, 5000))
    assert module.echo(data, len(data)) == data


def _shared(
    module: idl.Module, buffer: DmaBuffer, _files: Sequence[tuple[str, int]], chosen: random.Random
) -> None:
    size, key = chosen.randrange(1, 4096), chosen.randrange(256)
    with buffer.write() as array:
        array[:size] = np.frombuffer(chosen.randbytes(size), np.uint8)
        wanted = array[:size] ^ np.uint8(key)
    del array
    module.transform(buffer.part(0, size), key, buffer.part(4096, size))
    with buffer.read() as array:
        assert (array[4096 : 4096 + size] == wanted).all()
    del array


def _mapped(
    module: idl.Module, buffer: DmaBuffer, _files: Sequence[tuple[str, int]], chosen: random.Random
) -> None:
    address = buffer.map_to_dsp()
    with buffer.write() as array:
        array[:] = 7
    del array
    module.transform_mapped(address, buffer.size, 1)
    with buffer.read() as array:
        assert (array == 6).all()
    del array
    if chosen.random() < 0.5:
        buffer.unmap_from_dsp()


def _file(
    module: idl.Module, _buffer: DmaBuffer, files: Sequence[tuple[str, int]], chosen: random.Random
) -> None:
    name, total = chosen.choice(files)
    assert module.checksum(name)[1] == total


def _fail(
    module: idl.Module, _buffer: DmaBuffer, _files: Sequence[tuple[str, int]], chosen: random.Random
) -> None:
    code = chosen.randrange(1, 1000)
    with pytest.raises(HexagonError) as caught:
        module.fail(code)
    assert caught.value.code == code


_ONE = {"echo": _echo, "shared": _shared, "mapped": _mapped, "file": _file, "fail": _fail}


@contextlib.contextmanager
def no_deadlock(seconds: float) -> Iterator[None]:
    """End the process, with the stacks of all threads, when the block takes longer than that."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def hammer(
    kernel: object, folder: Path, more: Callable[[int], bool], seed: int = 0
) -> Counter[str]:
    """How many calls of each kind ``THREADS`` threads made on one session.

    Raises the first failure of a thread. Whether it ends is the test.
    """
    files = []
    for number in range(4):
        data = random.Random(number).randbytes(1000 * number + 3)
        (folder / f"file{number}").write_bytes(data)
        files.append((f"file{number}", sum(data)))
    failures: list[BaseException] = []
    counters = [Counter[str]() for _ in range(THREADS)]
    with FastRpcDevice.open(kernel=kernel) as device:  # type: ignore[arg-type]
        device.start(SHELL, verify=UNVERIFIED, host=Host([folder]))
        with ECHO.open(device) as module:

            def run(number: int) -> None:
                try:
                    chosen = random.Random(seed * THREADS + number)
                    work(module, device, files, chosen, more, counters[number])
                except BaseException as error:
                    failures.append(error)

            workers = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    if failures:
        raise failures[0]
    return sum(counters, Counter())


def soak(seconds: float = 60.0, seed: int | None = None) -> Counter[str]:
    """The long run; prints its seed first, so that it can be had again."""
    from npukit.sim import SimKernel

    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"hexagon_soak: {THREADS} threads, {seconds:g} s, seed {seed}", flush=True)
    kernel = SimKernel(["fastrpc-cdsp"])
    device = kernel.devices[0]
    assert isinstance(device, FastRpcSim)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, no_deadlock(seconds + 60):
        done = hammer(kernel, Path(folder), lambda _count: time.monotonic() < end, seed)
    device.dsp.join()
    assert device.dsp.processes == {}
    print(f"hexagon_soak: {sum(done.values())} calls: {dict(sorted(done.items()))}")
    return done


if __name__ == "__main__":
    soak(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
