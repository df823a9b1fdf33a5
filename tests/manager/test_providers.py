# SPDX-License-Identifier: MIT
"""Importances on their way down to drivers, simulated ones and this process's own threads."""

import os
import threading
from collections.abc import Iterator

import pytest
from support import no_leak

import npukit
from npukit.devices.amdxdna import AmdxdnaDevice, Priority
from npukit.manager.priorities import SchedulingConfig
from npukit.manager.providers import NiceProvider, amdxdna, ivpu
from npukit.manager.replay import ManualClock
from npukit.manager.types import Importance


def table(**importances: int) -> list[SchedulingConfig]:
    return [
        SchedulingConfig(name, priority=Importance(value)) for name, value in importances.items()
    ]


def test_the_next_submission_to_ivpu_is_told_the_value() -> None:
    provider = ivpu(ManualClock())
    provider.set_scheduling_configs(table(camera=50, editor=150, indexer=900))
    assert [provider.value_of(name) for name in ("camera", "editor", "indexer", "new")] == [
        4,
        3,
        1,
        1,
    ]
    provider.update_scheduling_configs(table(indexer=300))
    assert provider.value_of("indexer") == 2
    # A table without a principal puts it back where unknown ones are.
    provider.set_scheduling_configs(table(camera=50))
    assert provider.value_of("editor") == 1


@pytest.mark.parametrize("name", ["amdxdna", "amdxdna-npu1"])
def test_the_simulated_xdna_schedules_a_context_by_it(name: str) -> None:
    provider = amdxdna(ManualClock())
    provider.set_scheduling_configs(table(camera=50, indexer=900))
    with no_leak(), npukit.open(f"sim:{name}") as device:
        assert isinstance(device, AmdxdnaDevice)
        for principal, expected in (("camera", Priority.REALTIME), ("indexer", Priority.LOW)):
            with device.context(1, priority=Priority(provider.value_of(principal))):
                (status,) = device.context_status()
                assert status.priority == expected


@pytest.fixture
def worker() -> Iterator[int]:
    """A thread of this process that waits."""
    end = threading.Event()
    started = threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), end.wait()))
    thread.start()
    started.wait()
    yield thread.native_id or 0
    end.set()
    thread.join()


def test_threads_are_made_nicer(worker: int) -> None:
    provider = NiceProvider(ManualClock(), {"indexer": [worker, 2**22 + 5]}.__getitem__)
    provider.update_scheduling_configs(table(indexer=900))
    assert os.getpriority(os.PRIO_PROCESS, worker) == 10
    assert provider.refused == {}  # the other thread is gone, which is no refusal


def test_what_the_kernel_refuses_is_kept_with_its_reason() -> None:
    def refuse(thread: int, value: int) -> None:
        raise PermissionError(13, "Permission denied")

    provider = NiceProvider(ManualClock(), lambda principal: [7], refuse)
    provider.update_scheduling_configs(table(camera=50))
    assert provider.refused == {7: "nice -10: Permission denied"}
