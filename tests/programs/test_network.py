# SPDX-License-Identifier: MIT
"""Networks of operations on the simulated devices: against the same operations one by one."""

import errno
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import no_leak

import npukit
from npukit.abi.rknpu import DRM_IOCTL_RKNPU_SUBMIT
from npukit.abi.rocket import DRM_IOCTL_ROCKET_SUBMIT, drm_rocket_job
from npukit.devices import RknpuDevice
from npukit.ioctl import DeviceClosed, DeviceLost, Fault, FaultyKernel, ProgramError, WaitTimeout
from npukit.programs.rk3588 import elementwise, layout, network, pool
from npukit.programs.rk3588.conv import conv2d, depthwise_conv2d
from npukit.programs.rk3588.elementwise import add
from npukit.programs.rk3588.launch import Code
from npukit.programs.rk3588.matmul import matmul
from npukit.programs.rk3588.network import Network, Part, Step
from npukit.programs.rk3588.operation import Operation, execute
from npukit.programs.rk3588.program import INT_MASK_PPU, Assembler
from npukit.programs.rk3588.quantize import Quantization
from npukit.sim import SimKernel

Array = npt.NDArray[Any]
DEVICES = ["rknpu", "rknpu-misc", "rocket"]
Q = Quantization(0.05, 120)
W = Quantization(0.01, 130)


@pytest.fixture(params=DEVICES, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with npukit.open(f"sim:{request.param}", strict=True) as device:
        yield device


def conv(
    channels: int,
    kernels: int | None,
    kernel: int = 1,
    size: tuple[int, int] = (6, 5),
    stride: int = 1,
    outputs: Quantization = Q,
    seed: int = 0,
    addend: Quantization | None = None,
) -> Operation:
    """Depthwise when ``kernels`` is None."""
    rng = np.random.default_rng((channels, kernels or 0, kernel, seed))
    make = depthwise_conv2d if kernels is None else conv2d
    weights = rng.integers(0, 256, (kernels or 1, kernel, kernel, channels), np.uint8)
    bias = rng.integers(-500, 500, kernels or channels, np.int32)
    return make(*size, weights, bias, Q, W, outputs, stride=stride, addend=addend)


def one_by_one(
    device: Any, net: Network, inputs: dict[str, Array], parts: dict[str, Part] | None = None
) -> dict[str, Array]:
    """Every value, each operation run alone; parts are cut and joined by numpy."""
    values = dict(inputs)
    parts = parts or {}

    def value(name: str) -> Array:
        if name in values:
            return values[name]
        if name in parts:
            whole, start = value(parts[name].whole), parts[name].channel
            return whole[..., start : start + net.tensors[name].channels]
        pieces = [piece for piece, part in parts.items() if part.whole == name]
        pieces.sort(key=lambda piece: parts[piece].channel)
        return np.concatenate([value(piece) for piece in pieces], axis=2)

    for step in net.steps:
        values[step.output] = execute(device, step.op, *map(value, step.inputs))
    return values


def image(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def residual() -> Network:
    """Branches that meet again, with tensors that fill 2 surfaces and such that fill 4."""
    return Network(
        [
            Step(conv(20, 24), ("x",), "stem"),
            Step(conv(24, None, 3), ("stem",), "depth"),
            Step(conv(24, 40), ("depth",), "left"),
            Step(conv(24, 40, 3), ("stem",), "right"),
            Step(add(6, 5, 40, Q, Q, Q), ("left", "right"), "sum"),
            Step(conv(40, 24, addend=Q), ("sum", "stem"), "fused"),
            Step(conv(40, 7), ("left",), "aside"),
        ]
    )


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_branches(device: Any, cores: int) -> None:
    net = residual()
    assert net.inputs == ("x",)
    assert net.outputs == ("fused", "aside")
    assert net.tensors["stem"].surfaces == 4
    with no_leak(), net.load(device, cores=cores, submission=0) as model:
        for seed in range(3):
            inputs = {"x": image(seed, 6, 5, 20)}
            found = model.run(inputs)
            expected = one_by_one(device, net, inputs)
            assert list(found) == ["fused", "aside"]
            for name, value in found.items():
                np.testing.assert_array_equal(value, expected[name])
        if device.driver == "rknpu":
            assert model.plan.size < sum(
                tensor.size for name, tensor in net.tensors.items() if name not in ("x", *found)
            )
    assert device.buffers() == []


def test_values_between_can_be_had(device: Any) -> None:
    net = residual()
    inputs = {"x": image(9, 6, 5, 20)}
    expected = one_by_one(device, net, inputs)
    names = ["x", "stem", "right", "sum"]
    with net.load(device, outputs=names) as model:
        found = model.run(inputs)
    assert list(found) == names
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])
    with pytest.raises(ProgramError, match="no step writes 'nothing'"):
        net.load(device, outputs=["nothing"])


def inception() -> tuple[list[Step], dict[str, Part]]:
    """Two results side by side in one value; then a slice of it."""
    steps = [
        Step(conv(16, 32), ("x",), "a"),
        Step(conv(16, 24, 3), ("x",), "b"),
        Step(conv(56, 64, 3), ("both",), "c"),
        Step(conv(48, 8), ("slice",), "d"),
        Step(conv(24, 8, seed=1), ("b",), "e"),
    ]
    return steps, {"b": Part("both", 32), "a": Part("both"), "slice": Part("c", 16)}


def test_parts_are_concatenated_and_sliced(device: Any) -> None:
    steps, parts = inception()
    net = Network(steps, parts)
    assert net.inputs == ("x",)
    assert net.outputs == ("d", "e")
    inputs = {"x": image(4, 6, 5, 16)}
    expected = one_by_one(device, net, inputs, parts)
    for outputs in (["d", "e"], ["d", "e", "b", "both", "slice"]):
        with net.load(device, outputs=outputs) as model:
            found = model.run(inputs)
        for name in outputs:
            whole = np.concatenate([expected["a"], expected["b"]], axis=2)
            values = {**expected, "both": whole, "slice": expected["c"][..., 16:]}
            np.testing.assert_array_equal(found[name], values[name])


def test_groups_that_are_filled_up_may_be_written_over_later() -> None:
    """16 channels are written as 32: first, the others then follow; second, they would be lost."""
    first, second = Step(conv(16, 16), ("x",), "a"), Step(conv(16, 32), ("x",), "b")
    last = Step(conv(48, 8), ("both",), "c")
    parts = {"a": Part("both"), "b": Part("both", 16)}
    net = Network([first, second, last], parts)
    inputs = {"x": image(5, 6, 5, 16)}
    with npukit.open("sim:rknpu", strict=True) as device:
        expected = one_by_one(device, net, inputs, parts)["c"]
        with net.load(device) as model:
            np.testing.assert_array_equal(model.run(inputs)["c"], expected)
    with pytest.raises(ProgramError, match="writes 'a' over what is written already of 'both'"):
        Network([second, first, last], parts)


@st.composite
def graphs(draw: st.DrawFn) -> Network:
    """Convolutions of values of a few widths, in any order, with sums where two agree."""
    widths = {"x": 16}
    steps = []
    for index in range(draw(st.integers(1, 8))):
        name = f"v{index}"
        source = draw(st.sampled_from(list(widths)))
        channels = widths[source]
        twins = [other for other, width in widths.items() if width == channels]
        kind = draw(st.sampled_from(["conv", "depthwise", "add"]))
        if kind == "add":
            step = Step(add(6, 5, channels, Q, Q, Q), (source, draw(st.sampled_from(twins))), name)
            widths[name] = channels
        else:
            kernels = draw(st.sampled_from([8, 16, 40, 70])) if kind == "conv" else None
            kernel = draw(st.sampled_from([1, 3]))
            step = Step(conv(channels, kernels, kernel, seed=index), (source,), name)
            widths[name] = kernels or channels
        steps.append(step)
    return Network(steps)


@settings(max_examples=25)
@given(graphs(), st.integers(1, 3), st.data())
def test_any_graph(device: Any, net: Network, cores: int, data: st.DataObject) -> None:
    names = list(net.tensors)
    outputs = data.draw(st.none() | st.lists(st.sampled_from(names), min_size=1, unique=True))
    inputs = {"x": image(1, 6, 5, 16)}
    expected = one_by_one(device, net, inputs)
    with net.load(device, outputs=outputs, cores=cores, submission=0) as model:
        found = model.run(inputs)
    assert list(found) == list(net.outputs if outputs is None else outputs)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])


def test_float16_in_memory_that_held_infinities(device: Any) -> None:
    """What is in channels that do not exist counts nothing, also where groups are filled up."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float16)

    huge = np.full((64, 1, 1, 32), 60000, np.float16)
    net = Network(
        [
            Step(conv2d(6, 5, huge, None), ("x",), "a"),
            Step(conv2d(6, 5, weights(12, 1, 1, 32), None), ("x",), "b"),
            Step(depthwise_conv2d(6, 5, weights(1, 3, 3, 12), None), ("b",), "c"),
            Step(conv2d(6, 5, weights(8, 1, 1, 12), None), ("c",), "d"),
        ]
    )
    assert net.tensors["b"].surfaces > net.steps[1].op.output.surfaces
    offsets, _ = net.plan(["d"])
    assert offsets["a"] == offsets["b"] == 0
    x = 1 + np.abs(weights(6, 5, 32))
    expected = one_by_one(device, net, {"x": x})
    assert np.isinf(expected["a"]).all()
    assert np.isfinite(expected["d"]).all()
    with net.load(device, outputs=["d"]) as model:
        for _ in range(2):
            np.testing.assert_array_equal(model.run({"x": x})["d"], expected["d"])


def test_submissions() -> None:
    """One where one core runs all; else one for each operation that gains by more cores."""
    names = ["x", "a", "b", "c"]
    net = Network(
        Step(conv(32, 32, 3, seed=index), (source,), target)
        for index, (source, target) in enumerate(pairwise(names))
    )
    submits: list[int] = []

    class Counting(FaultyKernel):
        def _pass(self, name: str, *arguments: Any) -> Any:
            if name == "ioctl" and arguments[1] in (
                DRM_IOCTL_RKNPU_SUBMIT,
                DRM_IOCTL_ROCKET_SUBMIT,
            ):
                submits.append(arguments[1])
            return super()._pass(name, *arguments)

    x = {"x": image(0, 6, 5, 32)}
    for name, options, expected, told in (
        ("rknpu", {"cores": 1}, 1, "3 tasks in 1 submission,"),
        ("rknpu", {}, 1, "3 tasks in 1 submission,"),  # which costs more than is gained
        ("rknpu", {"submission": 0}, 3, "9 tasks in 3 submissions,"),
        ("rknpu", {"submission": 0, "cores": 2}, 3, "6 tasks in 3 submissions,"),
        ("rocket", {"submission": 0}, 1, "3 tasks in 3 jobs,"),
    ):
        kernel = Counting(SimKernel([name]))
        path = kernel.kernel.devices[0].paths[0]  # type: ignore[attr-defined]
        with npukit.open(path, kernel) as device, net.load(device, **options) as model:  # type: ignore[arg-type]
            submits.clear()
            model.run(x)
            assert len(submits) == expected, (name, options)
            assert f"3 operations: {told}" in repr(model)


def test_chains_end_where_the_counter_does() -> None:
    program = conv(16, 16).program([0], 0, 0)
    long = network.Program.join([program] * 2000)
    chains = network._chains([[long], [program, program], [long], [long], [program] * 1, [long]])
    assert [len(step) for step in chains] == [1, 2, 1, 1]
    assert [len(step[0].tasks) for step in chains] == [2000, 1, 4001, 2000]


SMALL = Network(
    [Step(conv(4, 4), ("x",), "y"), Step(conv(4, 4, seed=1), ("y",), "z")],
)


@pytest.mark.parametrize("name", DEVICES)
def test_nothing_is_left_behind_whatever_fails(name: str) -> None:
    x = {"x": image(0, 6, 5, 4)}
    counter = FaultyKernel(SimKernel([name]))
    path = counter.kernel.devices[0].paths[0]  # type: ignore[attr-defined]
    with npukit.open(path, counter) as device:
        opening = counter.calls
        with SMALL.load(device) as model:  # type: ignore[arg-type]
            loading = counter.calls
            expected = model.run(x)["z"]
            running = counter.calls
    for step in range(opening, running):
        with no_leak():
            kernel = FaultyKernel(SimKernel([name]), [Fault(errno.ENOMEM, after=step)])
            with npukit.open(path, kernel) as device:
                if step < loading:
                    with pytest.raises(OSError, match="memory"):
                        SMALL.load(device)  # type: ignore[arg-type]
                    assert device.buffers() == []
                with SMALL.load(device) as model:  # type: ignore[arg-type]
                    held = len(device.buffers())
                    if step >= loading:
                        with pytest.raises(OSError, match="memory"):
                            model.run(x)
                    assert len(device.buffers()) == held
                    assert np.array_equal(model.run(x)["z"], expected)
                assert device.buffers() == []


@pytest.mark.parametrize("lost", range(5))
def test_any_job_that_rocket_drops_is_noticed(lost: int) -> None:
    """Also one in the middle, whose output another job reads and nobody else would miss."""

    class Dropping(FaultyKernel):
        def _pass(self, name: str, *arguments: Any) -> Any:
            if name == "ioctl" and arguments[1] == DRM_IOCTL_ROCKET_SUBMIT:
                arg = arguments[2]
                rows = (drm_rocket_job * arg.job_count).from_address(arg.jobs)
                # As when a signal hits while the driver locks the buffers: no error comes back.
                rows[lost].task_count = 0
            return super()._pass(name, *arguments)

    names = ["x", "y", "z", "u", "v", "w"]
    steps = [
        Step(conv(4, 4, seed=index), (source,), target)
        for index, (source, target) in enumerate(pairwise(names))
    ]
    kernel = Dropping(SimKernel(["rocket"]))
    with (
        no_leak(),
        npukit.open("/dev/accel/accel0", kernel) as device,
        Network(steps).load(device) as model,  # type: ignore[arg-type]
        pytest.raises(DeviceLost, match="an output did not change"),
    ):
        model.run({"x": image(0, 6, 5, 4)})


def test_a_run_that_fails_leaves_the_model_usable() -> None:
    x = {"x": image(0, 6, 5, 4)}
    fault = Fault(errno.ETIMEDOUT, request=DRM_IOCTL_RKNPU_SUBMIT, after=1)
    kernel = FaultyKernel(SimKernel(["rknpu"]), [fault])
    path = kernel.kernel.devices[0].paths[0]  # type: ignore[attr-defined]
    with npukit.open(path, kernel) as device, SMALL.load(device) as model:  # type: ignore[arg-type]
        first = model.run(x)["z"]
        with pytest.raises(WaitTimeout):
            model.run(x)
        assert np.array_equal(model.run(x)["z"], first)


def test_a_model_ends_with_close(device: Any) -> None:
    with no_leak():
        model = SMALL.load(device)
        result = model.run({"x": image(0, 6, 5, 4)})["z"].copy()
        held = model.run({"x": image(0, 6, 5, 4)})["z"]
        model.close()
        model.close()
        assert device.buffers() == []
        # What was given is the caller's, not memory of the device.
        assert np.array_equal(held, result)
        with pytest.raises(DeviceClosed):
            model.run({"x": image(0, 6, 5, 4)})


def test_a_model_that_is_not_closed_is_told(device: Any) -> None:
    model = SMALL.load(device)
    with pytest.warns(ResourceWarning, match="never closed"):
        del model
    assert device.buffers() == []


@pytest.mark.parametrize(
    ("inputs", "rule"),
    [
        ({}, "inputs none; the network has x"),
        ({"y": image(0, 6, 5, 4)}, "inputs y; the network has x"),
        ({"x": image(0, 6, 5, 3)}, r"values \(6, 5, 3\)"),
        ({"x": image(0, 6, 5, 4).astype(np.int8)}, "int8 values"),
    ],
)
def test_inputs_are_checked(device: Any, inputs: dict[str, Array], rule: str) -> None:
    with SMALL.load(device) as model, pytest.raises(ProgramError, match=rule):
        model.run(inputs)


def test_cores_are_checked(device: Any) -> None:
    for cores in (0, 4):
        with pytest.raises(ValueError, match=f"{cores} cores"):
            SMALL.load(device, cores=cores)


@pytest.mark.parametrize(
    ("steps", "parts", "rule"),
    [
        ([Step(conv(4, 4), ("x", "x"), "y")], {}, "step 0 names 2 inputs; its operation has 1"),
        (
            [Step(conv(4, 4), ("x",), "y"), Step(conv(4, 4), ("x",), "y")],
            {},
            "step 1 writes 'y' over",
        ),
        (
            [Step(conv(4, 4), ("y",), "z"), Step(conv(4, 4), ("x",), "y")],
            {},
            "step 0 reads 'y' before",
        ),
        ([Step(conv(4, 4), ("x",), "x")], {}, "step 0 reads 'x' before"),
        (
            [Step(conv(4, 5), ("x",), "y"), Step(conv(4, 4), ("y",), "z")],
            {},
            r"step 1 sees 'y' as uint8 \(6, 5, 4\).*, step 0 as uint8 \(6, 5, 5\)",
        ),
        (
            [
                Step(conv(4, 4, outputs=Quantization(0.1)), ("x",), "y"),
                Step(conv(4, 4), ("y",), "z"),
            ],
            {},
            r"step 1 sees 'y' .*0\.05.*, step 0 as .*0\.1",
        ),
        ([Step(conv(4, 4), ("x",), "y")], {"y": Part("z")}, "of 'z', no value of a step"),
        (inception()[0], {"a": Part("both", 8), "b": Part("both", 32)}, "multiple of 16"),
        (inception()[0], {"a": Part("both", 0), "b": Part("both", 48)}, "cannot be at channel 48"),
        (inception()[0], {"a": Part("both"), "b": Part("both", -16)}, "cannot be at channel -16"),
        (inception()[0], {"a": Part("both"), "b": Part("both", 16)}, "over what is written"),
        (inception()[0], {"a": Part("both")}, "step 2 reads 'both' before"),
        (inception()[0], {"a": Part("b"), "b": Part("a")}, "cannot be at channel"),
    ],
)
def test_networks_are_checked(steps: list[Step], parts: dict[str, Part], rule: str) -> None:
    with pytest.raises(ProgramError, match=rule):
        Network(steps, parts)


def test_rocket_is_given_nothing_that_it_would_not_hear_finish() -> None:
    pooling = Assembler().finish("PPU", "PPU_RDMA", int_mask=INT_MASK_PPU)
    with npukit.open("sim:rocket", strict=True) as device:
        with pytest.raises(ProgramError, match="waits for the DPU's"):
            Code(device, [[conv(4, 4).program([0], 0, 0)], [pooling]])
        assert device.buffers() == []


@pytest.mark.parametrize("cores", [1, 3])
def test_tasks_that_end_in_the_pooling_unit_stand_between_others(cores: int) -> None:
    parts = {"slice": Part("product", 32)}
    net = Network(
        [
            Step(conv(16, 40, 3, (12, 10)), ("x",), "a"),
            Step(pool.max_pool(12, 10, 40, Q, 2), ("a",), "b"),
            Step(conv(40, 48, 3), ("b",), "c"),
            Step(layout.pad(6, 5, 48, Q, (1, 1, 1, 1)), ("c",), "padded"),
            Step(pool.avg_pool(8, 7, 48, Q, 3, stride=1), ("padded",), "mean"),
            Step(elementwise.mul(6, 5, 48, Q, Q, Q), ("mean", "c"), "product"),
            Step(conv(16, 8), ("slice",), "end"),
        ],
        parts,
    )
    inputs = {"x": image(3, 12, 10, 16)}
    with npukit.open("sim:rknpu", strict=True) as device:
        expected = one_by_one(device, net, inputs, parts)["end"]
        with net.load(device, cores=cores, submission=0) as model:
            np.testing.assert_array_equal(model.run(inputs)["end"], expected)
    with npukit.open("sim:rocket", strict=True) as device:
        with pytest.raises(ProgramError, match="waits for the DPU's"):
            net.load(device)
        assert device.buffers() == []


def test_inputs_go_by_name() -> None:
    whole = Network([Step(conv2d(4, 4, np.ones((16, 1, 1, 8), np.float16), None), ("x",), "y")])
    with npukit.open("sim:rknpu") as device:
        assert isinstance(device, RknpuDevice)
        with whole.load(device) as model, pytest.raises(ProgramError, match=r"by name .*'x': "):
            model.run(np.ones((4, 4, 8), np.float16))  # type: ignore[arg-type]


def test_a_number_is_no_padding() -> None:
    with pytest.raises(ProgramError, match=r"padding 1: .* \(top, bottom, left, right\)"):
        conv2d(4, 4, np.ones((16, 1, 1, 8), np.float16), None, padding=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["amdxdna", "fastrpc-cdsp"])
def test_programs_for_another_npu_are_refused_by_name(name: str) -> None:
    a = np.ones((4, 32), np.int8)
    op = conv2d(4, 4, np.ones((16, 1, 1, 8), np.float16), None)
    whole = Network([Step(op, ("x",), "y")])
    with npukit.open(f"sim:{name}") as device:
        other: Any = device
        for use in (
            lambda: matmul(other, a, a.T),
            lambda: execute(other, op, np.ones((4, 4, 8), np.float16)),
            lambda: whole.load(other),
        ):
            with pytest.raises(ProgramError, match="for an RK3588 cannot run on <"):
                use()
