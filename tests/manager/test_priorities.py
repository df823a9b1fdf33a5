# SPDX-License-Identifier: MIT
import logging

import pytest

from npukit.abi import amdxdna, ivpu
from npukit.manager import EndReason, Engine, EngineError, Importance, StartReason, Work
from npukit.manager.engine import REMEMBERED
from npukit.manager.priorities import (
    AMDXDNA,
    DEBOUNCE,
    IVPU,
    NICE,
    RETRY,
    Debounce,
    DriverProvider,
    Level,
    PriorityManager,
    SchedulingConfig,
)
from npukit.manager.replay import ManualClock


class Heard:
    """A listener that writes down what it is told."""

    def __init__(self):
        self.events = []

    def take(self):
        events, self.events = self.events, []
        return events

    def on_work_requested(self, work):
        self.events.append(f"requested {work.owner}")

    def on_work_started(self, work, reason):
        self.events.append(f"started {work.owner} {reason}")

    def on_work_ended(self, work, reason):
        self.events.append(f"ended {work.owner} {reason}")


class RemoteProvider:
    """A provider in another process, which can die."""

    def __init__(self):
        self.alive = True
        self.listener = None
        self.calls = []

    def _call(self, *call):
        if not self.alive:
            raise ConnectionResetError("the provider is gone")
        self.calls.append(call)

    def set_listener(self, listener):
        self.listener = listener

    def set_scheduling_configs(self, configs):
        self._call("set", *((c.principal, int(c.priority)) for c in configs))

    def update_scheduling_configs(self, configs):
        self._call("update", *((c.principal, int(c.priority)) for c in configs))


class Machine:
    """A manager with an engine, a clock and a provider that can be away."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self.engine.set_policy("turn_taking")
        self.callbacks = []
        self.provider = RemoteProvider()
        self.manager = PriorityManager(
            self.engine,
            lambda callbacks: self.callbacks.extend(map(str, callbacks)),
            self.connect,
            clock=self.clock,
            **options,
        )

    def connect(self):
        if self.provider is None:
            raise FileNotFoundError("no provider")
        return self.provider


def test_the_provider_is_told_of_everybody_and_then_of_changes():
    machine = Machine()
    machine.manager.set_importance("app", Importance(200))
    machine.manager.set_importance("app", Importance(200))
    machine.manager.set_importance("app", Importance(400))
    machine.manager.forget("app")
    machine.manager.forget("app")
    assert machine.provider.calls == [
        ("set", ("root", 100), ("system", 100)),
        ("update", ("app", 200)),
        ("update", ("app", 400)),
        ("update", ("app", 1000)),
    ]


def test_importance_reaches_the_engine_and_its_callbacks_are_delivered():
    machine = Machine()
    for who in ("A", "B"):
        machine.engine.connect(who, who)
        machine.engine.can_load_model(who, 1)
    machine.manager.set_importance("B", Importance(100))
    assert machine.callbacks == ["A.complete(1,CANCELLED)", "B.can_load(1,CAN_LOAD_NOW)"]


def test_the_engine_forgets_no_importance_that_is_in_the_table():
    machine = Machine()
    machine.manager.set_importance("editor", Importance(100))
    for number in range(REMEMBERED):
        machine.manager.on_work_requested(Work(f"other{number}"))
    for who in ("editor", "root"):
        machine.engine.connect(who, who)
        machine.engine.can_load_model(who, 1)
    requests = machine.engine.info()["requests"]
    assert {r["principal"]: r["importance"] for r in requests} == {"editor": 100, "root": 100}


def test_pinned_principals_stay_where_they_are():
    machine = Machine(pinned=["init"])
    machine.manager.set_importance("init", Importance(900))
    machine.manager.forget("init")
    assert machine.manager.config("init").priority == 100
    assert machine.manager.config("init").can_attribute_other
    assert machine.manager.config("never seen") == SchedulingConfig(
        "never seen", Importance(1000), has_direct_access=True, can_attribute_other=False
    )


@pytest.mark.parametrize(
    ("block", "declared", "who", "access", "warned"),
    [
        (False, True, "app", True, False),
        (False, False, "app", True, True),
        (True, True, "app", True, False),
        (True, False, "app", False, True),
        (True, False, "root", True, False),
    ],
)
def test_access_of_those_who_did_not_declare_it(block, declared, who, access, warned, caplog):
    machine = Machine(block_missing_feature=block)
    with caplog.at_level(logging.WARNING, "npukit.manager"):
        assert machine.manager.admit(who, declared) is access
    assert machine.manager.config(who).has_direct_access is access
    assert bool(caplog.records) is warned


def test_a_provider_that_dies_is_looked_for_and_told_everything():
    machine = Machine()
    machine.manager.set_importance("app", Importance(200))
    machine.provider.alive = False
    machine.manager.set_importance("app", Importance(300))  # meets the corpse
    assert not machine.manager.connected
    machine.provider = None
    machine.clock.advance(RETRY)
    machine.manager.tick()
    assert not machine.manager.connected
    machine.manager.set_importance("other", Importance(400))
    machine.provider = RemoteProvider()
    machine.manager.tick()
    assert not machine.manager.connected  # not yet time to try again
    machine.clock.advance(RETRY)
    machine.manager.tick()
    assert machine.manager.connected
    assert machine.provider.listener is machine.manager
    assert machine.provider.calls == [
        ("set", ("root", 100), ("system", 100), ("app", 300), ("other", 400))
    ]


def test_a_death_that_is_reported():
    machine = Machine()
    machine.manager.provider_died()
    machine.clock.advance(RETRY)
    machine.manager.tick()
    assert machine.provider.calls == [("set", ("root", 100), ("system", 100))] * 2


def test_work_passes_the_turn():
    machine = Machine()
    for who in ("A", "B"):
        machine.engine.connect(who, who)
        machine.engine.can_load_model(who, 1)
    machine.engine.notify_model_loaded("A", 1)
    machine.manager.on_work_requested(Work("A"))
    machine.manager.on_work_started(Work("A"), StartReason.INITIAL)
    machine.manager.on_work_ended(Work("A"), EndReason.COMPLETED)
    assert machine.callbacks == ["A.request_unload(1)"]
    assert machine.engine.info()["metrics"] == {"requested": 1, "INITIAL": 1, "COMPLETED": 1}


def test_who_was_never_seen_is_looked_up_when_it_works():
    machine = Machine(lookup={"A": Importance(230)}.__getitem__)
    machine.manager.on_work_requested(Work("A"))
    assert machine.manager.config("A").priority == 230


def test_only_those_who_may_attribute_work_to_others():
    machine = Machine()
    machine.engine.connect("A", "A")
    machine.engine.connect("B", "B")
    machine.engine.can_load_model("A", 1)
    machine.engine.notify_model_loaded("A", 1)
    machine.engine.can_load_model("B", 1)
    machine.manager.admit("broker", declared=True)
    machine.manager.on_work_ended(Work("broker", original="A"), EndReason.COMPLETED)
    assert machine.callbacks == []
    machine.manager.admit("broker", declared=True, can_attribute_other=True)
    machine.manager.on_work_ended(Work("broker", original="A"), EndReason.COMPLETED)
    assert machine.callbacks == ["A.request_unload(1)"]


# ---- debounce -----------------------------------------------------------------------------------

A, FOR_B = Work("A"), Work("A", original="B")
INITIAL, RESUMED = StartReason.INITIAL, StartReason.RESUMED
COMPLETED, PAUSED = EndReason.COMPLETED, EndReason.PAUSED

BURSTS = {
    "one piece, reported 50 ms after its end": [
        ("requested", A, ["requested A"]),
        ("started", A, INITIAL, ["started A INITIAL"]),
        ("wait", 1.0, []),
        ("ended", A, COMPLETED, []),
        ("wait", 0.049, []),
        ("wait", 0.001, ["ended A COMPLETED"]),
        ("wait", 1.0, []),
    ],
    "a row of pieces is one": [
        ("requested", A, ["requested A"]),
        ("started", A, INITIAL, ["started A INITIAL"]),
        ("ended", A, PAUSED, []),
        ("wait", 0.049, []),
        ("requested", A, []),
        ("started", A, INITIAL, []),
        ("wait", 0.2, []),
        ("ended", A, COMPLETED, []),
        ("wait", 0.05, ["ended A COMPLETED"]),
        ("requested", A, ["requested A"]),
    ],
    "pieces at the same time are one": [
        ("requested", A, ["requested A"]),
        ("requested", A, []),
        ("started", A, INITIAL, ["started A INITIAL"]),
        ("started", A, INITIAL, []),
        ("ended", A, COMPLETED, []),
        ("wait", 0.2, []),
        ("ended", A, PAUSED, []),
        ("wait", 0.05, ["ended A PAUSED"]),
    ],
    "work that resumes needs no request": [
        ("requested", A, ["requested A"]),
        ("started", A, INITIAL, ["started A INITIAL"]),
        ("ended", A, PAUSED, []),
        ("wait", 0.05, ["ended A PAUSED"]),
        ("started", A, RESUMED, ["started A RESUMED"]),
        ("ended", A, COMPLETED, []),
        ("wait", 0.05, ["ended A COMPLETED"]),
    ],
    "an end that is late is reported before the next request": [
        ("requested", A, ["requested A"]),
        ("ended", A, COMPLETED, []),
        ("sleep", 0.06, []),
        ("requested", A, ["ended A COMPLETED", "requested A"]),
    ],
    "work for another is its own": [
        ("requested", A, ["requested A"]),
        ("requested", FOR_B, ["requested B"]),
        ("ended", A, COMPLETED, []),
        ("wait", 0.05, ["ended A COMPLETED"]),
        ("ended", FOR_B, COMPLETED, []),
        ("wait", 0.05, ["ended B COMPLETED"]),
    ],
    "an end without a request is none": [("ended", A, COMPLETED, []), ("wait", 1.0, [])],
}


@pytest.mark.parametrize("name", BURSTS)
def test_debounce(name):
    clock, heard = ManualClock(), Heard()
    debounce = Debounce(clock, heard)
    for kind, *args, expected in BURSTS[name]:
        if kind == "sleep":
            clock.advance(*args)
        elif kind == "wait":
            clock.advance(*args)
            due = debounce.next_deadline()
            if due is not None and due <= clock() + 1e-9:
                clock.now = max(clock.now, due)
                debounce.tick()
        else:
            getattr(debounce, f"on_work_{kind}")(*args)
        assert heard.take() == expected


# ---- providers ----------------------------------------------------------------------------------


def test_the_scales_are_those_of_the_headers():
    assert [IVPU[level] for level in Level] == [
        ivpu.DRM_IVPU_JOB_PRIORITY_REALTIME,
        ivpu.DRM_IVPU_JOB_PRIORITY_FOCUS,
        ivpu.DRM_IVPU_JOB_PRIORITY_NORMAL,
        ivpu.DRM_IVPU_JOB_PRIORITY_IDLE,
    ]
    assert [AMDXDNA[level] for level in Level] == [
        amdxdna.AMDXDNA_QOS_REALTIME_PRIORITY,
        amdxdna.AMDXDNA_QOS_HIGH_PRIORITY,
        amdxdna.AMDXDNA_QOS_NORMAL_PRIORITY,
        amdxdna.AMDXDNA_QOS_LOW_PRIORITY,
    ]


@pytest.mark.parametrize(
    ("importance", "level"),
    [(0, 0), (99, 0), (100, 1), (125, 1), (200, 2), (300, 2), (400, 3), (1000, 3)],
)
def test_levels(importance, level):
    assert Level.of(Importance(importance)) is Level(level)


def test_a_driver_is_set_to_the_table():
    applied = []
    provider = DriverProvider(ManualClock(), lambda *change: applied.append(change), NICE)
    foreground = SchedulingConfig("A", Importance(100))
    provider.set_scheduling_configs([foreground, SchedulingConfig("B", Importance(200))])
    provider.update_scheduling_configs([SchedulingConfig("B", Importance(400))])
    provider.set_scheduling_configs([foreground])
    assert applied == [("A", -5), ("B", 0), ("B", 10), ("B", 10), ("A", -5)]
    assert provider.config("B") == SchedulingConfig("B")
    provider.set_scheduling_configs([])
    assert provider.config("A") == SchedulingConfig("A")


def test_a_principal_twice_is_refused_and_changes_nothing():
    provider = DriverProvider(ManualClock(), lambda *change: None, NICE)
    twice = [SchedulingConfig("A", Importance(100)), SchedulingConfig("A", Importance(200))]
    for call in (provider.set_scheduling_configs, provider.update_scheduling_configs):
        with pytest.raises(EngineError):
            call(twice)
    assert provider.config("A") == SchedulingConfig("A")


def test_effective_priority_is_that_of_the_principal_and_the_job():
    provider = DriverProvider(ManualClock(), lambda *change: None, NICE)
    provider.set_scheduling_configs(
        [
            SchedulingConfig("app", Importance(100)),
            SchedulingConfig("broker", Importance(300), can_attribute_other=True),
        ]
    )
    assert provider.effective_priority(Work("app", job_priority=1000)) == 1100
    assert provider.effective_priority(Work("stranger", job_priority=1000)) == 2000
    assert provider.effective_priority(Work("broker", original="app", job_priority=0)) == 100
    assert provider.effective_priority(Work("app", original="broker", job_priority=0)) == 100


def test_a_driver_s_work_reaches_the_last_listener_debounced():
    clock, first, second = ManualClock(), Heard(), Heard()
    provider = DriverProvider(clock, lambda *change: None, NICE)
    provider.on_work_requested(A)  # nobody listens yet
    provider.on_work_started(A, INITIAL)
    provider.on_work_ended(A, COMPLETED)
    provider.tick()
    assert provider.next_deadline() is None
    provider.set_listener(first)
    provider.set_listener(second)
    provider.on_work_requested(A)
    provider.on_work_started(A, INITIAL)
    provider.on_work_ended(A, COMPLETED)
    assert provider.next_deadline() == DEBOUNCE
    clock.advance(DEBOUNCE)
    provider.tick()
    assert first.take() == []
    assert second.take() == ["requested A", "started A INITIAL", "ended A COMPLETED"]
