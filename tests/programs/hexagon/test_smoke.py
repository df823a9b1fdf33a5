# SPDX-License-Identifier: MIT
"""The steps that try a DSP: on a simulated one, without vendor files, and on one that is wrong."""

from typing import Any

import numpy as np
import pytest
from devices.hexagon_session import machine, nothing_left

from npukit import digits
from npukit.devices.fastrpc import FastRpcDevice
from npukit.programs.hexagon.smoke import steps
from npukit.sim.cdsp import SHELL, EchoSkel, QnnModelSkel
from npukit.sim.fastrpc import FastRpcSim


def run(kernel: Any, shell: bytes | None) -> list[tuple[bool, str]]:
    images = digits.load().images[:50]
    expected = digits.network().logits(images, digits.numpy_matmul)
    with FastRpcDevice.open(kernel=kernel) as device:
        return [check(device) for _name, check in steps(device, shell, images, expected)]


def test_all_steps_hold_on_the_simulated_dsp() -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        results = run(kernel, SHELL)
    assert [passed for passed, _ in results] == [True] * 4
    texts = [text for _, text in results]
    assert "ARCH_VER 0x8c73" in texts[0]
    assert texts[1] == "an unsigned process on cdsp, its shell not verified"
    assert texts[2].endswith("0 wrong")
    assert texts[3] == "50 of 50 images equal the integer network in numpy"


def test_what_is_missing_is_said() -> None:
    kernel, dsp = machine()
    dsp.dsp.info_result = -1
    with nothing_left(dsp):
        results = run(kernel, None)
    assert all(passed for passed, _ in results)
    texts = [text for _, text in results]
    assert texts[0] == "this DSP's firmware answers no such questions"
    assert "left out: no fastrpc_shell_unsigned_3" in texts[1]
    assert "not mapped to the DSP" in texts[2]
    assert texts[3] == "left out: there is no process on the DSP"


@pytest.mark.parametrize(("skel", "step"), [(EchoSkel, 2), (QnnModelSkel, 3)])
def test_a_missing_module_is_said(skel: Any, step: int) -> None:
    kernel, dsp = machine()
    del dsp.dsp.skels[skel.interface.uri().partition("?")[0]]
    with nothing_left(dsp):
        results = run(kernel, SHELL)
    assert all(passed for passed, _ in results)
    assert f"left out: no module lib{skel.interface.name}_skel.so" in results[step][1]


class WrongEcho(EchoSkel):
    def transform_mapped(self, address: int, length: int, key: int) -> None:
        super().transform_mapped(address, length - 1, key)


class WrongModel(QnnModelSkel):
    def get_output(self, model: int, graph: int, index: int, capacity: int) -> tuple[bytes, int]:
        data, size = super().get_output(model, graph, index, capacity)
        other = np.frombuffer(data, np.int32).copy()
        other[7] += 1
        return other.tobytes(), size


def replace(dsp: FastRpcSim, skel: Any) -> None:
    dsp.dsp.register(skel.interface.uri(), skel)


def test_a_wrong_result_fails() -> None:
    kernel, dsp = machine()
    replace(dsp, WrongEcho)
    replace(dsp, WrongModel)
    with nothing_left(dsp):
        results = run(kernel, SHELL)
    assert [passed for passed, _ in results] == [True, True, False, False]
    assert results[2][1].endswith("1 wrong")
    assert results[3][1].startswith("49 of 50")
