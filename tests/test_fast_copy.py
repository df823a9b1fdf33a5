# SPDX-License-Identifier: MIT
"""npukit._fast.copy and copy_2d: every strategy copies the same bytes, and the plan's rules."""

import ctypes
import subprocess
import sys
from array import array
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npukit import _fast

MIB = 1 << 20
BANDS = [4 * MIB, 16 * MIB, 128 * MIB]
STRATEGIES = [None, "plain", "stream", "threads", "stream+threads"]


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture(autouse=True)
def plan_as_before() -> Iterator[None]:
    before = _fast.copy_plan()
    yield
    _fast.set_copy_plan(before and {size: name for size, (name, _) in before.items()})


@pytest.fixture(params=_fast.simd_available())
def simd(request) -> Iterator[str]:
    before = _fast.simd()
    _fast.set_simd(request.param)
    yield request.param
    _fast.set_simd(before)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "size", [0, 1, 15, 1024, 4097, 32767, 32768 + 64, 100_001, MIB + 3, 4 * MIB + 4099]
)
def test_copies_at_any_alignment(simd, strategy, size):
    src = noise(size + 64)
    for to, start in ((0, 0), (1, 5), (63, 16)):
        dst = np.full(size + 128, 0xA5, np.uint8)
        _fast.copy(dst[to : to + size], src[start : start + size], strategy)
        assert np.array_equal(dst[to : to + size], src[start : start + size])
        assert (dst[:to] == 0xA5).all()
        assert (dst[to + size :] == 0xA5).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [10, 5000, 100_000, 4 * MIB + 77])
@pytest.mark.parametrize("by", [1, 64, 4999])
def test_overlapping_ranges_as_memmove(strategy, size, by):
    by = min(by, size - 1)
    memory, twin = noise(size), noise(size)
    _fast.copy(memory[by:], memory[: size - by], strategy)
    twin[by:] = twin[: size - by].copy()
    assert np.array_equal(memory, twin)
    _fast.copy(memory[: size - by], memory[by:], strategy)
    twin[: size - by] = twin[by:].copy()
    assert np.array_equal(memory, twin)
    _fast.copy(memory, memory, strategy)
    assert np.array_equal(memory, twin)


@pytest.mark.parametrize(
    "src",
    [
        bytes(range(24)),
        bytearray(range(24)),
        memoryview(bytes(range(24))).cast("B", (2, 12)),
        array("H", range(12)),
        (ctypes.c_double * 3)(1, 2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=">i4"),
        np.array(["2026-11-29"] * 3, "datetime64[D]"),
    ],
)
def test_any_contiguous_buffers(src):
    dst = bytearray(24)
    _fast.copy(dst, src)
    assert bytes(dst) == (src.tobytes() if isinstance(src, np.ndarray) else bytes(src))
    back = np.empty((3, 8), np.uint8)
    _fast.copy(back, memoryview(dst))
    assert back.tobytes() == bytes(dst)


@pytest.mark.parametrize(
    ("dst", "src", "error", "text"),
    [
        (bytearray(3), bytes(5), ValueError, "dst holds 3 bytes, src 5"),
        (bytes(4), bytes(4), BufferError, None),
        (memoryview(bytes(4)), bytes(4), BufferError, None),
        (np.broadcast_to(np.uint8(0), 4), bytes(4), BufferError, None),
        (np.zeros((4, 4), np.uint8)[:, :2], bytes(8), BufferError, "not C-contiguous"),
        (bytearray(8), np.zeros((4, 4), np.uint8).T[:2], BufferError, "not C-contiguous"),
        (memoryview(bytearray(8))[::2], bytes(4), BufferError, None),
        ("text", bytes(4), TypeError, None),
        (bytearray(4), None, TypeError, None),
        (np.array([None]), bytes(8), TypeError, "Python objects"),
        (np.zeros(1, [("a", "O")]), bytes(8), TypeError, "Python objects"),
    ],
)
def test_wrong_buffers(dst, src, error, text):
    with pytest.raises(error, match=text):
        _fast.copy(dst, src)


def test_exports_are_let_go():
    dst, src = bytearray(4), bytearray(4)
    _fast.copy(dst, src)
    with pytest.raises(ValueError, match="holds"):
        _fast.copy(dst, bytes(5))
    dst.append(0)
    src.append(0)


@pytest.mark.parametrize("strategy", ["fast", "", 1, b"plain"])
def test_unknown_strategy(strategy):
    with pytest.raises(ValueError, match="none of plain, stream, threads"):
        _fast.copy(bytearray(1), bytes(1), strategy)


# ---- The plan -----------------------------------------------------------------------------------


def test_plan_of_ones_own():
    wanted = dict(zip(BANDS, ["threads", "stream", "plain"], strict=True))
    _fast.set_copy_plan(wanted)
    assert _fast.copy_plan() == {size: (name, {}) for size, name in wanted.items()}
    _fast.set_copy_plan("stream+threads")
    assert _fast.copy_plan() == {size: ("stream+threads", {}) for size in BANDS}
    src, dst = noise(5 * MIB), np.empty(5 * MIB, np.uint8)
    _fast.copy(dst, src)
    assert np.array_equal(dst, src)


@pytest.mark.parametrize(
    "plan",
    [{}, {4 * MIB: "plain"}, {**dict.fromkeys(BANDS, "plain"), 1: "plain"}, "none",
     dict.fromkeys(BANDS, 0)],
)  # fmt: skip
def test_plans_that_are_none(plan):
    _fast.set_copy_plan("plain")
    with pytest.raises(ValueError, match=r"plan has a strategy|none of"):
        _fast.set_copy_plan(plan)
    assert _fast.copy_plan() == {size: ("plain", {}) for size in BANDS}


def run(program: str) -> str:
    """Run a program in an interpreter of its own, where nothing has been copied yet."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_measured_at_the_first_large_copy_only():
    run(
        "import numpy as np; from npukit import _fast\n"
        "a, b = np.zeros((2, 4 << 20), np.uint8)\n"
        "_fast.copy(a[1:], b[1:])\n"
        "assert _fast.copy_plan() is None\n"
        "_fast.copy(a, b)\n"
        "plan = _fast.copy_plan()\n"
        "assert list(plan) == [4 << 20, 16 << 20, 128 << 20]\n"
        "assert all(name == 'plain' or rates for name, rates in list(plan.values())[:2])\n"
        "assert all(rate > 0 for _, rates in plan.values() for rate in rates.values())\n"
        "_fast.copy(a, b)\n"
        "assert _fast.copy_plan() == plan\n"
        "_fast.set_copy_plan(None)\n"
        "assert _fast.copy_plan() is None\n"
    )


def test_a_child_may_copy_after_a_fork():
    """With a helper thread at every copy, before and after, and a plan measured in the child."""
    out = run(
        "import os, numpy as np; from npukit import _fast\n"
        "a, b = np.zeros((2, 5 << 20), np.uint8); b[:] = 7\n"
        "_fast.copy(a, b, 'stream+threads')\n"
        "pid = os.fork()\n"
        "_fast.copy(a, b, 'threads'); assert (a == b).all(); a[:] = 0\n"
        "_fast.copy(a, b); assert (a == b).all()\n"
        "if pid == 0: os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert out == "0\n"


# ---- Pitched rows -------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.data())
def test_rows(data):
    rows = data.draw(st.integers(0, 9))
    row_bytes = data.draw(st.integers(0, 70))
    pitches = [row_bytes + data.draw(st.sampled_from([0, 0, 1, 16, 33])) for _ in range(2)]
    # The last row's pitch need not be there.
    sizes = [max(0, (rows - 1) * pitch + row_bytes) for pitch in pitches]
    dst, src = noise(sizes[0] + 3, 1), noise(sizes[1] + 5, 2)
    twin = dst.copy()
    for row in range(rows):
        to, start = row * pitches[0], row * pitches[1]
        twin[to : to + row_bytes] = src[start : start + row_bytes]
    _fast.copy_2d(dst, src, rows, row_bytes, *pitches)
    assert np.array_equal(dst, twin)


def test_large_rows():
    src = noise(3 * 5 * MIB)
    dst = np.zeros((3, 5 * MIB + 4096), np.uint8)
    _fast.copy_2d(dst, src, 3, 5 * MIB, 5 * MIB + 4096, 5 * MIB)
    assert np.array_equal(dst[:, : 5 * MIB].ravel(), src)
    assert not dst[:, 5 * MIB :].any()


@pytest.mark.parametrize(
    ("rows", "row_bytes", "dst_pitch", "src_pitch", "text"),
    [
        (3, 10, 10, 10, "dst holds 29 bytes, not the 30"),
        (2, 10, 10, 32, "src holds 40 bytes, not the 42"),
        (2, 10, 9, 10, "pitch of 9"),
        (2, 10, 10, 9, "pitch of 9"),
        (-1, 10, 10, 10, "-1 rows"),
        (1, -10, 10, 10, "-10 bytes"),
        (2**62, 4, 4, 4, "dst holds"),
        (2, 1, 2**64, 1, "dst holds"),
        (1, 2**64, 2**64, 2**64, "dst holds"),
    ],
)
def test_rows_out_of_bounds(rows, row_bytes, dst_pitch, src_pitch, text):
    dst = bytearray(29)
    with pytest.raises(ValueError, match=text):
        _fast.copy_2d(dst, bytes(b"x" * 40), rows, row_bytes, dst_pitch, src_pitch)
    assert not any(dst)


def test_one_row_or_none_with_any_pitch():
    dst = bytearray(4)
    _fast.copy_2d(dst, b"abcd", 1, 4, 2**70, 2**70)
    assert dst == b"abcd"
    _fast.copy_2d(dst, b"", 0, 4, 2**70, 2**70)
    _fast.copy_2d(dst, b"", 9, 0, 0, 0)
    assert dst == b"abcd"


def test_rows_into_what_is_read_only():
    with pytest.raises(BufferError):
        _fast.copy_2d(bytes(4), bytes(4), 1, 4, 4, 4)
