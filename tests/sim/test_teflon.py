# SPDX-License-Identifier: MIT
"""Mesa's own user space, unmodified, on the simulated machine: TensorFlow Lite with the delegate
libteflon and its rocket driver, for AArch64 under qemu-user, behind the preload door.

``tools/mesa_teflon.py`` brings both here and prints what NPUKIT_TEFLON has to be. What a model
gives has to equal, in every element, the formula behind Mesa's registers, and what TensorFlow Lite
gives on the CPU but for a rounding. ``make teflon`` runs all models of Mesa's own tests of
convolutions.
"""

import contextlib
import functools
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import ROOT
from test_preload import served
from test_rk3588_npu_mesa import requantized
from tflite_models import ADD, CONV_2D, DEPTHWISE_CONV_2D, Layer, Tensor, model

pytestmark = pytest.mark.qemu

Array = npt.NDArray[Any]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FORMULA = "26.2"
"""The Mesa whose registers ``requantized`` was written down from."""
MODELS = int(os.environ.get("NPUKIT_MODELS", "20"))
"""How many models of the grid run."""
LIMIT = 600
MEMORY = 6 << 30
"""Bytes that a client may have: Mesa's splitting into tasks does not always end."""
EMPTY_TASK = "DPU.DATA_CUBE_HEIGHT.HEIGHT = 8191: puts the last window below the input"
"""What is wrong with a last task to which Mesa's splitting leaves less than a kernel's lines. It
fails after all others."""


# ---- Models


@dataclass(frozen=True)
class Convolution:
    """One convolution of a square, with drawn weights."""

    size: int
    kernel: int
    in_channels: int
    out_channels: int
    stride: int = 1
    same: bool = True
    depthwise: bool = False
    zero_points: tuple[int, int, int] = (120, 130, 110)
    """Of the input, the weights and the output."""
    in_scale: float = 0.02
    weight_scale: float = 0.01

    @property
    def scales(self) -> tuple[float, float, float]:
        """Such that outputs spread over uint8 as inputs do: drawn weights deviate by 74."""
        terms = self.kernel**2 * (1 if self.depthwise else self.in_channels)
        scale = self.in_scale * self.weight_scale
        return self.in_scale, self.weight_scale, scale * 74 * terms**0.5

    @property
    def out_size(self) -> int:
        return -(-(self.size if self.same else self.size - self.kernel + 1) // self.stride)

    @functools.cached_property
    def weights(self) -> Array:
        """[o][ky][kx][i], or [1][ky][kx][c]."""
        kernel = (self.kernel, self.kernel)
        shape = (self.out_channels, *kernel, self.in_channels)
        return drawn(1, (1, *kernel, self.out_channels) if self.depthwise else shape)

    @functools.cached_property
    def bias(self) -> Array:
        return np.random.default_rng(2).integers(-1000, 1000, self.out_channels, np.int32)

    @functools.cached_property
    def input(self) -> Array:
        return drawn(3, (self.size, self.size, self.in_channels))

    def __call__(self, x: Array) -> Array:
        """[y][x][c] of uint8, rounded as the hardware does."""
        kernel, out, stride = self.kernel, self.out_size, self.stride
        total = max((out - 1) * stride + kernel - self.size, 0) if self.same else 0
        padded = np.zeros((self.size + total, self.size + total, self.in_channels))
        inside = slice(total // 2, total // 2 + self.size)
        padded[inside, inside] = x.astype(float) - self.zero_points[0]
        weights = self.weights.astype(float) - self.zero_points[1]
        sums = np.zeros((out, out, self.out_channels))
        span = (out - 1) * stride + 1
        # In float64 for its speed: sums of integers that stay below 2**53 are exact.
        for row, column in itertools.product(range(kernel), repeat=2):
            part = padded[row : row + span : stride, column : column + span : stride]
            factor = weights[:, row, column]
            sums += part * factor if self.depthwise else part @ factor.T
        case = dict(zip(("in_scale", "w_scale", "out_scale"), self.scales, strict=True))
        case["out_zp"] = self.zero_points[2]
        return requantized(case, sums.astype(np.int64) + self.bias).astype(np.uint8)


def drawn(seed: int, shape: tuple[int, ...], low: int = 0, high: int = 256) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape, np.uint8)


def network(*convolutions: Convolution) -> bytes:
    """A model in which each reads what the one before wrote."""
    first = convolutions[0]
    tensors = [Tensor((1, *first.input.shape), first.scales[0], first.zero_points[0])]
    layers = []
    for each in convolutions:
        at = len(tensors)
        out = (1, each.out_size, each.out_size, each.out_channels)
        tensors += [
            Tensor(each.weights.shape, each.scales[1], each.zero_points[1], each.weights),
            Tensor(each.bias.shape, each.scales[0] * each.scales[1], 0, each.bias),
            Tensor(out, each.scales[2], each.zero_points[2]),
        ]
        code = DEPTHWISE_CONV_2D if each.depthwise else CONV_2D
        layers.append(Layer(code, [at - 1, at, at + 1], at + 2, each.same, each.stride))
    return model(tensors, layers, [0], [len(tensors) - 1])


SINGLE = {
    "three by three": Convolution(8, 3, 16, 32),
    "one by one": Convolution(8, 1, 16, 16),
    "odd channels": Convolution(16, 3, 17, 33),
    "first of a MobileNet": Convolution(224, 3, 3, 32, stride=2),
    "last of a MobileNet": Convolution(1, 1, 1024, 1001),
    "no padding": Convolution(7, 3, 160, 320, same=False),
    "stride, no padding": Convolution(17, 5, 16, 16, stride=4, same=False),
    "even kernel": Convolution(16, 2, 16, 16),
    "one channel": Convolution(32, 3, 1, 16),
    "several tasks": Convolution(56, 3, 64, 64),
    "many channels": Convolution(14, 1, 512, 512),
    "zero points 0": Convolution(16, 3, 32, 32, zero_points=(0, 128, 0)),
    "zero points apart": Convolution(16, 3, 32, 32, zero_points=(150, 110, 180)),
    "depthwise": Convolution(8, 3, 32, 32, depthwise=True),
    "depthwise, stride": Convolution(112, 3, 64, 64, 2, depthwise=True),
    "depthwise, zero point 139": Convolution(16, 3, 96, 96, 1, True, True, (139, 100, 30)),
}


def mobilenet(size: int) -> list[Convolution]:
    """The convolutions of a MobileNet v1 but its last one."""
    layers = [Convolution(size, 3, 3, 32, 2, zero_points=(128, 120, 140))]
    pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    for out, stride in [*pairs, *(5 * [(512, 1)]), (1024, 2), (1024, 1)]:
        for kernel, channels in ((3, layers[-1].out_channels), (1, out)):
            before = layers[-1]
            points = (before.zero_points[2], 120 + len(layers), 140 - len(layers))
            each = (before.out_size, kernel, before.out_channels, channels)
            step = stride if kernel == 3 else 1
            layers.append(Convolution(*each, step, True, kernel == 3, points, before.scales[2]))
    return layers


ADDENDS = [
    (0.090192, 299.671889, 6, 27676, 25),
    (0.364902, 780.34375, 4, 18589, 24),
    (0.171151, 602.90625, -3, 28937, 24),
    (0.100618, 313.671875, -128, 16874, 23),
]
"""Mesa adds right only with some scales, which it knows by heart (rkt_regcmd.c): scale of the
addend; what its register says of that; offset, scale and shift of OUT_CVT."""
PICTURE = drawn(6, (16, 16, 32))


def residual(addend: tuple[float, float, int, int, int], read_twice: bool = False) -> bytes:
    """Three convolutions, of which the last adds what the first gave; ``read_twice``: two, of which
    the second reads that as well."""
    scale, factor, offset, multiplier, shift = addend
    sums = scale / factor
    out, middle = sums * 2**shift / multiplier, 0.05
    in_scale = scale if read_twice else middle

    def constants(kernel: int, spread: int, in_scale: float, scale: float) -> list[Tensor]:
        weights = drawn(kernel, (32, kernel, kernel, 32), 128 - spread, 129 + spread)
        bias = np.arange(0, 2048, 64, np.int32)
        return [
            Tensor(weights.shape, scale, 128, weights),
            Tensor((32,), in_scale * scale, 0, bias),
        ]

    shape = (1, *PICTURE.shape)
    tensors = [Tensor(shape, 0.02, 128), *constants(1, 28, 0.02, 0.09), Tensor(shape, scale)]
    tensors += [*constants(3, 18, in_scale, sums / in_scale), Tensor(shape, out, 128)]
    tensors += [Tensor(shape, out, offset + 128)]
    tensors += [*constants(1, 28, scale, 0.003), Tensor(shape, middle)]
    layers = [Layer(CONV_2D, [0, 1, 2], 3), Layer(CONV_2D, [3, 8, 9], 10)]
    layers += [Layer(CONV_2D, [10, 4, 5], 6), Layer(ADD, [6, 3], 7)]
    if read_twice:
        layers[1:3] = [Layer(CONV_2D, [3, 4, 5], 6)]
    return model(tensors, layers, [0], [7])


def grid() -> list[Convolution]:
    """The models of Mesa's tests of convolutions (src/gallium/targets/teflon/test_teflon.cpp)."""
    sizes, channels, rest = (3, 5, 8, 80, 112), (1, 32, 120, 128, 256), ((1, 2), (False, True))
    direct = itertools.product(sizes, (1, 3, 5), channels, (*channels, 160), *rest)
    depthwise = itertools.product(sizes, (3, 5), channels, *rest)
    models = [*direct, *((*each[:3], *each[2:], True) for each in depthwise)]
    return [Convolution(*each) for each in models if each[1] <= each[0]]


def runs(each: Convolution) -> bool:
    """Whether a model is one that Mesa 26.2 and the simulated NPU can both do."""
    if each.in_channels == 1:
        # To one channel, Mesa forgets to copy the input. Of a small picture that is padded,
        # DATAIN_WIDTH is beyond DMA_WIDTH, and the simulated NPU refuses what is not known.
        return each.out_channels > 1 and (each.size >= 16 or not each.same or each.kernel == 1)
    # Mesa splits for ever when the banks that weights leave do not hold a kernel's lines.
    weights = each.kernel**2 * each.in_channels * (1 if each.depthwise else each.out_channels)
    banks = 11 - -(-weights // 32768)
    banks = banks if banks > 1 else 7
    line = -(-each.in_channels // 16) * each.size * 16
    return line * each.size <= banks * 32768 or banks * 32768 // line >= each.kernel


# ---- Running them


Job = tuple[bytes, Array]
"""A model and its input."""


class Teflon:
    """A folder of clients, with the libraries that they load."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self._count = itertools.count()
        found = re.search(r"mesa-teflon-delegate_(\S+)_", (root / "complete").read_text())
        assert found is not None
        self.version = found[1]

    def command(self, delegate: bool, jobs: Sequence[Job], client: str) -> tuple[list[str], Path]:
        """The client's command line, and the folder where it writes 0.out, 1.out, ..."""
        folder = self.folder / str(next(self._count))
        folder.mkdir()
        libraries = self.root / "usr/lib/aarch64-linux-gnu"
        tensorflow = next(libraries.glob("libtensorflow-lite.so.*"))
        mesa = self.root / "usr/lib/teflon/libteflon.so" if delegate else "cpu"
        command = [EMULATOR, "-L", self.root, "-E", f"LD_LIBRARY_PATH={libraries}"]
        command += [self.folder / client, tensorflow, mesa]
        for number, (data, tensor) in enumerate(jobs):
            names = [folder / f"{number}.{kind}" for kind in ("tflite", "in", "out")]
            names[0].write_bytes(data)
            names[1].write_bytes(tensor.tobytes())
            command += names
        return list(map(str, command)), folder

    @property
    def library(self) -> Path:
        return self.folder / "library.so"

    def cpu(self, jobs: Sequence[Job]) -> list[Array]:
        command, folder = self.command(False, jobs, "client")
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
        return outputs(folder, jobs)

    def npu(self, jobs: Sequence[Job], client: str = "client") -> tuple[list[Array], str]:
        """And what strict mode and the report say."""
        command, folder = self.command(True, jobs, client)
        run = ["sh", "-c", f'ulimit -d {MEMORY >> 10}; exec "$@"', "sh"]
        run += [sys.executable, "-m", "npukit", "sim", "run", "--door", "preload"]
        run += ["--device", "rocket", "--strict", "--report", "--library", str(self.library), "--"]
        result = subprocess.run([*run, *command], capture_output=True, text=True, timeout=LIMIT)
        assert result.returncode == 0, result.stderr
        return outputs(folder, jobs), result.stderr


def outputs(folder: Path, jobs: Sequence[Job]) -> list[Array]:
    return [np.fromfile(folder / f"{number}.out", np.uint8) for number in range(len(jobs))]


@pytest.fixture(scope="module")
def teflon(tmp_path_factory: pytest.TempPathFactory) -> Teflon:
    root = os.environ.get("NPUKIT_TEFLON")
    if not root:
        pytest.skip("NPUKIT_TEFLON does not say where Mesa's delegate is (tools/mesa_teflon.py)")
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    folder = tmp_path_factory.mktemp("teflon")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    source = ROOT / "tests/sim/teflon_client.c"
    keep = ["-DKEEP_FREED", "-fno-builtin-free", "-rdynamic"]
    library = ["-fPIC", "-fvisibility=hidden", "-shared", ROOT / "csrc/preload.c", "-pthread"]
    for arguments in (
        [source, "-o", folder / "client"],
        [*keep, source, "-o", folder / "keeping-client"],
        [*library, "-o", folder / "library.so"],
    ):
        subprocess.run([COMPILER, *flags, *arguments], check=True)
    return Teflon(Path(root), folder)


def submits(report: str) -> int:
    """Of a run in which strict mode refused nothing and nothing was left open."""
    lines = [line for line in report.splitlines() if EMPTY_TASK not in line]
    assert lines[0] == "npukit sim run: report", report
    assert not any("strict" in line or "error" in line or "still open" in line for line in lines)
    (count,) = (line.split()[0] for line in lines if line.endswith(" submits"))
    return int(count)


@dataclass
class Outcome:
    """What each of SINGLE gave."""

    npu: dict[str, Array]
    cpu: dict[str, Array]
    report: str


@pytest.fixture(scope="module")
def single(teflon: Teflon) -> Outcome:
    jobs = [(network(each), each.input) for each in SINGLE.values()]
    npu, report = teflon.npu(jobs)
    cpu = teflon.cpu(jobs)
    named = (dict(zip(SINGLE, each, strict=True)) for each in (npu, cpu))
    return Outcome(*named, report)


# ---- Tests


def needs_formula(teflon: Teflon) -> None:
    if not teflon.version.startswith(FORMULA):
        pytest.skip(f"the formula is that of Mesa {FORMULA}, and this is {teflon.version}")


def test_mesa_submits_once_for_each_model(single: Outcome) -> None:
    assert submits(single.report) == len(SINGLE)


@pytest.mark.parametrize("name", SINGLE)
def test_a_model_equals_the_formula(teflon: Teflon, single: Outcome, name: str) -> None:
    needs_formula(teflon)
    expected = SINGLE[name](SINGLE[name].input)
    assert expected.std() > 10
    np.testing.assert_array_equal(single.npu[name], expected.reshape(-1))


@pytest.mark.parametrize("name", SINGLE)
def test_a_model_equals_the_cpu_but_for_a_rounding(single: Outcome, name: str) -> None:
    apart = np.abs(single.npu[name].astype(int) - single.cpu[name])
    assert apart.max() <= 1
    # Scales are rounded to 15 bits and sums to even: less than one in a hundred.
    assert (apart > 0).mean() < 0.01


def test_sums_that_mesa_halves_equal_the_cpu_but_for_a_rounding(teflon: Teflon) -> None:
    """For some scales of weights Mesa has CORE halve the sums (CLIP_TRUNCATE)."""
    scale = float(np.uint32(0x3C0060DE).view(np.float32))
    models = [
        Convolution(14, 3, 64, 64, 1, depthwise=depthwise, zero_points=zeros, weight_scale=scale)
        for depthwise in (False, True)
        for zeros in ((128, 128, 128), (120, 130, 110), (110, 160, 100), (150, 90, 128))
    ]
    jobs = [(network(each), each.input) for each in models]
    npu, report = teflon.npu(jobs)
    assert submits(report) == len(models)
    for got, expected in zip(npu, teflon.cpu(jobs), strict=True):
        assert expected.std() > 10
        apart = np.abs(got.astype(int) - expected)
        # One of two halves is rounded before the scale, so more differ than else.
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.05


def test_a_whole_mobilenet_is_one_submit(teflon: Teflon) -> None:
    needs_formula(teflon)
    layers = mobilenet(224)
    (output,), report = teflon.npu([(network(*layers), layers[0].input)])
    assert submits(report) == 1
    expected = layers[0].input
    for each in layers:
        expected = each(expected)
    assert expected.std() > 10
    np.testing.assert_array_equal(output, expected.reshape(-1))


def test_additions_equal_the_cpu(teflon: Teflon) -> None:
    jobs = [(residual(addend), PICTURE) for addend in ADDENDS]
    npu, report = teflon.npu(jobs)
    assert submits(report) == len(ADDENDS)
    for got, expected in zip(npu, teflon.cpu(jobs), strict=True):
        assert expected.std() > 10
        # The CPU rounds the convolution before it adds, and the NPU only once.
        assert np.abs(got.astype(int) - expected).max() <= 2


def test_an_addend_that_is_read_twice_is_named_twice(teflon: Teflon) -> None:
    """The driver drops such a job and does not say so."""
    _, report = teflon.npu([(residual(ADDENDS[3], read_twice=True), PICTURE)])
    assert "strict: rocket: job 1 of 2 is dropped: EALREADY" in report


def test_two_programs_on_one_machine(teflon: Teflon, tmp_path: Path) -> None:
    needs_formula(teflon)
    layers = mobilenet(64)
    jobs = [(network(*layers), layers[0].input)] * 3
    expected = layers[0].input
    for each in layers:
        expected = each(expected)
    environment = {"QEMU_SET_ENV": f"LD_PRELOAD={teflon.library}", "NPUKIT_SIM": tmp_path / "npu"}
    with served(tmp_path / "npu"), contextlib.ExitStack() as stack:
        commands = [teflon.command(True, jobs, "client") for _ in range(2)]
        programs = [
            stack.enter_context(subprocess.Popen(command, env={**os.environ, **environment}))
            for command, _ in commands
        ]
        for program, (_, folder) in zip(programs, commands, strict=True):
            assert program.wait(LIMIT) == 0
            for output in outputs(folder, jobs):
                np.testing.assert_array_equal(output, expected.reshape(-1))


def test_models_of_mesas_own_tests(teflon: Teflon) -> None:
    needs_formula(teflon)
    models = [each for each in grid() if runs(each)]
    assert len(models) == 1706
    random.Random(1).shuffle(models)
    models = models[:MODELS]
    for start in range(0, len(models), 20):
        some = models[start : start + 20]
        jobs = [(network(each), each.input) for each in some]
        npu, report = teflon.npu(jobs, "keeping-client")
        assert submits(report) == len(some)
        for each, output in zip(some, npu, strict=True):
            np.testing.assert_array_equal(output, each(each.input).reshape(-1), str(each))
