# SPDX-License-Identifier: MIT
"""Arguments of wrong types and extreme numbers: refused, and nothing has changed."""

import errno
import os
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manager.lending import Lending
from support import open_fds

from npukit.ioctl import NpuError
from npukit.manager import (
    BufferPriority,
    Code,
    EndReason,
    Engine,
    EngineError,
    Health,
    Importance,
    ModelPriority,
    ModelSize,
    StartReason,
    Work,
)
from npukit.manager.backends import FileSegment
from npukit.manager.buffers import BufferRequest, BufferState, BufferType
from npukit.manager.priorities import PriorityManager
from npukit.manager.replay import ManualClock

HUGE = 1 << 100_000
"""More digits than Python prints."""


def busy_engine() -> Engine:
    """One with requests in each state, an idle copy and running deadlines."""
    engine = Engine(ManualClock(5.0), load_timeout=10, unload_timeout=10, min_residency=2)
    engine.set_policy("budget", {"dram": 4, "contexts": 3})
    for connection, principal, importance in (("a", "A", 300), ("b", "B", 200), ("c", "C", 400)):
        engine.connect(connection, principal)
        engine.set_priority(principal, Importance(importance))
    engine.can_load_model("c", 1, 1, content="idle")
    engine.notify_model_loaded("c", 1)
    engine.notify_model_unloaded("c", 1)
    engine.can_load_gang("a", [(1, 2), (2, {"dram": 1, "contexts": 1})])
    engine.notify_model_loaded("a", 1)
    engine.can_load_model("c", 2, 2)
    engine.can_load_model("b", 1, 3)
    engine.can_load_model("b", 2, 1)
    return engine


def picture(engine: Engine) -> Any:
    return engine.info(), engine.next_deadline(), str(engine.health)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(("connect", (name, "p"), {}, "connection") for name in (None, 5, [], b"a")),
    *(("connect", ("new", name), {}, "principal") for name in (None, 5, [], b"a")),
    *(("disconnect", (name,), {}, "connection") for name in (None, 5, [])),
    *(("set_priority", (name, 5), {}, "principal") for name in (None, 5, [])),
    *(
        ("set_priority", ("p", value), {}, "Importance")
        for value in ("5", None, 5.5, True, [], -1, 1001, HUGE, BufferPriority(5))
    ),
    *(("can_load_model", (name, 9), {}, "connection") for name in (None, 5, [])),
    *(
        ("can_load_model", ("a", number), {}, "request_id")
        for number in ("x", None, 1.5, [], 1 << 63, HUGE)
    ),
    *(
        ("can_load_model", ("a", 9, size), {}, "size")
        for size in ("S", None, 1.5, [], 0, -1, 1 << 63, HUGE, {}, {1: 5}, {"d": 1.5}, {"d": HUGE})
    ),
    *(("can_load_model", ("a", 9, 1, p), {}, "model_priority") for p in ("B", None, 1, [])),
    *(("can_load_model", ("a", 9), {"content": c}, "content") for c in (5, [], b"x")),
    *(("can_load_gang", ("a", what), {}, "requests") for what in (5, [5], [()], [(1,) * 5], None)),
    ("can_load_gang", ("a", [(8, 1), ("x", 1)]), {}, "request_id"),
    *(
        (name, ("a", number), {}, "request_id")
        for name in ("notify_model_loaded", "notify_model_unloaded", "cancel_model_load", "state")
        for number in ("x", None, [], HUGE)
    ),
    *(("work_requested", (work,), {}, "work") for work in ("A", None, 5)),
    *(("work_requested", (Work(name),), {}, "principal") for name in (5, None, [])),  # type: ignore[arg-type]
    ("work_started", ("A", StartReason.INITIAL), {}, "work"),
    ("work_started", (Work("A"), "INITIAL"), {}, "reason"),
    ("work_ended", (5, EndReason.COMPLETED), {}, "work"),
    ("work_ended", (Work("A"), "COMPLETED"), {}, "reason"),
    ("work_ended", (Work("A", 5), EndReason.COMPLETED), {}, "principal"),  # type: ignore[arg-type]
    *(("set_option", (name, 1), {}, "name") for name in (None, 5, [], "nothing")),
    *(
        ("set_option", ("unload_timeout", value), {}, "unload_timeout")
        for value in ("x", None, [], 1j, -1, float("nan"), float("inf"), 1 << 2000, HUGE)
    ),
    *(("set_policy", (name,), {}, "name") for name in (None, 5, [], "nothing")),
    *(
        ("set_policy", ("budget", limit), {}, "max_budget")
        for limit in ("x", 0, -1, 1.5, [], {"d": 0}, {1: 5}, {"d": 1.5}, {None: 1}, 1 << 63, HUGE)
    ),
    *(
        ("set_policy", ("budget", 4, weights), {}, "weights")
        for weights in ([1], "x", 5, {"S": 0}, {"S": 1.5}, {"Q": 1}, {1: 1}, {"S": HUGE})
    ),
    ("set_policy", ("turn_taking", 3), {}, "parameters"),
    *(
        ("cap_budget", (limit,), {}, "limits")
        for limit in ("x", 1.5, [], -1, 1, {"d": -1}, {1: 5}, {"d": 1.5}, {"d": HUGE}, HUGE)
    ),
    ("cap_budget", (None, 5), {}, "why"),
    *(("set_health", (health,), {}, "health") for health in ("LOST", None, 5, [])),
    ("set_health", (Health.LOST, 5), {}, "why"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "named", "culprit"),
    WRONG,
    ids=[f"{w[0]}-{n}" for n, w in enumerate(WRONG)],
)
def test_the_engine_names_what_is_wrong(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], culprit: str
) -> None:
    engine = busy_engine()
    before = picture(engine)
    with pytest.raises(EngineError, match=culprit) as error:
        getattr(engine, name)(*arguments, **named)
    assert error.value.code is Code.INVALID_ARGUMENT
    assert len(str(error.value)) < 300
    assert picture(engine) == before


@pytest.mark.parametrize("value", ["5", None, 5.5, True, BufferPriority(5), -1])
def test_the_table_of_importances_refuses_the_same(value: Any) -> None:
    def connect() -> Any:
        raise FileNotFoundError

    engine = Engine(ManualClock())
    manager = PriorityManager(engine, lambda callbacks: None, connect, clock=ManualClock())
    with pytest.raises(EngineError):
        manager.set_importance("p", value)
    with pytest.raises(EngineError):
        manager.set_importance(5, Importance(5))  # type: ignore[arg-type]
    assert manager.config("p").priority == 1000


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 2000]),
    st.floats(),
    st.sampled_from(["a", "b", "A", "dram", "", "S", "budget", "unload_timeout", "idle", "LOST"]),
    st.binary(max_size=2),
    st.sampled_from([*ModelSize, *ModelPriority, *Health, *EndReason, *StartReason]),
    st.sampled_from([Importance(7), BufferPriority(7), Work("A"), Work([]), Work("A", 7)]),  # type: ignore[arg-type]
)
NESTED = st.recursive(
    ANYTHING,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=4,
)
CALLS = {
    "connect": 2,
    "disconnect": 1,
    "set_priority": 2,
    "can_load_model": 4,
    "can_load_gang": 2,
    "notify_model_loaded": 2,
    "notify_model_unloaded": 2,
    "cancel_model_load": 2,
    "work_requested": 1,
    "work_started": 2,
    "work_ended": 2,
    "set_option": 2,
    "set_policy": 3,
    "cap_budget": 2,
    "set_health": 2,
    "state": 2,
}


def ended(engine: Engine) -> None:
    """All that is there can be ended, and then nothing is left of it."""
    engine._clock.advance(1)  # type: ignore[attr-defined]
    engine.tick()
    for connection in list(engine._connections):
        engine.disconnect(connection)
    assert engine.info()["charged"] == {}
    assert engine.info()["requests"] == []
    assert list(engine._ranking) == []


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(sorted(CALLS)).flatmap(
            lambda name: st.tuples(st.just(name), st.tuples(*[NESTED] * CALLS[name]))
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_engine_takes_any_call_or_refuses_it_whole(
    calls: list[tuple[str, tuple[Any, ...]]],
) -> None:
    engine = busy_engine()
    for name, arguments in calls:
        before = picture(engine)
        try:
            getattr(engine, name)(*arguments)
        except EngineError:
            assert picture(engine) == before
    ended(engine)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["get", "put", "load", "set_priority", "mapped", "unmapped", "preempt"]
            ),
            *[NESTED] * 9,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_buffer_session_takes_any_call_or_refuses_it(calls: list[tuple[Any, ...]]) -> None:
    """Each request for a buffer is answered once, and in the end nothing is charged or open."""
    told: list[tuple[str, Any]] = []

    class Receiver:
        def on_get_buffer(self, request_id: Any, grant: Any, code: int) -> None:
            told.append(("get", request_id))
            if grant is not None:
                os.close(grant.fd)

        def on_load(self, request_id: Any, code: int, grant: Any) -> None:
            told.append(("load", request_id))

        def on_preempted(self, request_id: Any) -> None:
            told.append(("preempted", request_id))

    fds = open_fds()
    with tempfile.TemporaryFile() as file, Lending() as lending:
        file.truncate(1 << 13)
        session = lending.allocator.connect(Receiver(), "A")
        session.get_buffers(
            [BufferRequest(n, 0, BufferType.MODEL_WEIGHTS, 4096, protection=3) for n in (1, 2)]
        )
        lending.work()
        assert told == [("get", 1), ("get", 2)]
        refusals = set()
        for name, *values in calls:
            told.clear()
            # Some of the values are right ones, so that the others are looked at.
            good = [3, 0, BufferType.CACHE, 4096, BufferPriority(1), 3, file.fileno(), 4096, 0]
            mixed = [
                right if value == 1 else value for value, right in zip(values, good, strict=True)
            ]
            segment: Any = FileSegment(*mixed[6:9], values[0] if values[0] != 1 else 0)
            try:
                if name == "get":
                    request = BufferRequest(*mixed[:6], segment)
                    session.get_buffers([request])
                    lending.work()
                    assert told.count(("get", mixed[0])) == 1
                elif name == "put":
                    session.put_buffers(values[:2])
                elif name == "load":
                    session.load(1, segment)
                    lending.work()
                    assert told == [("load", 1)]
                elif name == "set_priority":
                    session.set_priority(1, values[0])
                elif name == "unmapped":
                    session.unmapped(values[0])
                else:
                    getattr(session, name)(values[0])
            except NpuError as error:
                refusals.add(error.errno)
            assert all(
                entry.state is BufferState.ALLOCATED and not entry.busy
                for entry in session._entries.values()
            )
            assert lending.allocator.used() == sum(
                entry.charged for entry in session._entries.values()
            )
        session.close()
        assert lending.allocator.used() == 0
        assert refusals <= {errno.EINVAL, errno.ENOENT, errno.EBUSY, errno.EBADF}
    assert open_fds() == fds
