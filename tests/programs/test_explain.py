# SPDX-License-Identifier: MIT
"""What a stream is said to do and to cost, against what its maker says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import SHARED, needs_shared

from npukit.cli import main
from npukit.programs.rk3588 import text
from npukit.programs.rk3588.activation import sigmoid
from npukit.programs.rk3588.conv import conv2d, depthwise_conv2d
from npukit.programs.rk3588.cost import Cost, Rates, cost
from npukit.programs.rk3588.elementwise import add, mul
from npukit.programs.rk3588.explain import describe, explain_words
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.pool import max_pool
from npukit.programs.rk3588.quantize import Quantization

_Q = Quantization(0.05, 128)


def _mesa() -> list[Any]:
    path = SHARED / "data" / "rk3588" / "mesa_rocket.json"
    cases: list[Any] = json.loads(path.read_text())["cases"] if path.is_file() else []
    return [case for case in cases if case["h"] == case["w"]]


@needs_shared
def test_mesas_models_are_recognized() -> None:
    cases = _mesa()
    assert len(cases) > 20
    for case in cases:
        size, stride = case["h"], case["stride"]
        out = -(-size // stride) if case["padding"] == "same" else (size - case["k"]) // stride + 1
        tasks = []
        for job in case["jobs"]:
            words: list[int] = []
            for part in job["tasks"]:
                words += [0] * (-len(words) % 8)  # tasks are 64 bytes apart, as Mesa has them
                words += [int(word, 16) for word in part["words"]]
            tasks += describe(np.array(words, np.uint64))
        kind = "depthwise convolution" if case["depthwise"] else "convolution"
        product = case["k"] == 1 and size == 1
        rows = 0
        for task in tasks:
            assert task["problems"] == []
            assert product or task["operation"] == f"{kind}, int8", case["name"]
            assert task["input"][1] == size
            assert task["kernel"][1:] == [case["k"], case["k"]]
            assert task["stride"] == [stride, stride]
            assert task["output"][1] == out
            assert task["output"][2] >= case["oc"]
            rows += task["output"][0]
        assert rows == out, case["name"]
        # The arithmetic of the model, with the channels that are filled up.
        least = out * out * case["k"] ** 2 * (1 if case["depthwise"] else case["ic"]) * case["oc"]
        assert sum(task["cost"]["macs"] for task in tasks) >= least


@needs_shared
@pytest.mark.parametrize("kind", ["fp16_fp32", "int8_int32"])
def test_the_communitys_matmuls_are_recognized(kind: str) -> None:
    path = SHARED / "data" / "rk3588" / f"matmul_{kind}.json"
    for case in json.loads(path.read_text())["cases"]:
        m, k, n = case["m"], case["k"], case["n"]
        if case["rc"] or k == 32768:
            continue
        (task,) = describe(np.array([int(word, 16) for word in case["regcmd"]], np.uint64))
        dtype = kind.split("_")[0]
        assert task["operation"] == f"matrix product {m}x{k} by {k}x{n}, {dtype}"
        assert task["cost"]["macs"] == m * k * n
        sizes = {access["what"]: access["bytes"] for access in task["accesses"]}
        element = 2 if dtype == "fp16" else 1
        assert sizes == {
            "features": m * k * element,
            "weights": k * n * element,
            "output": m * n * 4,
        }


def test_what_a_program_costs() -> None:
    program = matmul_program(64, 256, 96, np.int8, np.int32, 0x10000, 0x20000, 0x40000)
    found = cost(program)
    assert (found.tasks, found.macs) == (1, 64 * 256 * 96)
    assert (found.bytes_read, found.bytes_written) == (64 * 256 + 256 * 96, 64 * 96 * 4)
    # 1 GB/s is slower than 2 TOPS here; with a faster memory the arithmetic is what counts.
    assert found.seconds == pytest.approx((40960 + 24576) / 1e9)
    fast = Rates(dma=1e12, int8=1e12, task=1e-6)
    assert cost(program, fast).seconds == pytest.approx(2 * found.macs / 1e12 + 1e-6)
    half = matmul_program(64, 256, 32, np.float16, np.float32, 0x10000, 0x20000, 0x40000)
    slow = Rates(dma=1e12, fp16=1e9)
    assert cost(half, slow).seconds == pytest.approx(2 * 64 * 256 * 32 / 1e9)
    assert found + found == Cost(2, 2 * found.macs, 81920, 49152, 2 * found.seconds)
    assert "1,572,864 MACs, 40,960 bytes read" in str(found)


def test_parts_read_what_they_need_and_no_more() -> None:
    """A tiled convolution reads shared rows twice and kept weights once."""
    weights = np.ones((32, 3, 3, 32), np.uint8)
    op = conv2d(120, 120, weights, None, _Q, _Q, _Q)
    program = op.program([0x100000], 0x400000, 0x500000)
    assert len(program.tasks) > 1
    found = cost(program)
    assert found.macs == 120 * 120 * 9 * 32 * 32
    assert found.bytes_written == op.output.size
    reads = found.bytes_read - 9 * 32 * 32 - 4 * 32 * len(program.tasks)
    rows = 2 * (len(program.tasks) - 1)  # a window of 3 rows, stride 1
    assert reads == op.inputs[0].size + rows * 120 * 32


def test_a_depthwise_convolution_and_a_sum() -> None:
    op = depthwise_conv2d(16, 16, np.ones((1, 3, 3, 64), np.uint8), None, _Q, _Q, _Q, stride=2)
    (task,) = describe(op.program([0x100000], 0x200000, 0x300000).words)
    assert task["operation"] == "depthwise convolution, int8"
    assert task["cost"]["macs"] == 8 * 8 * 9 * 64
    (task,) = describe(add(6, 6, 32, _Q, _Q, _Q).program([0x100000, 0x200000], 0, 0x300000).words)
    assert task["operation"] == "elementwise, int8"
    assert [access["what"] for access in task["accesses"]] == [
        "main data",
        "operands of elements",
        "output",
    ]
    assert "EW + a tensor" in task["stages"]


def test_poolings_and_operations_of_the_dpu() -> None:
    (task,) = describe(max_pool(8, 9, 32, _Q, 3, stride=2).program([0x1000], 0, 0x9000).words)
    assert task["operation"] == "maximum pooling, int8"
    assert (task["input"], task["output"]) == ([7, 9, 32], [3, 4, 32])  # the last row is unused
    assert (task["kernel"], task["stride"]) == ([3, 3], [2, 2])
    table = sigmoid(4, 4, 16).program([0x1000], 0, 0x9000).words
    stages = ["BN + 0.0", "BN x 1024.0", "EW max a constant", "lookup table"]
    assert describe(table)[0]["stages"] == stages
    product = mul(6, 6, 40, channelwise=True).program([0x1000, 0x8000], 0, 0x9000).words
    assert describe(product)[0]["stages"] == ["EW x an operand of each channel"]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    weights = np.ones((40, 3, 3, 24), np.uint8)
    op = conv2d(10, 10, weights, np.zeros(40, np.int32), _Q, _Q, _Q, activation="relu6", dilation=2)
    path = tmp_path / "conv.bin"
    path.write_bytes(op.program([0x100000], 0x200000, 0x300000).words.tobytes())
    return path


def test_the_command_explains_a_file(stream: Path) -> None:
    result = CliRunner().invoke(main, ["regcmd", "explain", str(stream)])
    assert result.exit_code == 0, result.output
    for line in (
        "starts CNA CORE DPU DPU_RDMA",
        "convolution, int8: 10x10x32 -> 10x10x64, int8",
        "kernel 3x3, stride 1x1, dilation 2x2, padding top 2, left 2, of 0",
        "DPU: BS + an operand of each channel",
        "reads weights: 18,432 bytes in 0x00200000 .. 0x00204800",
        "CBUF data: 1 banks, 3,200 bytes",
        "cost: 1,843,200 MACs",
    ):
        assert line in result.output
    assert "WRONG" not in result.output


def test_the_command_says_what_is_wrong_and_fails(stream: Path) -> None:
    listing = text.disassemble(text.read_words(stream.read_bytes()))
    words = text.assemble(listing.replace("WEIGHT_BANK=11", "WEIGHT_BANK=15"))
    hexadecimal = [f"{int(word):016x}" for word in words]
    result = CliRunner().invoke(main, ["regcmd", "explain", *hexadecimal])
    assert result.exit_code == 1
    assert "WRONG: task 0: CNA.CBUF_CON0.WEIGHT_BANK = 15: with the 1 of DATA_BANK" in result.output
    result = CliRunner().invoke(main, ["regcmd", "explain", "--json", " ".join(hexadecimal)])
    assert result.exit_code == 1
    (task,) = json.loads(result.output)
    assert task["banks"]["weight"] == 15
    assert len(task["problems"]) == 1


@pytest.mark.parametrize(
    ("source", "given", "text"),
    [
        ("-", b"not hexadecimal", "not hexadecimal words"),
        ("-", b"", "no enable word in 0 words"),
        ("-", bytes(64), "no enable word in 8 words"),
        ("-", b"\xff" * 13, "13 bytes are neither"),
        ("nothing.bin", b"", "nothing.bin: neither a file nor hexadecimal words"),
        (".", b"", "Is a directory"),
    ],
)
def test_the_command_refuses_what_is_no_stream(source: str, given: bytes, text: str) -> None:
    result = CliRunner().invoke(main, ["regcmd", "explain", source], input=given)
    assert result.exit_code in (1, 2)
    assert text in f"{result.output} {result.exception}"


def test_a_stream_of_garbage_is_explained() -> None:
    """Registers that exist, with any value."""
    rng = np.random.default_rng(0)
    places = [
        (0x0100 << block | 1) << 48 | block << 12 | 0x100C & 0xFFF for block in (1, 3, 4, 5, 6, 7)
    ]
    for _ in range(300):
        words = [place | int(rng.integers(0, 1 << 32)) << 16 for place in places]
        words += [0x0041 << 48, 0x0081 << 48 | int(rng.integers(0, 128)) << 16 | 8]
        assert explain_words(np.array(words, np.uint64))
