# SPDX-License-Identifier: MIT
"""A client that dies in the middle of a call gives its session back."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers import Peer, State
from support import no_leak

from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice, Host
from npukit.ioctl import DeviceBusy
from npukit.programs.hexagon import idl
from npukit.sim import SimKernel
from npukit.sim.cdsp import SHELL, Invocation, Process
from npukit.sim.fastrpc import FastRpcSim
from npukit.sim.socket import SocketKernel, serve

ECHO = idl.load("echo.idl")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[FastRpcSim, Path]]:
    with no_leak():
        kernel = SimKernel(["dma_heap"])
        dsp = FastRpcSim(kernel, sessions=1)
        kernel.devices.append(dsp)
        dsp.dsp.register(Gate.URI, Gate)
        with serve(kernel, tmp_path / "npu"):
            yield dsp, tmp_path / "npu"
        dsp.dsp.join()


def hang(state: State) -> None:
    """A process, a listener that waits, a mapped buffer, heap, and a call that does not return."""
    device = FastRpcDevice.open(kernel=state.kernel)
    device.start(SHELL, verify=UNVERIFIED, host=Host())
    device.alloc(4096).map_to_dsp()
    device.grow_heap(4096)
    device.invoke(device.open_module(Gate.URI), 2)


class Gate:
    """A module whose calls end with their process."""

    URI = "file:///libgate_skel.so?gate"
    entered = threading.Semaphore(0)

    def __init__(self, process: Process) -> None:
        self.process = process

    def invoke(self, call: Invocation) -> None:
        self.entered.release()
        self.process.wait_for_end()


def test_a_killed_client_leaves_no_session(machine: tuple[FastRpcSim, Path]) -> None:
    dsp, path = machine
    kernel = SocketKernel(path)
    for _ in range(3):
        victim = Peer(path)
        victim.start(hang)
        assert Gate.entered.acquire(timeout=60)
        with pytest.raises(DeviceBusy):
            FastRpcDevice.open(kernel=kernel)
        victim.kill()
        with FastRpcDevice.open(kernel=kernel) as device:
            device.start(SHELL, verify=UNVERIFIED)
            with ECHO.open(device) as echo:
                assert echo.echo(b"abc", 3) == b"abc"
        # The close that was answered ends when the lock is given back; calls of the dead when
        # their process on the DSP ends, and that frees their slots.
        with dsp.kernel.lock:
            pass
        dsp.dsp.join()
        assert dsp.channel is not None
        assert (dsp.channel.contexts, dsp.channel.sessions) == ({}, [None])
        assert dsp.dsp.processes == {}
    kernel.leave()
