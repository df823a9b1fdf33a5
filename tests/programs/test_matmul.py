# SPDX-License-Identifier: MIT
"""matmul() against numpy, on every simulated device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import no_leak

import npukit
from npukit.ioctl import DeviceLost, Fault, FaultyKernel, NpuError, ProgramError
from npukit.programs.rk3588.matmul import matmul
from npukit.sim import SimKernel
from npukit.smoke import fp16_bound

DEVICES = ["rknpu", "rknpu-misc", "rocket"]


@pytest.fixture(params=DEVICES, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with npukit.open(f"sim:{request.param}", strict=True) as device:
        yield device


shapes = st.tuples(st.integers(1, 70), st.integers(1, 150), st.integers(1, 90))
relaxed = settings(max_examples=25)


@relaxed
@given(shapes, st.integers(1, 3), st.integers(0, 2**32))
def test_int8_is_exact(device: Any, shape: tuple[int, int, int], cores: int, seed: int) -> None:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a = rng.integers(-128, 128, (m, k), np.int8)
    b = rng.integers(-128, 128, (k, n), np.int8)
    found = matmul(device, a, b, cores=cores)
    assert found.dtype == np.int32
    assert np.array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


@relaxed
@given(shapes, st.sampled_from([np.float16, np.float32]), st.integers(0, 2**32))
def test_fp16_stays_within_the_bound(
    device: Any, shape: tuple[int, int, int], dtype: Any, seed: int
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((k, n)).astype(np.float16)
    found = matmul(device, a, b, dtype)
    assert found.dtype == dtype
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    reference = wide_a @ wide_b
    bound = fp16_bound(reference, np.abs(wide_a) @ np.abs(wide_b), k, dtype)
    assert (np.abs(found - reference) <= bound).all()


def test_sums_that_fp32_holds_are_exact(device: Any) -> None:
    rng = np.random.default_rng(5)
    a = (rng.integers(-16, 17, (33, 200)) / 8).astype(np.float16)
    b = (rng.integers(-16, 17, (200, 50)) / 8).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(matmul(device, a, b), exact.astype(np.float32))
    assert np.array_equal(matmul(device, a, b, np.float16), exact.astype(np.float16))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1, 1), np.int8),
        ((1, 9000, 40), np.int8),  # rows of more than a quarter of a tile
        ((3, 40000, 5), np.int8),  # K beyond one task: summed up
        ((2, 17000, 3), np.float16),
        ((1100, 32, 32), np.int8),  # more rows than FEATURE_GRAINS holds
        ((5, 32, 8200), np.int8),  # more kernels than DATA_CUBE_CHANNEL holds
    ],
)
def test_tiling_beyond_one_task(shape: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = shape
    rng = np.random.default_rng(7)
    a = rng.integers(-8, 9, (m, k)).astype(dtype)
    b = rng.integers(-8, 9, (k, n)).astype(dtype)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    with npukit.open("sim:rknpu") as device:
        assert np.array_equal(matmul(device, a, b), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_empty_products(device: Any, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = matmul(device, np.zeros((m, k), np.int8), np.zeros((k, n), np.int8))
    assert found.shape == (m, n)
    assert not found.any()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros((2, 3), np.int8), np.zeros((4, 2), np.int8)),
        (np.zeros(3, np.int8), np.zeros((3, 2), np.int8)),
        (np.zeros((2, 3), np.int8), np.zeros((3, 2), np.float16)),
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)),
        (np.zeros((2, 3), np.int16), np.zeros((3, 2), np.int16)),
    ],
)
def test_what_cannot_be_multiplied_is_refused(device: Any, a: Any, b: Any) -> None:
    with pytest.raises(ProgramError, match=r"matmul|multiply"):
        matmul(device, a, b)


def test_cores_are_checked(device: Any) -> None:
    a = np.zeros((2, 2), np.int8)
    with pytest.raises(ValueError, match="4 cores"):
        matmul(device, a, a, cores=4)


def test_strided_and_transposed_operands(device: Any) -> None:
    rng = np.random.default_rng(9)
    a = rng.integers(-128, 128, (60, 80), np.int8)[::2, ::3]
    b = rng.integers(-128, 128, (50, 27), np.int8).T
    expected = a.astype(np.int32) @ b.astype(np.int32)
    assert np.array_equal(matmul(device, a, b), expected)


@pytest.mark.parametrize("name", DEVICES)
def test_nothing_is_left_behind_whatever_fails(name: str) -> None:
    a = np.ones((8, 32), np.int8)
    with no_leak():
        counter = FaultyKernel(SimKernel([name]))
        with npukit.open(counter.kernel.devices[0].paths[0], counter) as device:  # type: ignore[attr-defined]
            opening = counter.calls
            matmul(device, a, a.T)  # type: ignore[arg-type]
    for step in range(opening, counter.calls):
        with no_leak():
            kernel = FaultyKernel(SimKernel([name]), [Fault(12, after=step)])
            with npukit.open(kernel.kernel.devices[0].paths[0], kernel) as device:  # type: ignore[attr-defined]
                with pytest.raises(OSError, match="memory"):
                    matmul(device, a, a.T)  # type: ignore[arg-type]
                assert device.buffers() == []
                result = matmul(device, a, a.T)  # type: ignore[arg-type]
                assert (result == 32).all()


def test_a_job_that_rocket_drops_is_noticed() -> None:
    """SUBMIT that says yes and does nothing, as the driver does with a job that it cannot lock."""
    from npukit.abi.rocket import DRM_IOCTL_ROCKET_SUBMIT

    class Deaf(FaultyKernel):
        def _pass(self, name: str, *arguments: Any) -> Any:
            if name == "ioctl" and arguments[1] == DRM_IOCTL_ROCKET_SUBMIT:
                return 0, 0
            return super()._pass(name, *arguments)

    a = np.ones((4, 32), np.int8)
    with no_leak(), npukit.open("/dev/accel/accel0", Deaf(SimKernel(["rocket"]))) as device:
        with pytest.raises(DeviceLost, match="an output did not change"):
            matmul(device, a, a.T)  # type: ignore[arg-type]


def test_errors_of_the_device_come_through() -> None:
    with npukit.open("sim:rknpu") as device:
        device.close()
        with pytest.raises(NpuError, match="closed"):
            matmul(device, np.ones((4, 4), np.int8), np.ones((4, 4), np.int8))  # type: ignore[arg-type]
