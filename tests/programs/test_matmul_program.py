# SPDX-License-Identifier: MIT
"""matmul_program against programs that are known to run on hardware."""

import json
from typing import Any

import numpy as np
import pytest
from support import SHARED, needs_shared

from npukit.ioctl import ProgramError
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.registers import CNA, DPU

KINDS = {
    "fp16_fp32": (np.float16, np.float32),
    "fp16_fp16": (np.float16, np.float16),
    "int8_int32": (np.int8, np.int32),
}
REAL = CNA.DATA_SIZE1.fields["DATAIN_CHANNEL_REAL"]


def cases() -> list[Any]:
    found = []
    for kind in KINDS:
        path = SHARED / "data" / "rk3588" / f"matmul_{kind}.json"
        if path.exists():
            found += [
                pytest.param(kind, case, id=f"{kind}-{case['m']}x{case['k']}x{case['n']}")
                for case in json.loads(path.read_text())["cases"]
            ]
    return found


def state_of(words: list[int]) -> dict[int, int]:
    """Register values that plain writes leave; targets of plain writes have bit 48 set."""
    state = {}
    for word in words[:-4]:
        assert word >> 48 & 1
        state[word & 0xFFFF] = word >> 16 & 0xFFFFFFFF
    return state


@needs_shared
@pytest.mark.parametrize(("kind", "case"), cases())
def test_register_state_equals_the_golden_streams(kind: str, case: dict[str, Any]) -> None:
    m, k, n = case["m"], case["k"], case["n"]
    dma = [int(case[name], 16) for name in ("input_dma", "weights_dma", "output_dma")]
    if case["rc"] or k > 1 << REAL.width:
        # The recorded 4x32768x32 has a channel count that overflows its field.
        with pytest.raises(ProgramError, match="does not fit one task"):
            matmul_program(m, k, n, *KINDS[kind], *dma)
        return
    expected = state_of([int(word, 16) for word in case["regcmd"]])
    program = matmul_program(m, k, n, *KINDS[kind], *dma)
    found = program.state()
    if m > 1 and m % 4:
        # The recorded generator truncates M / 4; the address model gives M - 4.
        assert found.pop(CNA.DMA_CON2.offset) == m - 4
        assert expected.pop(CNA.DMA_CON2.offset) == 4 * (m // 4 - 1)
    registers = found.keys() | expected.keys()
    assert {r: found.get(r, 0) for r in registers} == {r: expected.get(r, 0) for r in registers}
    assert program.tasks[0].enable_mask == 0x0D
    assert program.tasks[0].int_mask == 0x300


@pytest.mark.parametrize(
    ("shape", "types", "rule"),
    [
        ((0, 32, 32), "int8_int32", "1 or more"),
        ((4, -32, 32), "int8_int32", "1 or more"),
        ((4, 40, 32), "int8_int32", "K must be a multiple of 16"),
        ((4, 36, 32), "fp16_fp32", "K must be a multiple of 8"),
        ((4, 16416, 16), "fp16_fp32", "exceeds a CBUF bank"),
        ((1, 16400, 32), "int8_int32", "K exceeds the 16384"),
        ((4, 32, 8193), "int8_int32", "N exceeds the 8192"),
        ((2048, 32, 32), "int8_int32", "M exceeds the 2047"),
        ((600, 608, 32), "int8_int32", "more than 11 CBUF banks"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_rule(
    shape: tuple[int, int, int], types: str, rule: str
) -> None:
    with pytest.raises(ProgramError, match=rule):
        matmul_program(*shape, *KINDS[types], 0, 0x1000, 0x2000)


@pytest.mark.parametrize("address", [8, 1 << 32, -16])
def test_bad_addresses_are_refused(address: int) -> None:
    with pytest.raises(ProgramError, match="weights address"):
        matmul_program(4, 32, 32, np.int8, np.int32, 0, address, 0)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ProgramError, match="no matmul from float32 to float32"):
        matmul_program(4, 32, 32, np.float32, np.float32, 0, 0, 0)


@pytest.mark.parametrize(
    ("shape", "types", "reasons"),
    [
        ((4, 32, 32), "int8_int32", 0),
        ((1, 8192, 32), "int8_int32", 0),
        ((3, 32, 32), "int8_int32", 1),
        ((4, 48, 32), "int8_int32", 1),
        ((4, 32, 33), "int8_int32", 1),
        ((1024, 64, 32), "int8_int32", 2),
        ((1022, 32, 16), "fp16_fp32", 2),
    ],
)
def test_what_no_capture_shows_is_marked_unproven(
    shape: tuple[int, int, int], types: str, reasons: int
) -> None:
    program = matmul_program(*shape, *KINDS[types], 0, 0x1000, 0x2000)
    assert len(program.unproven) == reasons


def test_strides_follow_the_address_model_for_every_height() -> None:
    for m in range(1, 40):
        state = matmul_program(m, 32, 16, np.float16, np.float32, 0, 0x1000, 0x2000).state()
        assert CNA.DMA_CON2.fields["SURF_STRIDE"].get(state[CNA.DMA_CON2.offset]) == m - 4
        assert (
            DPU.DST_SURF_STRIDE.fields["DST_SURF_STRIDE"].get(state[DPU.DST_SURF_STRIDE.offset])
            == m
        )
