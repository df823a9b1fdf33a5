# SPDX-License-Identifier: MIT
"""Recorded streams on the simulated core: the community's matmuls, the vendor's convolutions."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim.rk3588_streams import Conv, Rig
from support import SHARED, needs_shared

from npukit.sim.rk3588 import Npu

pytestmark = needs_shared

KINDS = {"fp16_fp32": (2, 4), "fp16_fp16": (2, 2), "int8_int32": (1, 4)}
"""Bytes of an element, in and out."""

PLACES = {0x1070: 0x1000_0000, 0x1110: 0x2000_0000, 0x4020: 0x4000_0000}
REGCMD = 0x1000


def _load(name: str) -> Any:
    path = SHARED / "data" / "rk3588" / name
    return json.loads(path.read_text()) if path.is_file() else {"cases": [], "captures": []}


CASES = [
    pytest.param(kind, case, id=f"{kind}-{case['m']}x{case['k']}x{case['n']}")
    for kind in KINDS
    for case in _load(f"matmul_{kind}.json")["cases"]
    # 1022 rows: the recipe's own SURF_STRIDE is wrong there.
    if case["rc"] == 0 and case["m"] != 1022
]


def _chains() -> list[Any]:
    """The captured convolutions: runs of chained tasks.

    Those for several cores end with a pooling of one pixel, which other cores wait for.
    """
    chains: list[Any] = []
    for capture in _load("hardware_conv_fp16.json")["captures"]:
        chain: dict[int, list[int]] = {}
        for task in capture["tasks"]:
            words = [int(word, 16) for word in task["regcmd"]]
            iova = int(task["regcmd_addr"], 16)
            follows = any(other[-4] >> 16 & 0xFFFFFFFF == iova for other in chain.values())
            if chain and not follows:
                chains.append(pytest.param(chain, id=f"{capture['file']}-{min(chain):x}"))
                chain = {}
            chain[iova] = words
        chains.append(pytest.param(chain, id=f"{capture['file']}-{min(chain):x}"))
    return chains


def is_pool(words: list[int]) -> bool:
    return words[-1] >> 16 & 0xFFFFFFFF == 0x60


def relocated(words: list[int]) -> list[int]:
    """The stream with its three addresses at places of their own."""
    return [
        word & ~(0xFFFFFFFF << 16) | PLACES.get(word & 0xFFFF, word >> 16 & 0xFFFFFFFF) << 16
        for word in words
    ]


def operands(kind: str, count: int, seed: int) -> npt.NDArray[Any]:
    """Values whose sums fp32 holds exactly; a pattern of odd length where there are many."""
    rng = np.random.default_rng(seed)
    pattern = rng.integers(-128, 128, min(count, 99991), np.int8)
    if kind != "int8_int32":
        return np.resize((pattern // 16).astype(np.float16) / 8, count)
    return np.resize(pattern, count)


def product(
    kind: str, a: npt.NDArray[Any], b: npt.NDArray[Any], m: int, k: int, n: int
) -> npt.NDArray[Any]:
    """C[M][N] from the packed operands."""
    element, _ = KINDS[kind]
    group, lanes = (32, 16) if element == 1 else (16, 8)
    rows = a.reshape(k // lanes, m, lanes).transpose(1, 0, 2).reshape(m, k).astype(np.float32)
    blocks = []
    full = k // 32 * 32
    for start in range(0, n, group):
        block = b[start * k : (start + group) * k]
        parts = [block[: full * group].reshape(-1, group, 32).transpose(1, 0, 2)]
        blocks.append(
            np.concatenate(
                [parts[0].reshape(group, full), block[full * group :].reshape(group, k - full)], 1
            )
        )
    columns = np.concatenate(blocks).astype(np.float32)
    if element == 1 and k > 1024:  # beyond what fp32 holds exactly
        return rows.astype(np.float64) @ columns.astype(np.float64).T
    return rows @ columns.T


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_matmul(kind: str, case: dict[str, Any]) -> None:
    m, k, n = case["m"], case["k"], case["n"]
    out_element = KINDS[kind][1]
    words = relocated([int(word, 16) for word in case["regcmd"]])
    rig = Rig()
    a, b = operands(kind, m * k, 1), operands(kind, n * k, 2)
    rig.add(PLACES[0x1070], a)
    rig.add(PLACES[0x1110], b)
    out = rig.blank(PLACES[0x4020], m * n * out_element)
    completion = rig.run(words)
    if k > 16384:
        # The recipe overflows DATAIN_CHANNEL_REAL into a reserved bit.
        assert str(completion.error).startswith("illegal: CNA.DATA_SIZE1 = ")
        return
    assert completion.error is None
    assert completion.tasks_done == 1
    assert completion.raw_status == 0x155
    dtype = {"fp16_fp32": np.float32, "fp16_fp16": np.float16, "int8_int32": np.int32}[kind]
    lanes = 16 // out_element
    c = out.view(dtype).reshape(n // lanes, m, lanes).transpose(1, 0, 2).reshape(m, n)
    np.testing.assert_array_equal(c, product(kind, a, b, m, k, n).astype(dtype))
    if m * k * n < 1 << 21:
        rig.check(words, exact=True)


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_random_halves_stay_within_the_bound(kind: str, case: dict[str, Any]) -> None:
    m, k, n = case["m"], case["k"], case["n"]
    if kind == "int8_int32" or m * k * n > 1 << 22:
        return
    words = relocated([int(word, 16) for word in case["regcmd"]])
    rig = Rig()
    rng = np.random.default_rng(9)
    rig.add(PLACES[0x1070], rng.standard_normal(m * k).astype(np.float16))
    rig.add(PLACES[0x1110], rng.standard_normal(n * k).astype(np.float16))
    rig.blank(PLACES[0x4020], m * n * KINDS[kind][1])
    assert rig.run(words).error is None
    rig.check(words)


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_addresses_as_recorded(kind: str, case: dict[str, Any]) -> None:
    """Some of the recorded sets overlap, or pass 4 GiB: they cannot be mapped."""
    m, k, n = case["m"], case["k"], case["n"]
    element, out_element = KINDS[kind]
    if n * k * element > 1 << 22 or k > 16384:
        return
    spans = [
        (int(case["input_dma"], 16), m * k * element),
        (int(case["weights_dma"], 16), n * k * element),
        (int(case["output_dma"], 16), m * n * out_element),
    ]
    ordered = sorted(spans)
    apart = all(start + size <= following[0] for (start, size), following in pairwise(ordered))
    good = apart and ordered[-1][0] + ordered[-1][1] <= 1 << 32
    words = [int(word, 16) for word in case["regcmd"]]
    rig = Rig()
    try:
        for iova, size in spans:
            rig.add(iova, np.zeros(size, np.uint8))
    except ValueError:
        assert not good
        # What can be mapped of it does not let the program run either.
        npu = Npu()
        for iova, size in spans:
            end = min(iova + size, 1 << 32, *(start for start, _ in spans if start > iova))
            npu.map(iova, np.zeros(end - iova, np.uint8))
        npu.map(REGCMD, np.array(words, np.uint64))
        error = npu.run(REGCMD, len(words)).error
        assert error is not None
        assert error.kind in ("access", "inconsistent")
        return
    assert good
    assert rig.run(words).error is None
    rig.check(words)


def test_some_recorded_addresses_are_bad_in_either_way() -> None:
    ends = [
        int(case["input_dma"], 16) + case["m"] * case["k"] * KINDS[kind][0]
        for kind, case in (param.values for param in CASES)
    ]
    assert any(end > 1 << 32 for end in ends)
    assert any(end <= 1 << 32 for end in ends)


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, end) of ranges, those that touch made one."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def place_captured(rig: Rig, streams: list[list[int]]) -> None:
    """Memory for all that captured streams touch, at their own addresses."""
    spans: dict[str, list[tuple[int, int]]] = {"features": [], "weights": [], "output": []}
    for words in streams:
        get = {word & 0xFFFF: word >> 16 & 0xFFFFFFFF for word in words}
        if is_pool(words):
            size = (get[0x6014] + 1) & 0x1FF0
            spans["features"].append((get[0x701C], get[0x701C] + size))
            spans["output"].append((get[0x6070], get[0x6070] + size))
            continue
        height, width = get[0x1020] & 0x7FF, get[0x1020] >> 16
        conv = Conv(
            "fp16", "fp16", height, width, get[0x1024] & 0xFFFF, get[0x1038] & 0x3FFF,
            kernel=(get[0x1038] >> 16 & 31, get[0x1038] >> 24),
            out=((get[0x4034] & 0x1FFF) + 1, get[0x4030] + 1),
            surface_pitch=get[0x1080] + 4 * width, out_surface_pitch=get[0x4024] >> 4,
            features=get[0x1070], weights=get[0x1110], output=get[0x4020],
        )  # fmt: skip
        for name, (start, size) in conv.spans().items():
            spans[name].append((start, start + size))
    rng = np.random.default_rng(10)
    for name, ranges in spans.items():
        for start, end in merged(ranges):
            if name == "output":
                rig.blank(start, end - start)
            else:
                data = rng.standard_normal((end - start) // 2, np.float32)
                rig.add(start, data.astype(np.float16))


@pytest.mark.parametrize("chain", _chains())
def test_captured_convolutions(chain: dict[int, list[int]]) -> None:
    """At their own addresses, along their own chain, weights reused where they say so."""
    rig = Rig()
    place_captured(rig, list(chain.values()))
    for iova, words in chain.items():
        rig.load(words, iova)
    first, last = min(chain), chain[max(chain)]
    mask = 0xC00 if is_pool(last) else 0x300
    completion = rig.npu.run(first, len(chain[first]), len(chain), int_mask=mask)
    assert completion.error is None
    assert completion.tasks_done == len(chain)
    # CNA and CORE stay with group 0 as no driver has set them; DPU alternates.
    if is_pool(last):
        assert completion.raw_status == 0x400
    else:
        assert completion.raw_status & 0x3F0 == (0x150 if len(chain) == 1 else 0x250)
    rig.check(*chain.values())


def _variants() -> list[Any]:
    """Captures, each as groups of chains: for one core, for two and for three."""
    groups: dict[str, dict[int, list[dict[int, list[int]]]]] = {}
    for param in _chains():
        (chain,) = param.values
        name = str(param.id).rpartition("-")[0]
        sync = max(words[-3] >> 32 & 0xFFFF for words in chain.values())
        groups.setdefault(name, {}).setdefault(sync + 1, []).append(chain)
    return [pytest.param(variants, id=name) for name, variants in groups.items()]


@pytest.mark.parametrize("variants", _variants())
def test_variants_for_several_cores_agree(variants: dict[int, list[dict[int, list[int]]]]) -> None:
    """What two or three cores do at once, each its part, is what one does alone."""
    assert {cores: len(chains) for cores, chains in variants.items()} == {1: 1, 2: 2, 3: 3}
    results = []
    for chains in variants.values():
        rig = Rig(threads=1)
        place_captured(rig, [words for chain in variants[1] for words in chain.values()])
        waits = [words for chain in chains for words in chain.values() if is_pool(words)]
        if waits:
            place_captured(rig, waits)
        for chain in chains:
            for iova, words in chain.items():
                rig.load(words, iova)
        with ThreadPoolExecutor(len(chains)) as pool:
            runs = [
                pool.submit(
                    Npu(core, rig.npu.space, threads=1).run,
                    min(chain), len(chain[min(chain)]), len(chain),
                    0xC00 if is_pool(chain[max(chain)]) else 0x300,
                )
                for core, chain in enumerate(chains)
            ]  # fmt: skip
        assert [run.result().error for run in runs] == [None] * len(chains)
        results.append(np.concatenate([data for _, data in rig.outputs if len(data) > 32]))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_captured_stream_reuses_weights() -> None:
    reusing = [
        words
        for param in _chains()
        for words in param.values[0].values()
        if any(word & 0xFFFF == 0x1040 and word >> 29 & 1 for word in words)
    ]
    assert reusing
