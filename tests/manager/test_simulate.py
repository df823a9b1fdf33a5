# SPDX-License-Identifier: MIT
import pytest

from npukit.manager import Callback, CallbackKind, ModelSize, State, Status
from npukit.manager.replay import ManualClock
from npukit.manager.simulate import BrokenPromise, Seen, Vice, Watch, jain, simulate


@pytest.mark.parametrize(
    ("clients", "events", "seed", "dishonest"),
    [(8, 8_000, 1, 0.0), (8, 8_000, 2, 0.4), (3, 4_000, 3, 1.0), (40, 2_000, 4, 0.2)],
)
def test_every_promise_is_kept(clients, events, seed, dishonest):
    summary = simulate(clients, events, seed, dishonest=dishonest)
    assert summary.events == events
    assert bool(summary.vices) is bool(dishonest)
    refusable = {Vice.LOADS_UNGRANTED.value, Vice.REUSES_IDS.value} & set(summary.vices.values())
    assert bool(summary.errors) is bool(refusable)
    assert min(summary.callbacks[status.name] for status in list(Status)[:5]) > 0
    assert "every promise kept" in str(summary)


def test_a_seed_is_a_run():
    assert simulate(5, 500, 7) == simulate(5, 500, 7)
    assert simulate(5, 500, 7) != simulate(5, 500, 8)


CAN, LEAVE, DONE = CallbackKind.CAN_LOAD, CallbackKind.REQUEST_UNLOAD, CallbackKind.COMPLETE
NOW, WAIT, NO = Status.CAN_LOAD_NOW, Status.WAIT_FOR_UNLOAD, Status.NOT_PRIORITIZED


@pytest.mark.parametrize(
    ("state", "callback"),
    [
        (State.PENDING_LOAD, (CAN, NOW)),
        (State.WAIT_FOR_UNLOAD, (CAN, WAIT)),
        (State.LOADED, (CAN, WAIT)),
        (State.NOT_PRIORITIZED, (CAN, NO)),
        (State.UNLOADING, (LEAVE, None)),
        (State.WAIT_FOR_UNLOAD, (LEAVE, None)),
    ],
)
def test_the_watch_sees_what_may_not_be_said(state, callback):
    watch = Watch(ManualClock())
    watch.connected.add("A")
    watch.requests["A", 1] = Seen(ModelSize.LESS_THAN_1GB, state)
    with pytest.raises(BrokenPromise):
        watch.check([Callback("A", callback[0], 1, callback[1], "why")])


def test_the_watch_sees_a_budget_exceeded_and_a_wait_too_long():
    clock = ManualClock()
    watch = Watch(clock)
    watch.connected.add("A")
    watch.importance["A"] = 200
    watch.limit, watch.unload_timeout = 3, 5.0
    watch.requests["A", 1] = Seen(ModelSize.GREATER_THAN_2G)
    with pytest.raises(BrokenPromise, match="1 over the budget"):
        watch.check([Callback("A", CAN, 1, NOW, "why")])
    watch.requests = {("A", 1): Seen(ModelSize.LESS_THAN_1GB)}
    watch.check([Callback("A", CAN, 1, WAIT, "why")])
    clock.advance(5)
    watch.check_waits()
    clock.advance(1)
    with pytest.raises(BrokenPromise, match="A/1 waits"):
        watch.check_waits()


def test_the_watch_sees_a_grant_while_a_lower_budget_drains():
    watch = Watch(ManualClock())
    watch.connected.add("A")
    small = ModelSize.LESS_THAN_1GB
    for number in (1, 2, 3):
        watch.requests["A", number] = Seen(small, State.LOADED)
    watch.requests["A", 4] = Seen(small, State.NOT_PRIORITIZED)
    watch.set_limit(1, dict.fromkeys(ModelSize, 1))
    leave = [Callback("A", LEAVE, number, None, "why") for number in (1, 2)]
    watch.check(leave)
    watch.check([Callback("A", DONE, 1, Status.COMPLETE, "why")])
    with pytest.raises(BrokenPromise, match="2 over the budget"):
        watch.check([Callback("A", CAN, 4, NOW, "why")])


def test_the_watch_wants_a_reason_and_an_addressee():
    watch = Watch(ManualClock())
    watch.connected.add("A")
    watch.requests["A", 1] = Seen(ModelSize.LESS_THAN_1GB)
    with pytest.raises(BrokenPromise, match="no reason"):
        watch.check([Callback("A", CAN, 1, NO)])
    for stranger in (Callback("A", CAN, 2, NO, "why"), Callback("B", CAN, 1, NO, "why")):
        with pytest.raises(BrokenPromise, match="no such request"):
            watch.check([stranger])


def test_jain():
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 1
