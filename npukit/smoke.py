# SPDX-License-Identifier: MIT
"""The whole path in a few seconds: open, allocate, multiply, classify; each step checked.

Like the package's face, it knows real and simulated devices both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import npukit
from npukit import digits
from npukit.devices import Device, RknpuDevice
from npukit.devices.amdxdna import AmdxdnaDevice
from npukit.devices.drm import DrmDevice
from npukit.devices.fastrpc import FastRpcDevice
from npukit.ioctl import Kernel, NpuError
from npukit.programs.rk3588.launch import Rk3588Device
from npukit.programs.rk3588.matmul import matmul

Check = Callable[[Any], tuple[bool, str]]

DEFAULT_DEVICE = "sim:rknpu"
BUFFER_BYTES = 1 << 20
_INT8_SHAPE = (64, 256, 96)
_FP16_SHAPE = (64, 256, 48)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the result: what was done, whether it held, how long it took, what was seen."""

    name: str
    passed: bool
    seconds: float
    detail: str


def choose(path: str | None = None) -> tuple[str, str]:
    """What to open: the device named, the first NPU, or a simulated one; and a line about it."""
    if path is not None:
        return path, f"using {path}"
    found = next((node for node in npukit.discover() if node.drivable), None)
    if found is None:
        return DEFAULT_DEVICE, f"no NPU found: using a simulated RK3588 ({DEFAULT_DEVICE})"
    return found.path, f"using {found.path} ({found.description})"


def run(
    path: str | None = None, watch: Callable[[Kernel], Kernel] | None = None
) -> Iterator[str | Step]:
    """A line about the device, then a Step for each thing done. ``watch``: see npukit.open.

    A step that fails ends the run: those after it would only repeat its failure. NpuError when the
    device cannot be opened.
    """
    start = time.perf_counter()
    path, line = choose(path)
    yield line
    with npukit.open(path, watch=watch) as device:
        yield Step("open and identify", True, time.perf_counter() - start, _identity(device))
        for name, check in _steps(device, path.startswith("sim:")):
            start = time.perf_counter()
            try:
                passed, detail = check(device)
            except NpuError as error:
                passed, detail = False, str(error)
            yield Step(name, passed, time.perf_counter() - start, detail)
            if not passed:
                return


def _identity(device: Device) -> str:
    if isinstance(device, RknpuDevice):
        version = ".".join(map(str, device.driver_version))
        return f"rknpu {version}, hardware {device.hardware_version:#x}, {device.path}"
    if isinstance(device, DrmDevice):
        return f"{device.version.description}, {device.path}"
    return f"{device.driver}, {device.path}"


def _steps(device: Device, simulated: bool) -> list[tuple[str, Check]]:
    """What this device is asked to do, in order."""
    memory: tuple[str, Check] = ("allocate, map, write, sync, read back", _memory)
    if isinstance(device, Rk3588Device):
        return [
            memory,
            ("int8 matmul", _int8),
            ("fp16 matmul", _fp16),
            ("classify handwritten digits", _digits),
        ]
    if isinstance(device, AmdxdnaDevice):
        from npukit.programs.xdna import smoke as xdna

        return [memory, *(xdna.steps(device) if simulated else [("run designs", _no_designs)])]
    if isinstance(device, FastRpcDevice):
        return _fastrpc_steps(device, simulated)
    raise TypeError(f"no steps for {device!r}")


def _fastrpc_steps(device: FastRpcDevice, simulated: bool) -> list[tuple[str, Check]]:
    from npukit.programs.hexagon import smoke as hexagon

    shell = None
    if simulated:
        from npukit.sim import cdsp

        shell = cdsp.SHELL
    images = digits.load().images
    expected = digits.network().logits(images, digits.numpy_matmul)
    return list(hexagon.steps(device, shell, images, expected))


def _memory(device: Rk3588Device | AmdxdnaDevice) -> tuple[bool, str]:
    pattern = np.random.default_rng(0).integers(0, 256, BUFFER_BYTES, np.uint8)
    with device.alloc(BUFFER_BYTES) as buffer:
        with buffer.access("w") as memory:
            memory[:] = pattern
        with buffer.access("r") as memory:
            same = np.array_equal(memory, pattern)
        return same, f"{buffer.size} bytes at {buffer.dma_address:#x}"


def _no_designs(_device: AmdxdnaDevice) -> tuple[bool, str]:
    # What compute tiles do is modelled, not compiled.
    return True, "left out: npukit's designs run on the simulated NPU (sim:amdxdna) only"


def _int8(device: Rk3588Device) -> tuple[bool, str]:
    m, k, n = _INT8_SHAPE
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (m, k), np.int8)
    b = rng.integers(-128, 128, (k, n), np.int8)
    wrong = int(np.count_nonzero(matmul(device, a, b) != a.astype(np.int32) @ b.astype(np.int32)))
    return wrong == 0, f"{m}x{k}x{n}, {wrong} of {m * n} differ from numpy"


def _fp16(device: Rk3588Device) -> tuple[bool, str]:
    m, k, n = _FP16_SHAPE
    rng = np.random.default_rng(2)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((k, n)).astype(np.float16)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    reference = wide_a @ wide_b
    error = np.abs(matmul(device, a, b) - reference)
    bound = fp16_bound(reference, np.abs(wide_a) @ np.abs(wide_b), k, np.float32)
    return (
        bool((error <= bound).all()),
        f"{m}x{k}x{n}, largest error {np.max(error / bound):.0%} of the bound",
    )


def fp16_bound(reference: Any, magnitude: Any, k: int, dtype: type[np.floating[Any]]) -> Any:
    """How far an fp16 product may be from the exact one: half an ulp of ``dtype`` at ``reference``
    plus k * 2^-24 * ``magnitude``, the sum of the absolute products."""
    half_ulp = np.spacing(np.abs(reference).astype(dtype)).astype(np.float64) / 2
    return half_ulp + k * 2.0**-24 * magnitude


def _digits(device: Rk3588Device) -> tuple[bool, str]:
    data, network = digits.load(), digits.network()
    found = network.logits(data.images, lambda a, b: matmul(device, a, b))
    expected = network.logits(data.images, digits.numpy_matmul)
    same = int(np.count_nonzero((found == expected).all(axis=1)))
    right = found.argmax(axis=1) == data.labels
    accuracy = right[data.held_out].mean()
    return (
        bool(same == len(data.images) and accuracy >= 0.95),
        f"{accuracy:.1%} of {len(right[data.held_out])} held-out images right; "
        f"{same} of {len(data.images)} equal the integer network in numpy",
    )
