# SPDX-License-Identifier: MIT
"""Programs that Mesa's rocket driver made of TFLite models, on the simulated core.

What a square uint8 model leaves in its output buffer has to equal, on every element, the formula
that Mesa's registers are derived from (see ``formula``). The non-square and the signed model run as
their registers say, which is not what the model means.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim.rk3588_reference import Memory, check, convolve, expect
from support import SHARED, needs_shared

from npukit.sim.rk3588 import Npu

pytestmark = needs_shared

Array = npt.NDArray[Any]
PAGE = 4096


def _cases() -> list[dict[str, Any]]:
    path = SHARED / "data" / "rk3588" / "mesa_rocket.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())["cases"] if path.is_file() else []
    return cases


CASES = {case["name"]: case for case in _cases()}
SQUARE = [name for name, case in CASES.items() if case["h"] == case["w"] and not case.get("signed")]


def tensors(case: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Input [y][x][c] (uint8, or int8), weights [o][ky][kx][i], or [1][ky][kx][c], and bias."""
    k, ic, oc = case["k"], case["ic"], case["oc"]
    shape = (1, k, k, oc) if case["depthwise"] else (oc, k, k, ic)
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 256, shape, np.uint8)
    bias = rng.integers(-1000, 1000, (oc,), np.int32)
    if "weights_ohwi_hex" in case:
        weights = np.frombuffer(bytes.fromhex(case["weights_ohwi_hex"]), np.uint8).reshape(shape)
    if case.get("bias_i32") is not None:
        bias = np.array(case["bias_i32"], np.int32)
    x = (np.arange(case["h"] * case["w"] * ic) % 251).astype(np.uint8)
    return x.reshape(case["h"], case["w"], ic), weights, bias


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def pack_input(case: dict[str, Any], x: Array) -> Array:
    """[c / 16][h][w][16] of x - 128, tails zero point - 128; one channel alone goes as it is."""
    h, w, ic = x.shape
    if ic == 1:
        return x.reshape(-1)
    full = np.full((h, w, round_up(ic, 16)), case["in_zp"] & 0xFF, np.uint8)
    full[..., :ic] = x
    atoms = full.reshape(h, w, -1, 16).transpose(2, 0, 1, 3)
    return (atoms ^ 0x80).reshape(-1)


def pack_weights(case: dict[str, Any], weights: Array) -> Array:
    """w - 128 in groups of 32 kernels and 32 channels, or (depthwise) of 64 channels."""
    flipped = weights ^ 0x80
    k = case["k"]
    if case["depthwise"]:
        one = flipped.reshape(k * k, -1)
        groups = [one[:, c : c + 64].reshape(-1) for c in range(0, one.shape[1], 64)]
        return np.concatenate(groups)
    oc, ic = case["oc"], case["ic"]
    full = np.full((oc, k * k, round_up(ic, 16)), case["w_zp"] ^ 0x80, np.uint8)
    full[..., :ic] = flipped.reshape(oc, k * k, ic)
    return np.concatenate(
        [
            full[o : o + 32, :, c : c + 32].transpose(1, 0, 2).reshape(-1)
            for o in range(0, oc, 32)
            for c in range(0, full.shape[2], 32)
        ]
    )


def pack_bias(case: dict[str, Any], weights: Array, bias: Array) -> Array:
    """bias - sum(w - wzp) * (izp - 128)."""
    centred = weights.astype(np.int64) - case["w_zp"]
    axes = (0, 1, 2) if case["depthwise"] else (1, 2, 3)
    corrected = bias - centred.sum(axis=axes) * (case["in_zp"] - 128)
    return corrected.astype(np.int32).view(np.uint8)


def buffers(case: dict[str, Any]) -> list[Array]:
    """What is in the BOs but the last: weights, bias, input, output; each filled up to pages.

    What was recorded is taken as it was, the rest made by the rules.
    """
    x, weights, bias = tensors(case)
    made = [pack_weights(case, weights), pack_bias(case, weights, bias), pack_input(case, x)]
    out = []
    for bo, data in zip(case["bos"], [*made, np.zeros(0, np.uint8)], strict=False):
        full = np.zeros(round_up(bo["size"], PAGE), np.uint8)
        if "data_hex" in bo and len(out) < 3:
            full[: bo["size"]] = np.frombuffer(bytes.fromhex(bo["data_hex"]), np.uint8)
        else:
            full[: len(data)] = data
        out.append(full)
    return out


def run(case: dict[str, Any]) -> tuple[list[list[int]], Memory, Array]:
    """All jobs on one core; the streams, the memory and the output buffer."""
    npu, memory = Npu(), Memory()
    contents = buffers(case)
    for bo, data in zip(case["bos"], contents, strict=False):
        npu.map(int(bo["dma"], 16), data)
        memory.add(int(bo["dma"], 16), data)
    streams = []
    for job in case["jobs"]:
        for task in job["tasks"]:
            words = [int(word, 16) for word in task["words"]]
            npu.map(int(task["regcmd"], 16), np.array(words, np.uint64))
            streams.append(words)
        first = job["tasks"][0]
        completion = npu.run(int(first["regcmd"], 16), first["regcmd_count"], len(job["tasks"]))
        assert completion.error is None, str(completion.error)
        assert completion.raw_status & 0x300
    return streams, memory, contents[3]


def requantized(case: dict[str, Any], sums: Array) -> Array:
    """uint8 of int32 sums: the scale as a float32's upper 15 bits, ties to even."""
    scale32 = np.float32(np.float32(case["in_scale"]) * np.float32(case["w_scale"]))
    bits = int(np.float32(scale32 / np.float32(case["out_scale"])).view(np.uint32))
    scale, shift = ((bits >> 9) & 0x7FFF) + 1, 141 - (bits >> 23)
    if scale < 1 << 14:
        scale |= 1 << 14
    # Exact: the products have less than 53 bits.
    scaled = np.rint(sums.astype(np.float64) * scale / 2.0**shift).astype(np.int64)
    return np.clip(scaled + case["out_zp"] - 128, -128, 127) + 128


def formula(case: dict[str, Any], x: Array, weights: Array, bias: Array) -> Array:
    """What the model means: [y][x][c], uint8."""
    h, w, ic = x.shape
    k, stride = case["k"], case["stride"]
    size = [-(-n // stride) if case["padding"] == "same" else (n - k) // stride + 1 for n in (h, w)]
    total = [max((n - 1) * stride + k - m, 0) for n, m in zip(size, (h, w), strict=True)]
    pads = (total[0] // 2, total[1] // 2) if case["padding"] == "same" else (0, 0)
    centred = weights.astype(np.int64) - case["w_zp"]
    inputs = x.astype(np.int64) - case["in_zp"]
    arguments = ((stride, stride), pads, (size[0], size[1]), 0)
    if case["depthwise"]:
        parts = [
            convolve(inputs[..., c : c + 1], centred[..., c : c + 1], *arguments) for c in range(ic)
        ]
        sums = np.concatenate(parts, axis=2)
    else:
        sums = convolve(inputs, centred, *arguments)
    return requantized(case, sums + bias)


def unpack(data: Array, height: int, width: int, channels: int) -> Array:
    """[c / 16][h][w][16] of y - 128 to [h][w][c]."""
    surfaces = -(-channels // 16)
    atoms = data[: surfaces * height * width * 16].reshape(surfaces, height, width, 16) ^ 0x80
    return atoms.transpose(1, 2, 0, 3).reshape(height, width, -1)[..., :channels].astype(np.int64)


@pytest.mark.parametrize("name", CASES)
def test_buffers_are_as_recorded(name: str) -> None:
    """Packing by the rules gives what was captured, so it can stand in for what was not."""
    case = CASES[name]
    bare = [{"size": bo["size"], "dma": bo["dma"]} for bo in case["bos"]]
    made = buffers({**case, "bos": bare})
    for bo, data in zip(case["bos"][:3], made, strict=False):
        if "sha256" in bo:
            assert hashlib.sha256(data[: bo["size"]].tobytes()).hexdigest() == bo["sha256"]


@pytest.mark.parametrize("name", SQUARE)
def test_square_models_equal_the_formula(name: str) -> None:
    case = CASES[name]
    _, _, output = run(case)
    expected = formula(case, *tensors(case))
    np.testing.assert_array_equal(unpack(output, *expected.shape), expected)


@pytest.mark.parametrize("name", CASES)
def test_every_model_equals_the_interpreter_of_registers(name: str) -> None:
    case = CASES[name]
    if case["h"] * case["w"] * case["ic"] * (1 if case["depthwise"] else case["oc"]) > 1 << 24:
        return
    streams, memory, _ = run(case)
    for words in streams:
        expected = expect(words, memory)
        check(expected, memory.read(expected.addresses, expected.dtype))


def test_a_signed_model_is_computed_as_an_unsigned_one() -> None:
    """Mesa flips the top bits of int8 tensors as if they were uint8, and keeps their zero points.

    What comes out is the uint8 model of the same bytes and the same (signed) zero points.
    """
    (case,) = (case for case in CASES.values() if case.get("signed"))
    _, _, output = run(case)
    x, weights, bias = tensors(case)
    as_unsigned = formula(case, x, weights, bias)
    got = unpack(output, *as_unsigned.shape)
    np.testing.assert_array_equal(got, as_unsigned)
    # The bytes of int8 results: ``formula`` clips at 0 and 255, so the zero point is 128 up.
    up = {**case, "out_zp": case["out_zp"] + 128}
    meant = (formula(up, x.view(np.int8), weights.view(np.int8), bias) - 128) % 256
    assert (got != meant).mean() > 0.5


def test_a_model_that_is_not_square_is_computed_on_its_side() -> None:
    """Mesa takes the height for the width, in the registers but not in the buffers.

    What comes out is the convolution of the buffer's bytes read as 24 rows of 30 pixels.
    """
    case = CASES["d_30x24x16_o32_k3_s1_same"]
    _, _, output = run(case)
    x, weights, bias = tensors(case)
    turned = formula(case, x.reshape(case["w"], case["h"], case["ic"]), weights, bias)
    np.testing.assert_array_equal(unpack(output, *turned.shape), turned)
    meant = formula(case, x, weights, bias)
    assert (unpack(output, *meant.shape) != meant).mean() > 0.5


def test_the_models_use_what_they_are_here_for() -> None:
    streams = [
        {int(word, 16) & 0xFFFF: int(word, 16) >> 16 & 0xFFFFFFFF for word in task["words"]}
        for case in CASES.values()
        for job in case["jobs"]
        for task in job["tasks"]
    ]
    assert any(values[0x100C] & 15 == 3 for values in streams)  # depthwise
    assert any(values[0x1040] >> 13 & 1 for values in streams)  # weights reused
    assert any(values[0x4054] for values in streams)  # window sums
    assert any(values[0x1184] for values in streams)  # padding that is not 0
    assert any(values[0x100C] >> 12 & 15 for values in streams)  # channel-last input
