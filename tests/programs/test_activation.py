# SPDX-License-Identifier: MIT
"""Functions of single elements on the simulated devices, against numpy and math."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.conv_reference import Array, centred, finish, quantization, random

import npukit
from npukit.ioctl import ProgramError
from npukit.programs.rk3588 import activation
from npukit.programs.rk3588.activation import (
    exp,
    gelu,
    lookup,
    prelu,
    relu,
    relu6,
    rescale,
    sigmoid,
    silu,
    softmax,
    tanh,
)
from npukit.programs.rk3588.operation import Divisible, execute
from npukit.programs.rk3588.quantize import FixedPoint, Quantization, fixed_point

DEVICES = ["rknpu", "rknpu-misc", "rocket"]


relaxed = settings(max_examples=60)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 70))

REAL: dict[str, Any] = {
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(x / 2),
    "tanh": math.tanh,
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x * (0.5 + 0.5 * math.tanh(x / 2)),
    "exp": lambda x: math.exp(min(x, 700)),
}
MAKERS: dict[str, Any] = {
    "sigmoid": sigmoid,
    "tanh": tanh,
    "gelu": gelu,
    "silu": silu,
    "exp": exp,
}


@relaxed
@given(
    st.sampled_from(["relu", "relu6", "none"]),
    shapes,
    quantization(0.001, 0.5),
    quantization(0.001, 0.5),
    st.integers(0, 2**32),
)
def test_clamps_are_exact(
    device: Any, name: str, shape: Any, inputs: Quantization, outputs: Quantization, seed: int
) -> None:
    x = random(np.random.default_rng(seed), inputs, shape)
    maker = {"relu": relu, "relu6": relu6, "none": rescale}[name]
    found = execute(device, maker(*shape, inputs, outputs), x)
    ratio = np.float32(inputs.scale) / np.float32(outputs.scale)
    factor = fixed_point(float(ratio) / 2**14)
    expected = finish(centred(x, inputs) << 14, factor, outputs, name)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)

    offset = 128 if outputs.dtype == "uint8" else 0
    low, high = (limit + offset for limit in outputs.limits(name))
    real = centred(x, inputs) * float(np.float32(inputs.scale)) / float(np.float32(outputs.scale))
    distance = np.abs(found - np.clip(real + outputs.zero_point, low, high))
    assert (distance <= 0.5 + np.abs(real) * 2.0**-13).all()


@relaxed
@given(
    st.data(),
    shapes,
    quantization(0.01, 0.5),
    quantization(0.01, 0.5),
    st.integers(0, 2**32),
)
def test_slopes_are_exact(
    device: Any,
    data: st.DataObject,
    shape: Any,
    inputs: Quantization,
    outputs: Quantization,
    seed: int,
) -> None:
    top = data.draw(st.sampled_from([0.01, 0.25, 1.0, 1.9999999, 3.0, 40.0]))
    rng = np.random.default_rng(seed)
    alpha: Any = rng.uniform(0, top, shape[2]) if data.draw(st.booleans()) else top
    x = random(rng, inputs, shape)
    found = execute(device, prelu(*shape, alpha, inputs, outputs), x)

    largest = np.max(alpha)
    exponent = 15 - math.ceil(math.log2(largest))
    if not 2**14 <= round(largest * 2**exponent) < 2**15:
        exponent += 1 if round(largest * 2**exponent) < 2**14 else -1
    bits = min(exponent, 14)
    slopes = np.rint(np.asarray(alpha) * 2.0**exponent).astype(np.int64)
    sums = centred(x, inputs)
    sums = np.where(sums < 0, FixedPoint(1, exponent - bits)(sums * slopes), sums << bits)
    ratio = np.float32(inputs.scale) / np.float32(outputs.scale)
    expected = finish(sums, fixed_point(float(ratio) / 2.0**bits), outputs)
    np.testing.assert_array_equal(found, expected)

    step = float(np.float32(inputs.scale)) / float(np.float32(outputs.scale))
    real = centred(x, inputs) * step
    bound = 0.5 + np.where(real < 0, np.abs(real) * 2.0 ** -(exponent + 1) + step * 2.0**-bits, 0)
    real = np.where(real < 0, real * alpha, real)
    bound += np.abs(real) * 2.0**-13
    info = np.iinfo(outputs.dtype)
    distance = np.abs(found - np.clip(real + outputs.zero_point, info.min, info.max))
    assert (distance <= bound).all()


@relaxed
@given(st.sampled_from(["relu", "relu6", "prelu"]), shapes, st.integers(0, 2**32))
def test_clamps_and_slopes_of_float16(device: Any, name: str, shape: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 5).astype(np.float16)
    if name == "prelu":
        alpha: Any = rng.uniform(-2, 2, shape[2] if rng.integers(2) else None)
        op = prelu(*shape, alpha)
        slopes = np.asarray(alpha, np.float16).astype(np.float32)
        right = np.where(x < 0, x.astype(np.float32) * slopes, x).astype(np.float16)
    else:
        op = {"relu": relu, "relu6": relu6}[name](*shape)
        right = np.clip(x, np.float16(0), np.float16(6 if name == "relu6" else np.inf))
    np.testing.assert_array_equal(execute(device, op, x), right)


def nearest(real: Array, outputs: Quantization) -> Array:
    """Half away from zero, before the zero point."""
    steps = real / float(np.float32(outputs.scale))
    info = np.iinfo(outputs.dtype)
    away = np.sign(steps) * np.floor(np.abs(steps) + 0.5)
    return np.clip(away + outputs.zero_point, info.min, info.max).astype(outputs.dtype)


@relaxed
@given(st.sampled_from(list(MAKERS)), st.data())
def test_every_integer_has_an_entry(device: Any, name: str, data: st.DataObject) -> None:
    inputs, outputs = data.draw(quantization(0.001, 0.5)), data.draw(quantization(0.001, 0.5))
    x = np.arange(256, dtype=np.uint8).view(inputs.dtype).reshape(4, 4, 16)
    found = execute(device, MAKERS[name](4, 4, 16, inputs, outputs), x)
    real = centred(x, inputs) * float(np.float32(inputs.scale))
    steps = np.vectorize(REAL[name])(real) / float(np.float32(outputs.scale))
    expected = nearest(np.vectorize(REAL[name])(real), outputs)
    # The two ways to compute a function may differ in the last bit, which matters at a half.
    sure = np.abs(np.abs(steps) % 1 - 0.5) > 1e-9
    np.testing.assert_array_equal(found[sure], expected[sure])
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_any_function_of_integers_can_be_looked_up(device: Any) -> None:
    rng = np.random.default_rng(9)
    inputs, outputs = Quantization(1.0, 0, "uint8"), Quantization(0.5, -3, "int8")
    results = rng.integers(-128, 128, 256)
    op = lookup(5, 6, 40, inputs, outputs, lambda x: (results[int(x)] + 3) * 0.5)
    x = rng.integers(0, 256, (5, 6, 40), np.uint8)
    np.testing.assert_array_equal(execute(device, op, x), results[x].astype(np.int8))


ERRORS = {"sigmoid": 6e-5, "tanh": 6e-5, "gelu": 3e-4, "silu": 4e-4, "exp": 8e-5}


@pytest.mark.parametrize("name", MAKERS)
def test_every_float16(name: str) -> None:
    """All that are finite."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = bits[np.isfinite(bits)]
    x = np.concatenate([x, np.zeros(-len(x) % 64, np.float16)]).reshape(-1, 8, 8)
    with npukit.open("sim:rknpu", strict=True) as device:
        found = execute(device, MAKERS[name](*x.shape), x).astype(np.float64)
    real = x.astype(np.float64)
    if name == "exp":
        real = np.minimum(real, 0)
    right = np.vectorize(REAL[name])(real)
    below_the_last = np.minimum(np.abs(right), 65472).astype(np.float16)
    half_ulp = np.spacing(below_the_last).astype(np.float64) / 2
    allowed = np.full(right.shape, ERRORS[name])
    if name == "silu":
        allowed[real >= 8] = 0.003
    over = np.abs(found - right) - half_ulp - allowed
    assert over.max() <= 0, (over.max(), real.flat[over.argmax()])


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_share_the_rows(name: str, cores: int) -> None:
    q = Quantization(0.05, 100)
    x = random(np.random.default_rng(cores), q, (5, 4, 40))
    alphas = np.linspace(0, 1, 40)
    with npukit.open(f"sim:{name}", strict=True) as device:
        for op in (tanh(5, 4, 40, q, q), prelu(5, 4, 40, alphas, q, q), relu(5, 4, 40, q, q)):
            assert isinstance(op, Divisible)
            assert len(op.programs([0], 0, 0, cores)) == cores
            np.testing.assert_array_equal(
                execute(device, op, x, cores=cores), execute(device, op, x, cores=1)
            )


def test_tables_do_not_depend_on_what_was_there_before() -> None:
    q = Quantization(0.05, 100)
    x = random(np.random.default_rng(0), q, (4, 4, 16))
    halves = np.linspace(-5, 5, 256).astype(np.float16).reshape(4, 4, 16)
    with npukit.open("sim:rocket", strict=True) as device:
        before = [execute(device, op, x, cores=1) for op in (tanh(4, 4, 16, q, q),)]
        execute(device, silu(4, 4, 16), halves, cores=1)
        after = execute(device, tanh(4, 4, 16, q, q), x, cores=1)
    np.testing.assert_array_equal(before[0], after)


def softmax_of(real: Array) -> tuple[Array, Array]:
    """In float64, and how far results may be off."""
    x = real - real.max(axis=2, keepdims=True)
    e = np.exp(x)
    d = 1e-4 + e * (np.abs(x) + 1) * 2.0**-11
    total, off = e.sum(axis=2, keepdims=True), d.sum(axis=2, keepdims=True)
    p = e / total
    return p, (d + p * off) / (total - off)


@relaxed
@given(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 200)), st.data())
def test_softmax(device: Any, shape: Any, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    beta = data.draw(st.sampled_from([1.0, 0.5]))
    if data.draw(st.booleans()):
        inputs = data.draw(quantization(0.01, 0.3))
        outputs = Quantization(1 / 256, -128, "int8")
        x = random(rng, inputs, shape)
        found = softmax(device, x, inputs, outputs, beta=beta)
        right, bound = softmax_of(centred(x, inputs) * float(np.float32(inputs.scale)) * beta)
        target = np.clip(right * 256 - 128, -128, 127)
        assert found.dtype == np.int8
        assert (np.abs(found - target) <= bound * 256 + 0.5001).all()
    else:
        halves = (rng.standard_normal(shape) * 4).astype(np.float16)
        found = softmax(device, halves, beta=beta)
        right, bound = softmax_of(halves.astype(np.float64) * beta)
        assert found.dtype == np.float16
        assert (np.abs(found - right) <= bound + right * 2.0**-11 + 2.0**-24).all()


def test_what_cannot_be_done_is_refused(device: Any) -> None:
    q = Quantization(0.1)
    for make, rule in (
        (lambda: relu(0, 2, 3, q, q), "0 x 2 x 3"),
        (lambda: relu(1, 1, 8193, q, q), "CHANNEL = 8192"),
        (lambda: relu(1, 1, 8, q, None), "both of the tensors are float16, or none"),
        (lambda: rescale(1, 1, 8, q, Quantization(1e30)), "needs a shift"),
        (lambda: prelu(1, 1, 8, -0.5, q, q), "a negative alpha takes away"),
        (lambda: prelu(1, 1, 8, 40000.0, q, q), r"less than 2\*\*15"),
        (lambda: prelu(1, 1, 8, np.zeros(7), q, q), "one number, or 8"),
        (lambda: prelu(1, 1, 8, math.nan, q, q), "one number, or 8"),
        (lambda: prelu(1, 1, 2, 1e9), "is not a float16"),
        (lambda: lookup(1, 1, 8, q, q, lambda x: math.inf), "no finite result"),
        (lambda: sigmoid(1, 1, 8).program([4], 0, 0), "cannot be at 0x4"),
        (lambda: softmax(device, np.zeros((2, 2), np.float16)), r"\(2, 2\)"),
        (lambda: softmax(device, np.zeros((2, 2, 2), np.int8)), "float16 needed"),
        (lambda: softmax(device, np.zeros((2, 2, 2), np.int8), q, q), "int8 values"),
    ):
        with pytest.raises(ProgramError, match=rule):
            make()


def test_what_was_measured_is_proven() -> None:
    q = Quantization(0.1)
    assert sigmoid(1, 8, 8).program([0], 0, 0).unproven == ()
    assert tanh(1, 8, 8).program([0], 0, 0).unproven
    assert sigmoid(1, 8, 8, q, q).program([0], 0, 0).unproven
    assert relu(1, 8, 8, q, q).program([0], 0, 0).unproven
    assert set(activation.CURVES) == set(MAKERS)
