# SPDX-License-Identifier: MIT
"""The engine against its rules written plainly: the same events, the same callbacks and states."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from manager.reference import Reference

from npukit.manager import (
    EndReason,
    Engine,
    EngineError,
    Health,
    Importance,
    ModelPriority,
    ModelSize,
    State,
    Work,
)
from npukit.manager.replay import ManualClock

PRINCIPALS = "ABCD"
NUMBERS = st.integers(1, 4)
SIZES = {
    "buckets": st.sampled_from(ModelSize),
    "domains": st.one_of(
        st.integers(1, 4),
        st.sampled_from(ModelSize),
        st.fixed_dictionaries({}, optional={"dram": st.integers(1, 4), "sram": st.integers(1, 3)})
        .filter(bool),
    ),
}  # fmt: skip
POLICIES = {
    "buckets": [
        ("status_quo",),
        ("turn_taking",),
        ("budget",),
        ("budget", 7, {"S": 2, "L": 5}),
        ("budget", 12),
        ("budget", 0),
    ],
    "domains": [
        ("status_quo",),
        ("budget", {"dram": 9}, {"S": 1, "M": 2, "L": 4}),
        ("budget", {"dram": 9, "sram": 4, "contexts": 5}, {"S": 1, "M": 2, "L": 4}),
        ("budget", {"graphs_per_process": 2, "contexts": 4}),
    ],
}


class Lockstep(RuleBasedStateMachine):
    """Every rule does one thing to both and compares what both say."""

    @initialize(kind=st.sampled_from(["buckets", "domains"]), sharing=st.booleans(), data=st.data())
    def start(self, kind, sharing, data):
        self.clock = ManualClock()
        self.engine, self.reference = Engine(self.clock), Reference(self.clock)
        self.kind = kind
        self.contents = st.sampled_from([None, "x", "y"]) if sharing else st.none()
        self.connections = []
        self.serial = 0
        self.policy(data)
        self.connect("A")
        self.connect("B")

    def both(self, who, name, *args):
        try:
            got = [str(callback) for callback in getattr(self.engine, name)(*args)]
        except EngineError as error:
            got = [f"{who}.error({error.code})"]
        assert got == getattr(self.reference, name)(*args)
        self.live = [(r["connection"], r["id"]) for r in self.engine.info()["requests"]]
        states = {key: self.engine.state(*key) for key in self.live}
        assert states == {key: r.state for key, r in self.reference.requests.items()}
        assert self.engine.info()["warm"] == list(self.reference.warm)
        contents = Counter(r.content for r in self.reference.requests.values() if r.content)
        assert self.engine._shared == sum(n > 1 for n in contents.values())  # else it walks in vain

    @rule(principal=st.sampled_from(PRINCIPALS))
    def connect(self, principal):
        self.serial += 1
        self.connections.append(f"{principal}#{self.serial}")
        self.both("", "connect", self.connections[-1], principal)

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def disconnect(self, data):
        connection = data.draw(st.sampled_from(self.connections))
        self.connections.remove(connection)
        self.both(connection, "disconnect", connection)

    @precondition(lambda self: self.connections)
    @rule(data=st.data(), members=st.sampled_from([1, 1, 1, 1, 2, 3]))
    def ask(self, data, members):
        connection = data.draw(st.sampled_from(self.connections))
        request = st.tuples(
            NUMBERS, SIZES[self.kind], st.sampled_from(ModelPriority), self.contents
        )
        requests = [data.draw(request) for _ in range(members)]
        sizes = {r.content: r.size for r in self.reference.requests.values()}
        if data.draw(st.booleans()):  # the right size, lest sharing be rare
            requests = [(n, sizes.get(c) or size, p, c) for n, size, p, c in requests]
        self.both(connection, "can_load_gang", connection, requests)

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def fill(self, data):
        """Ask for several models, then load all that is granted: budgets become full."""
        for _ in range(3):
            self.ask(data, 1)
        self.settle()

    @precondition(lambda self: self.live)
    @rule()
    def settle(self):
        for connection, number in self.live:
            if self.engine.state(connection, number) is State.PENDING_LOAD:
                self.both(connection, "notify_model_loaded", connection, number)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        name=st.sampled_from(
            ["notify_model_loaded"] * 3 + ["notify_model_unloaded"] * 2 + ["cancel_model_load"]
        ),
    )
    def notify(self, data, name):
        connection, number = data.draw(st.sampled_from(self.live))
        self.both(connection, name, connection, number)

    @precondition(lambda self: self.connections)
    @rule(
        data=st.data(),
        name=st.sampled_from(["notify_model_loaded", "notify_model_unloaded"]),
    )
    def notify_of_the_unknown(self, data, name):
        connection = data.draw(st.sampled_from(self.connections))
        self.both(connection, name, connection, 99)

    @rule(principal=st.sampled_from(PRINCIPALS), value=st.sampled_from([100, 200, 300]))
    def importance(self, principal, value):
        self.both("", "set_priority", principal, Importance(value))

    @rule(
        principals=st.lists(st.sampled_from(PRINCIPALS), min_size=1, max_size=4),
        reason=st.sampled_from([EndReason.COMPLETED] * 5 + [EndReason.PAUSED]),
    )
    def work_ended(self, principals, reason):
        for principal in principals:
            self.both("", "work_ended", Work(principal), reason)

    @rule(data=st.data())
    def policy(self, data):
        self.both("caller", "set_policy", *data.draw(st.sampled_from(POLICIES[self.kind])))

    @rule(
        setting=st.one_of(
            st.tuples(st.just("cap_budget"), st.sampled_from([None, 0, 1, 3, {"dram": 4}])),
            st.tuples(st.just("set_health"), st.sampled_from([Health.OK, Health.OK, *Health])),
            st.tuples(
                st.just("set_option"),
                st.sampled_from(["unload_timeout", "load_timeout", "min_residency"]),
                st.sampled_from([0, 2, 3]),
            ),
        )
    )
    def setting(self, setting):
        """One rule for all three: each rule is drawn as often as any other."""
        self.both("caller", *setting)

    @rule(seconds=st.integers(0, 3))
    def advance(self, seconds):
        self.clock.advance(seconds)
        self.both("", "tick")


Lockstep.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestLockstep = Lockstep.TestCase
