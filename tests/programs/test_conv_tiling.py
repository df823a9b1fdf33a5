# SPDX-License-Identifier: MIT
"""How convolutions are cut: by columns and channels too, and for several cores."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.conv_reference import PLAIN, check, convolve

import npukit
from npukit.abi.rknpu import rknpu_submit
from npukit.abi.rocket import drm_rocket_submit
from npukit.ioctl import ProgramError, TracingKernel
from npukit.programs.rk3588.conv import conv2d, execute, fully_connected
from npukit.programs.rk3588.elementwise import add
from npukit.programs.rk3588.matmul import BANK_BYTES, CBUF_BANKS
from npukit.programs.rk3588.quantize import PerChannel, Quantization
from npukit.programs.rk3588.registers import CNA
from npukit.programs.rk3588.tiling import Axis, Region, Shape
from npukit.sim import SimKernel


def outputs_for(*sizes: int) -> Quantization:
    return Quantization(0.0002 * float(np.prod(sizes)), 100)


@pytest.mark.parametrize(
    ("shape", "kernels", "kernel", "stride", "dilation", "addend", "cut"),
    [
        # A window of all columns does not fit.
        ((9, 2000, 160), 20, (3, 3), (1, 1), (1, 1), None, "columns"),
        ((9, 600, 400), 20, (3, 5), (2, 3), (1, 1), None, "columns"),
        ((9, 300, 300), 20, (5, 3), (1, 1), (2, 9), None, "columns"),
        ((7, 700, 200), 33, (3, 3), (1, 2), (1, 1), Quantization(0.05, 7), "columns"),
        # More columns than DATAIN_WIDTH holds.
        ((4, 5000, 7), 20, (3, 3), (1, 1), (1, 1), None, "columns"),
        ((3, 9000, 3), 4, (1, 7), (1, 1), (1, 1), None, "columns"),
        ((2, 12000, 3), 4, (1, 1), (1, 1), (1, 1), None, "columns"),  # NOTCH_ADDR does not do
        # More channels than DATA_CUBE_CHANNEL holds.
        ((2, 3, 16), 8200, (1, 1), (1, 1), (1, 1), Quantization(0.05, 7), "channels"),
        # Depthwise: channels are cut first.
        ((12, 200, 512), None, (9, 5), (1, 1), (1, 1), None, "channels"),
        ((5, 20, 8300), None, (3, 3), (1, 1), (1, 1), None, "channels"),
        ((33, 2047, 70), None, (31, 3), (2, 2), (1, 1), None, "both"),
    ],
)
@pytest.mark.parametrize("cores", [1, 3])
def test_columns_and_channels_are_cut(
    shape: tuple[int, int, int],
    kernels: int | None,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    addend: Quantization | None,
    cut: str,
    cores: int,
) -> None:
    numbers = (PLAIN[0], PLAIN[1], outputs_for(*kernel, shape[2] if kernels else 1))
    with npukit.open("sim:rknpu", strict=True) as device:
        op = check(
            device,
            np.random.default_rng(4),
            shape,
            kernels,
            kernel,
            numbers,
            stride,
            dilation=dilation,
            addend=addend,
            cores=cores,
        )
    tiles = op.tiles()
    columns = any(len(tile.region.columns) < op.output.width for tile in tiles)
    channels = any(len(tile.region.channels) < op.shape.kernels for tile in tiles)
    assert (columns, channels) == {
        "columns": (True, False),
        "channels": (False, True),
        "both": (True, True),
    }[cut]


def test_float16_is_cut_too() -> None:
    with npukit.open("sim:rocket", strict=True) as device:
        for shape, kernels in (((6, 900, 100), 20), ((6, 100, 600), None)):
            op = check(device, np.random.default_rng(5), shape, kernels, (5, 3), None)
            assert len(op.tiles()) > 3


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    def axis(limit: int) -> Axis:
        kernel, stride = draw(st.integers(1, 7)), draw(st.integers(1, 4))
        dilation = draw(st.integers(1, 3))
        window = (kernel - 1) * dilation + 1
        pads = draw(st.integers(0, window - 1)), draw(st.integers(0, window - 1))
        size = draw(st.integers(max(window - sum(pads), 1), max(limit, window)))
        out = (size + sum(pads) - window) // stride + 1
        return Axis(size, out, kernel, stride, dilation, pads[0])

    itemsize = draw(st.sampled_from([1, 2]))
    depthwise = draw(st.booleans())
    group = (4 if depthwise else 2) * 16 // itemsize
    kernels = group * draw(st.integers(1, 40))
    channels = kernels if depthwise else 16 // itemsize * draw(st.integers(1, 60))
    single = draw(st.booleans())
    return Shape(axis(120), axis(2600), channels, kernels, group, depthwise, itemsize, single)


def covered(region: Region, count: np.ndarray[Any, Any], group: int) -> None:
    channels = slice(region.channels.start // group, region.channels.stop // group)
    rows, columns = (slice(part.start, part.stop) for part in (region.rows, region.columns))
    count[rows, columns, channels] += 1


@settings(max_examples=150)
@given(shapes(), st.integers(1, 3))
def test_all_is_done_once_and_fits(shape: Shape, cores: int) -> None:
    count = np.zeros((shape.rows.out, shape.columns.out, shape.kernels // shape.group), int)
    parts = shape.parts(cores)
    assert 1 <= len(parts) <= cores
    for part in parts:
        try:
            tiles = shape.tiles(part)
        except ProgramError:
            # Really: one column of one group of channels does not fit.
            least = Region(part.rows, part.columns[:1], part.channels[: shape.group])
            window = min(shape.rows.window, shape.rows.size) * shape.row_bytes(least)
            kernel = shape.kernel_bytes(least)
            assert -(-window // BANK_BYTES) + -(-kernel // BANK_BYTES) > CBUF_BANKS
            return
        last = None
        for tile in tiles:
            covered(tile.region, count, shape.group)
            seen = [shape.rows.seen(tile.region.rows), shape.seen_columns(tile.region)]
            assert min(len(pixels) for pixels, _ in seen) > 0
            assert max(len(pixels) for pixels, _ in seen) <= 2047
            assert tile.data_banks + tile.weight_banks == CBUF_BANKS
            held = len(seen[0][0]) * shape.row_bytes(tile.region)
            assert held <= tile.data_banks * BANK_BYTES
            assert shape.kernel_bytes(tile.region) <= tile.weight_banks * BANK_BYTES
            if shape.single_rows and len(tile.region.columns) < shape.columns.out:
                assert len(tile.region.rows) == 1
            if tile.reuse:
                assert last is not None
                assert last.region.channels == tile.region.channels
                assert (last.data_banks, last.weight_banks) == (tile.data_banks, tile.weight_banks)
                assert shape.weight_bytes(tile.region) <= tile.weight_banks * BANK_BYTES
            last = tile
    assert (count == 1).all()


@pytest.mark.parametrize(
    ("name", "shape", "kernels", "shared"),
    [
        ("rows", (30, 20, 32), 64, "rows"),
        ("kernels, of which there are more than features", (4, 4, 512), 512, "channels"),
        ("columns of a signal", (1, 500, 16), 16, "columns"),
        ("groups of a fully connected layer", (1, 1, 64), 96, "channels"),
        ("what is there", (2, 1, 16), 16, "rows"),
    ],
)
def test_cores_share(name: str, shape: tuple[int, int, int], kernels: int, shared: str) -> None:
    rng = np.random.default_rng(6)
    with npukit.open("sim:rocket", strict=True) as device:
        op = check(device, rng, shape, kernels, (1, 1), (PLAIN[0], PLAIN[1], outputs_for(shape[2])))
    parts = op.shape.parts(3)
    sizes = [len(getattr(part, shared)) for part in parts]
    assert len(parts) == min(3, len(getattr(op.shape.whole, shared)))
    assert sum(sizes) == len(getattr(op.shape.whole, shared))
    assert max(sizes) - min(sizes) <= (op.shape.group if shared == "channels" else 1)


@pytest.mark.parametrize(
    "options",
    [
        {"addend": Quantization(0.05, 7)},
        {"activation": "prelu", "alpha": np.linspace(-1, 1, 160)},
        {"quantizations": "channel", "addend": Quantization(0.05, 7), "activation": "relu"},
        {"quantizations": None, "addend": True},
    ],
    ids=["addend", "slopes", "channels", "float16"],
)
@pytest.mark.parametrize("depthwise", [False, True])
def test_what_channels_have_goes_with_them(options: dict[str, Any], depthwise: bool) -> None:
    """Biases, factors and addends of kernels that another core or task computes."""
    rng = np.random.default_rng(11)
    numbers: Any = (PLAIN[0], PLAIN[1], outputs_for(1 if depthwise else 160))
    given = options.get("quantizations", numbers)
    if given == "channel":
        given = (numbers[0], PerChannel(rng.uniform(0.001, 0.01, 160)), numbers[2])
    options = {**options, "quantizations": given}
    with npukit.open("sim:rknpu", strict=True) as device:
        kernels = None if depthwise else 160
        op = check(device, rng, (1, 1, 160), kernels, (1, 1), **options)
    assert len({part.channels.start for part in op.shape.parts(3)}) > 1


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc", "rocket"])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_drivers_get_a_chain_for_each_core(name: str, cores: int) -> None:
    """Tasks of one core follow each other; the vendor's driver starts windows, rocket jobs."""
    submits: list[Any] = []

    def note(call: Any) -> None:
        if call.name == "ioctl" and isinstance(call.arguments[2], rknpu_submit | drm_rocket_submit):
            submits.append(type(call.arguments[2]).from_buffer_copy(call.before))

    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (300, 160, 32), np.uint8)
    weights = rng.integers(0, 256, (40, 3, 3, 32), np.uint8)
    op = conv2d(300, 160, weights, None, PLAIN[0], PLAIN[1], outputs_for(9, 32))
    kernel = TracingKernel(SimKernel([name]), note)
    path = kernel.kernel.devices[0].paths[0]  # type: ignore[attr-defined]
    with npukit.open(path, kernel) as device:
        found = execute(device, op, x, cores=cores)
        expected = execute(device, op, x, cores=1)
    np.testing.assert_array_equal(found, expected)
    lengths = [len(program.tasks) for program in op.programs([0], 0, 0, cores)]
    assert len(lengths) == cores
    assert min(lengths) > 1
    submit = submits[0]
    if name == "rocket":
        assert submit.job_count == cores
        return
    assert submit.core_mask == (0, 0, 3, 7)[cores]
    first = 2 if cores == 3 else 0
    windows = [submit.subcore_task[first + core].task_number for core in range(cores)]
    assert windows == lengths
    assert submit.task_number == sum(lengths)


def test_cores_are_checked() -> None:
    op = add(2, 2, 3, *(Quantization(0.1),) * 3)
    x = np.zeros((2, 2, 3), np.uint8)
    with npukit.open("sim:rknpu") as device:
        for cores in (0, 4):
            with pytest.raises(ValueError, match=f"{cores} cores"):
                execute(device, op, x, x, cores=cores)
        # What cannot be shared takes one core.
        assert np.array_equal(execute(device, op, x, x, cores=3), x)


def test_weights_stay_for_all_parts_of_the_columns() -> None:
    op = conv2d(40, 2500, np.full((16, 3, 3, 64), 140, np.uint8), None, *PLAIN)
    program = op.program([0], 0, 0)
    reuse = CNA.CBUF_CON0.fields["WEIGHT_REUSE"]
    flags = [reuse.get(program.state(i)[CNA.CBUF_CON0.offset]) for i in range(len(program.tasks))]
    assert flags == [0] + [1] * (len(flags) - 1)
    assert len({tile.region.columns.start for tile in op.tiles()}) > 1


@pytest.mark.parametrize("batch", [1, 5, 50])
@pytest.mark.parametrize("kind", ["tensor", "channel", "float16"])
def test_fully_connected(batch: int, kind: str) -> None:
    rng = np.random.default_rng(8)
    if kind == "float16":
        x, weights = (
            rng.standard_normal(s).astype(np.float16) for s in ((batch, 1, 300), (70, 300))
        )
        biases = rng.standard_normal(70).astype(np.float32)
        op = fully_connected(batch, weights, biases, activation="relu")
        sums = x[:, 0].astype(np.float64) @ weights.astype(np.float64).T + biases
        expected = np.maximum(sums, 0)
        tolerance = 0.02
    else:
        x = rng.integers(0, 256, (batch, 1, 300), np.uint8)
        weights = rng.integers(-128, 128, (70, 300), np.int8)
        bias = rng.integers(-5000, 5000, 70)
        scales = rng.uniform(0.001, 0.005, 70)
        quantization: Any = (
            PerChannel(scales) if kind == "channel" else Quantization(0.004, 0, "int8")
        )
        steps = np.float32(scales if kind == "channel" else 0.004)
        op = fully_connected(
            batch, weights, bias, PLAIN[0], quantization, Quantization(0.4, 90), activation="relu"
        )
        sums = (x[:, 0].astype(np.int64) - 3) @ weights.astype(np.int64).T + bias
        expected = np.clip(np.maximum(sums * (np.float32(0.02) * steps) / 0.4, 0) + 90, 0, 255)
        tolerance = 0.53
    for name in ("rknpu", "rocket"):
        with npukit.open(f"sim:{name}", strict=True) as device:
            found = execute(device, op, x)
        assert found.shape == (batch, 1, 70)
        assert np.abs(found[:, 0] - expected).max() < tolerance


def test_a_dilated_window_is_what_it_says() -> None:
    """One tap on, the others off, against plain slices."""
    x = np.random.default_rng(9).integers(0, 256, (9, 10, 16), np.uint8)
    q = Quantization(1.0, 0)
    weights = np.zeros((16, 3, 3, 16), np.uint8)
    weights[:, 2, 1] = np.eye(16)
    op = conv2d(9, 10, weights, None, q, q, q, padding="valid", dilation=(3, 4))
    with npukit.open("sim:rknpu", strict=True) as device:
        np.testing.assert_array_equal(execute(device, op, x), x[6:9, 4:6])
    assert convolve(x, weights, (1, 1), "valid", False, (3, 4)).shape == (3, 2, 16)


@pytest.mark.parametrize(
    ("weights", "options", "rule"),
    [
        ((4, 3, 3, 4), {"dilation": 33}, "ATROUS_Y_DILATION = 32"),
        ((4, 3, 3, 4), {"dilation": 0}, "dilation 0"),
        ((4, 3, 3, 4), {"dilation": 8, "padding": "same"}, "PAD_LEFT|PAD_TOP"),
        ((2, 31, 31, 400), {}, "do not fit the 12 CBUF banks"),
    ],
)
def test_what_no_cut_helps(weights: tuple[int, ...], options: dict[str, Any], rule: str) -> None:
    size = 80
    if "dilation" in options and options["dilation"] == 8:
        weights = (4, 5, 5, 4)
    with pytest.raises(ProgramError, match=rule):
        conv2d(size, size, np.full(weights, 140, np.uint8), None, *PLAIN, **options)
