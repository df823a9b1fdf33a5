# SPDX-License-Identifier: MIT
"""Pooling on the simulated devices, against numpy."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.conv_reference import Array, quantization, random
from support import no_leak

import npukit
from npukit.ioctl import ProgramError
from npukit.programs.rk3588.conv import Convolution
from npukit.programs.rk3588.operation import Divisible, execute
from npukit.programs.rk3588.pool import Pooling, avg_pool, max_pool
from npukit.programs.rk3588.quantize import FixedPoint, Quantization
from npukit.smoke import fp16_bound


@pytest.fixture(params=["rknpu", "rknpu-misc"], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with npukit.open(f"sim:{request.param}", strict=True) as device:
        yield device


relaxed = settings(max_examples=80)


def sides(padding: Any, size: int, kernel: int, stride: int, axis: int) -> tuple[int, int]:
    """Outputs and the padding before, as TFLite finds them."""
    if padding == "same":
        out = -(-size // stride)
        return out, max((out - 1) * stride + kernel - size, 0) // 2
    before, behind = (0, 0) if padding == "valid" else padding[2 * axis : 2 * axis + 2]
    return (size + before + behind - kernel) // stride + 1, before


def windows(
    x: Array, kernel: tuple[int, int], stride: tuple[int, int], padding: Any
) -> Iterator[tuple[int, int, Array]]:
    """(y, x, what the window sees of the image)."""
    (rows, top), (columns, left) = (
        sides(padding, x.shape[i], kernel[i], stride[i], i) for i in (0, 1)
    )
    for i in range(rows):
        for j in range(columns):
            y, z = i * stride[0] - top, j * stride[1] - left
            yield i, j, x[max(y, 0) : y + kernel[0], max(z, 0) : z + kernel[1]]


def pooled(
    function: Any, x: Array, kernel: tuple[int, int], stride: tuple[int, int], padding: Any
) -> Array:
    """``function`` of every window."""
    found = {(i, j): function(seen) for i, j, seen in windows(x, kernel, stride, padding)}
    rows, columns = max(found)
    grid = [[found[i, j] for j in range(columns + 1)] for i in range(rows + 1)]
    return np.array(grid)


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    kernel = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    explicit = st.tuples(
        *(st.integers(0, k - 1) for k in (kernel[0], kernel[0], kernel[1], kernel[1]))
    )
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), explicit))
    least = (1, 1) if padding == "same" else kernel
    return {
        "shape": (
            draw(st.integers(least[0], 13)),
            draw(st.integers(least[1], 13)),
            draw(st.integers(1, 50)),
        ),
        "kernel": kernel,
        "stride": (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        "padding": padding,
    }


def make(maker: Any, geometry: dict[str, Any], q: Quantization | None, **options: Any) -> Any:
    kernel, stride, padding = (geometry[name] for name in ("kernel", "stride", "padding"))
    return maker(*geometry["shape"], q, kernel, stride=stride, padding=padding, **options)


def reference(function: Any, x: Array, geometry: dict[str, Any]) -> Array:
    return pooled(function, x, geometry["kernel"], geometry["stride"], geometry["padding"])


@relaxed
@given(geometries(), st.one_of(st.none(), quantization(0.01, 1)), st.integers(0, 2**32))
def test_the_largest_is_found(
    device: Any, geometry: dict[str, Any], q: Quantization | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = random(rng, q, geometry["shape"]) if q else halves(rng, geometry["shape"])
    found = execute(device, make(max_pool, geometry, q), x)
    assert found.dtype == x.dtype
    right = reference(lambda seen: seen.max(axis=(0, 1)), x, geometry)
    np.testing.assert_array_equal(found, right)


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(np.float16)


def stored_mean(seen: Array) -> Array:
    """The formula of the documentation, of stored int8."""
    height, width = seen.shape[:2]
    total = seen.astype(np.int64).sum(axis=(0, 1)) * (65536 // height) * (65536 // width)
    return np.clip(FixedPoint(1, 32)(total), -128, 127)


def tflite_mean(seen: Array) -> Array:
    """Half away from zero; of uint8, up."""
    count = seen.shape[0] * seen.shape[1]
    total = seen.astype(np.int64).sum(axis=(0, 1))
    away = (np.abs(total) + count // 2) // count
    return np.where(total < 0, -away, away)


@relaxed
@given(geometries(), quantization(0.01, 1), st.integers(0, 2**32))
def test_means_of_integers(
    device: Any, geometry: dict[str, Any], q: Quantization, seed: int
) -> None:
    x = random(np.random.default_rng(seed), q, geometry["shape"])
    found = execute(device, make(avg_pool, geometry, q), x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(
        q.store(found), reference(stored_mean, q.store(x), geometry).astype(np.int8)
    )
    assert np.abs(found - reference(tflite_mean, x, geometry)).max() <= 1
    real = reference(lambda seen: seen.astype(np.int64).mean(axis=(0, 1)), q.store(x), geometry)
    bound = 0.5 + np.abs(real) * (sum(geometry["kernel"]) - 2) / 65536
    assert (np.abs(q.store(found) - real) <= bound + 1e-12).all()


@relaxed
@given(geometries(), st.integers(0, 2**32))
def test_means_of_float16(device: Any, geometry: dict[str, Any], seed: int) -> None:
    x = halves(np.random.default_rng(seed), geometry["shape"])
    found = execute(device, make(avg_pool, geometry, None), x)
    wide = x.astype(np.float64)
    right = reference(lambda seen: seen.mean(axis=(0, 1)), wide, geometry)
    magnitude = reference(lambda seen: np.abs(seen).mean(axis=(0, 1)), wide, geometry)
    count = geometry["kernel"][0] * geometry["kernel"][1]
    # The float32 sum, and two reciprocals of float16; rounded in the binade where it ends.
    largest = np.maximum(np.abs(right), np.abs(found))
    bound = fp16_bound(largest, magnitude, count + 4, np.float16) + np.abs(right) * 2.0**-10
    assert (np.abs(found - right) <= bound).all()


@pytest.mark.parametrize("kernel", [(1, 1), (1, 2), (2, 1), (1, 3), (1, 16), (7, 7), (16, 16)])
def test_reciprocals_of_float16(device: Any, kernel: tuple[int, int]) -> None:
    """Also where 65536 would be needed, which no float16 is."""
    x = np.full((*kernel, 8), 1.5, np.float16)
    found = execute(device, avg_pool(*kernel, 8, None), x)
    assert found.shape == (1, 1, 8)
    assert np.abs(found.astype(float) / 1.5 - 1).max() <= 2.0**-10


@pytest.mark.parametrize(
    ("maker", "shape", "kernel", "stride", "padding", "tasks"),
    [
        (max_pool, (112, 112, 16), 3, 2, "same", 1),  # 56 columns: two rows in flight allow 64
        (max_pool, (9, 130, 16), 1, 1, "same", 2),  # one row allows 128
        (max_pool, (9, 90, 16), 3, 1, "same", 3),  # three rows allow 32
        (max_pool, (20, 20, 16), 13, 1, "same", 20),
        (max_pool, (20, 20, 16), 9, (9, 1), (8, 0, 8, 0), 18),  # pads above 7
        (max_pool, (8200, 2, 8), (2, 2), (2, 2), "valid", 2),
        (max_pool, (2, 8200, 8), (2, 2), (2, 2), "valid", 33),
        (max_pool, (2, 2, 8208), 2, None, "valid", 2),
        (avg_pool, (14, 14, 16), 3, 1, "same", 9),
        (avg_pool, (7, 7, 1024), 7, None, "valid", 1),
        (avg_pool, (6, 6, 16), 2, 2, "valid", 1),
        (avg_pool, (3, 3, 16), 6, 1, (3, 3, 3, 3), 16),
    ],
)
def test_how_poolings_are_cut(
    maker: Any, shape: Any, kernel: Any, stride: Any, padding: Any, tasks: int
) -> None:
    q = Quantization(0.1, 3)
    op = maker(*shape, q, kernel, stride=stride, padding=padding)
    program = op.program([0], 0, 0)
    assert len(program.tasks) == tasks
    x = random(np.random.default_rng(7), q, shape)
    pairs = [(n, n) if isinstance(n, int) else n for n in (kernel, stride or kernel)]
    with npukit.open("sim:rknpu", strict=True) as device:
        found = execute(device, op, x)
    if maker is max_pool:
        np.testing.assert_array_equal(
            found, pooled(lambda seen: seen.max(axis=(0, 1)), x, *pairs, padding)
        )
    else:
        right = pooled(stored_mean, q.store(x), *pairs, padding)
        np.testing.assert_array_equal(q.store(found), right)


@pytest.mark.parametrize(("channels", "counts"), [(70, (1, 2, 3)), (10, (1, 2, 3))])
def test_cores_share_surfaces_or_tasks(channels: int, counts: tuple[int, ...]) -> None:
    q = Quantization(0.1, 3)
    op = avg_pool(9, 9, channels, q, 3, stride=1, padding="same")
    assert isinstance(op, Divisible)
    x = random(np.random.default_rng(1), q, (9, 9, channels))
    right = pooled(stored_mean, q.store(x), (3, 3), (1, 1), "same")
    with npukit.open("sim:rknpu", strict=True) as device:
        for cores in counts:
            assert len(op.programs([0], 0, 0, cores)) == cores
            np.testing.assert_array_equal(q.store(execute(device, op, x, cores=cores)), right)


@pytest.mark.parametrize("name", ["rknpu", "rocket"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride"), [((7, 7, 70), None, None), ((9, 8, 20), (3, 2), (2, 2))]
)
def test_means_by_the_core(name: str, shape: Any, kernel: Any, stride: Any) -> None:
    """On rocket too."""
    rng = np.random.default_rng(2)
    pairs = kernel or shape[:2], stride or kernel or shape[:2]
    with npukit.open(f"sim:{name}", strict=True) as device:
        for q in (Quantization(0.1, 3), Quantization(0.1, -7, "int8")):
            x = random(rng, q, shape)
            op = avg_pool(*shape, q, kernel, stride=stride, unit="core")
            assert isinstance(op, Convolution)
            found = execute(device, op, x)
            assert np.abs(found - pooled(tflite_mean, x, *pairs, "valid")).max() <= 1
            real = pooled(lambda seen: seen.astype(np.int64).mean(axis=(0, 1)), x, *pairs, "valid")
            bound = 0.5 + np.abs(real - q.zero_point) * 2.0**-13
            assert (np.abs(found - real) <= bound).all()
        x = halves(rng, shape)
        found = execute(device, avg_pool(*shape, None, kernel, stride=stride, unit="core"), x)
        real = pooled(lambda seen: seen.mean(axis=(0, 1)), x.astype(float), *pairs, "valid")
        assert np.abs(found - real).max() <= 2.0**-10


def test_rocket_refuses_what_it_would_wait_for_in_vain() -> None:
    op = max_pool(4, 4, 16, None, 2)
    x = np.zeros((4, 4, 16), np.float16)
    with no_leak(), npukit.open("sim:rocket") as device:
        with pytest.raises(ProgramError, match="interrupts 0xc00; rocket waits"):
            execute(device, op, x)
        assert device.buffers() == []


@pytest.mark.parametrize(
    ("size", "kernel", "options", "rule"),
    [
        ((0, 4, 4), 2, {}, "0 x 4 x 4"),
        ((4, 4, 4), 0, {}, "kernel 0"),
        ((4, 4, 4), 2, {"stride": 0}, "stride 0"),
        ((4, 4, 4), 5, {}, "exceeds the padded image"),
        ((4, 4, 4), 2, {"padding": (2, 0, 0, 0)}, "not below the kernel"),
        ((40, 40, 4), 17, {}, "window of 17: the PPU has 1 to 16"),
        ((40, 40, 4), 2, {"stride": 17}, "stride of 17: the PPU has 1 to 16"),
    ],
)
def test_what_cannot_be_done_is_refused(size: Any, kernel: Any, options: Any, rule: str) -> None:
    for maker in (max_pool, avg_pool):
        with pytest.raises(ProgramError, match=rule):
            maker(*size, None, kernel, **options)


def test_what_the_core_cannot_do_is_refused() -> None:
    with pytest.raises(ProgramError, match="divides all of them alike"):
        avg_pool(4, 4, 4, None, 3, padding="same", unit="core")
    with pytest.raises(ProgramError, match="no unit 'dpu'"):
        avg_pool(4, 4, 4, None, unit="dpu")
    with pytest.raises(ProgramError, match='unit="core" up to 31'):
        avg_pool(20, 20, 4, None)
    assert isinstance(avg_pool(20, 20, 4, None, unit="core"), Convolution)


def test_reciprocals_are_too_small_by_what_is_documented() -> None:
    for height in range(1, 17):
        for width in range(1, 17):
            product = Fraction((65536 // height) * (65536 // width), 2**32)
            error = 1 - product * height * width
            assert 0 <= error <= Fraction(height + width - 2, 65536)


def test_what_was_measured_is_proven() -> None:
    op = max_pool(6, 6, 24, None, 3, stride=1)
    assert isinstance(op, Pooling)
    assert op.program([0], 0, 0).unproven == ()
    q = Quantization(0.1, 3)
    assert avg_pool(6, 6, 24, q, 3, stride=1, padding="same").program([0], 0, 0).unproven
