# SPDX-License-Identifier: MIT
"""Layout packing against plain numpy twins, at every SIMD level, and against recorded buffers."""

import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit import _fast

LEVELS = _fast.simd_available()
DTYPES = [np.int8, np.uint8, np.int16, np.float16, np.int32, np.float32]

levels = pytest.mark.parametrize("level", LEVELS)
dtypes = st.sampled_from(DTYPES).map(np.dtype)
# Around what the kernels move at once: 16 bytes of a row, a register of atoms, 16 pixels.
channels = st.one_of(st.integers(0, 40), st.sampled_from([48, 63, 64, 65, 96, 100]))
extents = st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 31, 32, 33, 64]))
quick = settings(max_examples=150)


@contextmanager
def simd(level: str) -> Iterator[None]:
    before = _fast.simd()
    _fast.set_simd(level)
    try:
        yield
    finally:
        _fast.set_simd(before)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tensor(shape: tuple[int, ...], dtype: np.dtype, shift: int = 0) -> np.ndarray:
    """Random elements, none of them a NaN, `shift` bytes off alignment."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    values = np.random.default_rng(size).integers(0, 120, size, np.uint8)
    return np.frombuffer(bytes(shift) + values.tobytes(), dtype, offset=shift).reshape(shape)


def fill_for(dtype: np.dtype) -> int:
    return -7 if dtype.kind in "if" else 200


# ---- Twins --------------------------------------------------------------------------------------


def twin_nc1hwc2(src: np.ndarray, fill: int) -> np.ndarray:
    c, h, w = src.shape
    c2 = 16 // src.itemsize
    c1 = ceil_div(c, c2)
    full = np.full((c1 * c2, h, w), fill, src.dtype)
    full[:c] = src
    return full.reshape(c1, c2, h, w).transpose(0, 2, 3, 1)


def twin_nhwc(src: np.ndarray, fill: int) -> np.ndarray:
    *pixels, c = src.shape
    c2 = 16 // src.itemsize
    c1 = ceil_div(c, c2)
    full = np.full((*pixels, c1 * c2), fill, src.dtype)
    full[..., :c] = src
    return np.moveaxis(full.reshape(*pixels, c1, c2), -2, 0)


def twin_weights(src: np.ndarray, fill: int) -> np.ndarray:
    n, *taps, k = src.shape
    kh, kw = taps or (1, 1)
    src = src.reshape(n, kh, kw, k)
    c2, group = 16 // src.itemsize, 32 // src.itemsize
    full = np.full((n, kh, kw, ceil_div(k, c2) * c2), fill, src.dtype)
    full[..., :k] = src
    parts = [
        full[first : first + group, y, x, c : c + 32].ravel()
        for first in range(0, n, group)
        for c in range(0, full.shape[3], 32)
        for y in range(kh)
        for x in range(kw)
    ]
    return np.concatenate([np.empty(0, src.dtype), *parts])


@levels
@quick
@given(dtypes, channels, extents, extents, st.integers(0, 20))
def test_nc1hwc2(level, dtype, c, h, w, shift):
    src, fill = tensor((c, h, w), dtype, shift), fill_for(dtype)
    with simd(level):
        packed = _fast.pack_nc1hwc2(src, fill)
        assert packed.dtype == dtype
        assert packed.shape == (ceil_div(c, 16 // dtype.itemsize), h, w, 16 // dtype.itemsize)
        assert np.array_equal(packed, twin_nc1hwc2(src, fill))
        back = _fast.unpack_nc1hwc2(packed, c)
        assert back.shape == src.shape
        assert back.tobytes() == src.tobytes()


@levels
def test_nc1hwc2_of_a_large_plane(level):
    """Rows a power of two apart, which share cache sets, and a width that no tile divides."""
    for shape in ((33, 64, 64), (20, 71, 13)):
        for dtype in map(np.dtype, (np.int8, np.float16, np.float32)):
            src = tensor(shape, dtype)
            with simd(level):
                packed = _fast.pack_nc1hwc2(src)
                assert np.array_equal(packed, twin_nc1hwc2(src, 0))
                assert np.array_equal(_fast.unpack_nc1hwc2(packed, shape[0]), src)


@levels
@quick
@given(dtypes, channels, extents, st.none() | extents, st.integers(0, 20))
def test_nhwc(level, dtype, c, h, w, shift):
    pixels = (h,) if w is None else (h, w)
    src, fill = tensor((*pixels, c), dtype, shift), fill_for(dtype)
    twin = twin_nhwc(src, fill)
    with simd(level):
        packed = _fast.pack_nhwc(src, fill)
        assert packed.dtype == dtype
        assert packed.shape == twin.shape
        assert np.array_equal(packed, twin)
        back = _fast.unpack_nhwc(packed, c)
        assert back.shape == src.shape
        assert back.tobytes() == src.tobytes()


@quick
@given(
    dtypes.filter(lambda dtype: dtype.itemsize <= 2),
    st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 31, 32, 33, 48, 65])),
    st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)),
    channels,
    st.integers(0, 20),
)
def test_weights(dtype, n, kernel, k, shift):
    src, fill = tensor((n, *(kernel or ()), k), dtype, shift), fill_for(dtype)
    packed = _fast.pack_weights(src, fill)
    assert packed.dtype == dtype
    assert np.array_equal(packed, twin_weights(src, fill))
    back = _fast.unpack_weights(packed, src.shape)
    assert back.shape == src.shape
    assert back.tobytes() == src.tobytes()


def test_nhwc_agrees_with_nc1hwc2():
    src = tensor((37, 6, 5), np.dtype(np.float16))
    rows = np.ascontiguousarray(src.transpose(1, 2, 0))
    assert np.array_equal(_fast.pack_nhwc(rows, 3), _fast.pack_nc1hwc2(src, 3))


def test_matmul_weights_by_hand():
    """Two kernels of 48 int8 channels: 32 of each kernel, then 16 of each, without padding."""
    src = np.arange(96, dtype=np.int8).reshape(2, 48)
    wanted = [*range(32), *range(48, 80), *range(32, 48), *range(80, 96)]
    assert _fast.pack_weights(src).tolist() == wanted


# ---- Where the result goes ----------------------------------------------------------------------

PACKERS = [
    (_fast.pack_nc1hwc2, (5, 4, 4), ()),
    (_fast.pack_nhwc, (4, 4, 5), ()),
    (_fast.pack_weights, (7, 24), ()),
    (_fast.unpack_nc1hwc2, (1, 4, 4, 16), (5,)),
    (_fast.unpack_nhwc, (1, 4, 4, 16), (5,)),
    (_fast.unpack_weights, (7 * 32,), ((7, 24),)),
]
every_packer = pytest.mark.parametrize(("function", "shape", "arguments"), PACKERS)


@every_packer
def test_out(function, shape, arguments):
    src = tensor(shape, np.dtype(np.int8))
    wanted = function(src, *arguments)
    memory = bytearray(3 + wanted.nbytes)
    got = function(src, *arguments, out=memoryview(memory)[3:])
    assert got.shape == wanted.shape
    assert np.array_equal(got, wanted)
    assert bytes(memory) == bytes(3) + wanted.tobytes()
    # An array of another dtype is memory like any other.
    other = np.zeros(wanted.nbytes // 4, np.float32)
    assert np.array_equal(function(src, *arguments, out=other), wanted)
    assert other.tobytes() == wanted.tobytes()


@every_packer
def test_out_holds_its_mapping(function, shape, arguments):
    src = tensor(shape, np.dtype(np.int8))
    wanted = function(src, *arguments)
    mapping = _fast.mmap(
        -1, wanted.nbytes, flags=_fast.MAP_PRIVATE | _fast.MAP_ANONYMOUS
    )  # fmt: skip
    got = function(src, *arguments, out=mapping)
    mapping.close()
    assert mapping.address
    assert np.array_equal(got, wanted)
    del got
    gc.collect()
    assert not mapping.address


@every_packer
def test_wrong_out(function, shape, arguments):
    src = tensor(shape, np.dtype(np.int8)).copy()
    size = function(src, *arguments).nbytes
    with pytest.raises(ValueError, match=f"out holds {size - 1} bytes, not the {size}"):
        function(src, *arguments, out=bytearray(size - 1))
    with pytest.raises(BufferError, match="read-only"):
        function(src, *arguments, out=bytes(size))
    with pytest.raises(BufferError, match="contiguous"):
        function(src, *arguments, out=np.zeros((size, 2), np.int8)[:, 0])
    with pytest.raises(TypeError):
        function(src, *arguments, out=size)
    both = np.zeros(src.nbytes + size, np.int8)
    inside = both[: src.nbytes].reshape(shape)
    function(inside, *arguments, out=both[src.nbytes :])
    with pytest.raises(ValueError, match="overlaps"):
        function(inside, *arguments, out=both[src.nbytes - 1 : -1])


@every_packer
def test_wrong_source(function, shape, arguments):
    with pytest.raises(TypeError):
        function([[1]], *arguments)
    with pytest.raises(TypeError, match="bytes needed, not float64"):
        function(np.zeros(shape), *arguments)
    with pytest.raises(ValueError, match="dimensions needed"):
        function(np.zeros((1, 1, 1, 1, 1), np.int8), *arguments)
    with pytest.raises(ValueError, match="C-contiguous"):
        function(np.zeros((*shape, 2), np.int8)[..., 0], *arguments)
    with pytest.raises(ValueError, match="dimensions needed"):
        function(np.zeros((), np.int8), *arguments)


def test_weights_of_wrong_kinds():
    with pytest.raises(TypeError, match="1 or 2 bytes"):
        _fast.pack_weights(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match=r"\(N, K\) or \(N, KH, KW, K\)"):
        _fast.pack_weights(np.zeros((2, 2, 2), np.int8))
    with pytest.raises(ValueError, match="32 items needed"):
        _fast.unpack_weights(np.zeros(33, np.int8), (2, 16))
    with pytest.raises(ValueError, match="negative"):
        _fast.unpack_weights(np.zeros(32, np.int8), (-2, -16))
    with pytest.raises(ValueError, match=r"\(N, K\)"):
        _fast.unpack_weights(np.zeros(32, np.int8), (32,))


@pytest.mark.parametrize("unpack", [_fast.unpack_nc1hwc2, _fast.unpack_nhwc])
def test_channels_must_fit(unpack):
    src = np.zeros((2, 3, 3, 16), np.int8)
    assert unpack(src, 17).size == 17 * 9
    for wrong in (0, 16, 33, -1, 2**70):
        with pytest.raises(ValueError, match="channels do not make 2 groups"):
            unpack(src, wrong)
    with pytest.raises(ValueError, match="C2 = 8 needed"):
        unpack(np.zeros((2, 3, 3, 16), np.float16), 17)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, ">f2", np.int32, "M8[s]"])
def test_fill(dtype):
    dtype = np.dtype(dtype)
    src = np.zeros((1, 1, 1), dtype)
    if dtype.kind == "M":
        with pytest.raises(TypeError):  # 8 bytes
            _fast.pack_nc1hwc2(src, 1)
        return
    packed = _fast.pack_nc1hwc2(src, 3)
    assert packed.dtype == dtype
    assert packed.ravel().tolist() == [0] + [3] * (16 // dtype.itemsize - 1)


@pytest.mark.parametrize("pack", [_fast.pack_nc1hwc2, _fast.pack_nhwc])
def test_fill_that_does_not_fit(pack):
    with pytest.raises(OverflowError):
        pack(np.zeros((1, 1, 1), np.int8), 200)
    with pytest.raises((TypeError, ValueError)):
        pack(np.zeros((1, 1, 1), np.int8), "no number")


def test_simd_levels():
    assert LEVELS[0] == "portable"
    assert _fast.simd() in LEVELS
    for wrong in ("", "mmx", "PORTABLE"):
        with pytest.raises(ValueError, match="none of portable"):
            _fast.set_simd(wrong)
    with simd("portable"):
        assert _fast.simd() == "portable"


# ---- What a driver and its compiler wrote -------------------------------------------------------


def recorded_convolutions() -> list[dict]:
    """Those that keep one fixed order: no depthwise, no signed tensors."""
    path = SHARED / "data" / "rk3588" / "mesa_rocket.json"
    if not path.exists():
        return []
    cases = json.loads(path.read_text())["cases"]
    return [case for case in cases if not case["depthwise"] and case["in_zp"] >= 0]


def image(packed: np.ndarray, bo: dict) -> str:
    """sha256 of a buffer object that begins with `packed`; the driver allocates more than that."""
    return hashlib.sha256(packed.tobytes().ljust(bo["size"], b"\0")).hexdigest()


def signed(values: np.ndarray) -> np.ndarray:
    return (values - np.uint8(128)).view(np.int8)


@needs_shared
def test_recorded_weights():
    checked = 0
    for case in recorded_convolutions():
        shape = (case["oc"], case["k"], case["k"], case["ic"])
        weights = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
        if "weights_ohwi_hex" in case:
            assert weights.tobytes().hex() == case["weights_ohwi_hex"]
        bo = case["bos"][0]
        if "sha256" in bo:
            packed = _fast.pack_weights(signed(weights), case["w_zp"] - 128)
            assert image(packed, bo) == bo["sha256"], case["name"]
            checked += 1
    assert checked >= 15


@needs_shared
def test_recorded_inputs():
    checked = 0
    for case in recorded_convolutions():
        bo = case["bos"][2]
        # One and three channels use the mode for pixels that fill no atom.
        if "sha256" not in bo or case["ic"] < 4:
            continue
        shape = (case["h"], case["w"], case["ic"])
        values = (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)
        packed = _fast.pack_nhwc(signed(values), case["in_zp"] - 128)
        assert image(packed, bo) == bo["sha256"], case["name"]
        checked += 1
    assert checked >= 15
