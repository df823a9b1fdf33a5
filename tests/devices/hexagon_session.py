# SPDX-License-Identifier: MIT
"""A started session of a simulated DSP, and its end."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

from support import no_leak

from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice
from npukit.devices.fastrpc_host import Host
from npukit.sim import SimKernel
from npukit.sim.cdsp import SHELL
from npukit.sim.fastrpc import FastRpcSim


def machine(**options: Any) -> tuple[SimKernel, FastRpcSim]:
    """A machine with a CDSP and a heap."""
    kernel = SimKernel(["dma_heap"])
    dsp = FastRpcSim(kernel, **options)
    kernel.devices.append(dsp)
    return kernel, dsp


def threads() -> set[str]:
    """Names of the threads that sessions and DSPs run."""
    return {t.name for t in threading.enumerate() if t.name.startswith(("listener", "DSP"))}


@contextlib.contextmanager
def nothing_left(dsp: FastRpcSim) -> Iterator[None]:
    """Fails when descriptors, mappings, sessions or threads are left."""
    with no_leak():
        yield
        gc.collect()
        check_idle(dsp)


def check_idle(dsp: FastRpcSim) -> None:
    """Fails when sessions or threads are left."""
    dsp.dsp.join()
    assert threads() == set()
    assert dsp.dsp.processes == {}
    if dsp.channel is not None:
        assert not any(dsp.channel.sessions)


@contextlib.contextmanager
def session(*search: Any, **options: Any) -> Iterator[FastRpcDevice]:
    """A session with its process; ``search`` are the folders that its host shows."""
    kernel, dsp = machine(**options)
    with nothing_left(dsp):
        with FastRpcDevice.open("cdsp", kernel=kernel) as device:
            device.start(SHELL, verify=UNVERIFIED, host=Host([str(folder) for folder in search]))
            yield device
        del device
