# SPDX-License-Identifier: MIT
"""Many threads on one session, with calls of the DSP going on. The long run is hexagon_soak's."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import hexagon_soak
from devices.hexagon_session import machine, nothing_left, session

from npukit.devices.fastrpc_errors import HexagonError
from npukit.ioctl import DeviceLost
from npukit.programs.hexagon import idl

ECHO = idl.load("echo.idl")


@pytest.fixture(autouse=True)
def time_box() -> Iterator[None]:
    with hexagon_soak.no_deadlock(120):
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_sixteen_threads_on_one_session(tmp_path: Path, seed: int) -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        done = hexagon_soak.hammer(kernel, tmp_path, lambda count: count < 15, seed)
    assert sum(done.values()) == 15 * hexagon_soak.THREADS
    assert done.keys() == hexagon_soak._ONE.keys()


def test_a_call_of_the_dsp_does_not_wait_for_another_call(tmp_path: Path) -> None:
    """What a lock around all calls would make a deadlock of."""
    (tmp_path / "data").write_bytes(b"\1\2")
    with session(tmp_path) as device, ECHO.open(device) as echo:
        hanging: list[BaseException] = []

        def hang() -> None:
            try:
                echo.hang()
            except (HexagonError, DeviceLost) as error:
                hanging.append(error)

        threads = [threading.Thread(target=hang) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert echo.checksum("data") == (2, 3)
        device._connection.exit()
        for thread in threads:
            thread.join()
        assert len(hanging) == 3


def test_sessions_are_apart(tmp_path: Path) -> None:
    kernel, dsp = machine()
    with nothing_left(dsp):
        folders = [tmp_path / str(number) for number in range(3)]
        failures: list[BaseException] = []

        def run(folder: Path) -> None:
            folder.mkdir()
            try:
                hexagon_soak.hammer(kernel, folder, lambda count: count < 2)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
