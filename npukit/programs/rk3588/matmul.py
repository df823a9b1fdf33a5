# SPDX-License-Identifier: MIT
"""Matrix multiplication as a 1x1 convolution: C = A @ B with A (M, K) and B (K, N).

The features are an image of M rows, one column and K channels; the weights are N kernels of 1x1xK.
In memory (C2 = channels in 16 bytes: int8 16, fp16 8, int32 and fp32 4):

    A  [K / C2][M][C2]
    B  kernel groups of 16 (fp16) or 32 (int8) kernels; in each, channel groups of 32 channels;
       in each, kernel after kernel
    C  [N / C2][M][C2]

Register values follow from the shapes by the address model below, which agrees with every stream
that is known to run: 16-byte atoms, LINE_STRIDE = 4 * row pitch, SURF_STRIDE = surface pitch -
4 * width (negative when M < 4), DST_SURF_STRIDE = output surface pitch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.ioctl import ProgramError

from .encodings import (
    ALTERNATE,
    BANK_BYTES,
    CBUF_BANKS,
    CBUF_UNIT,
    LONGEST_BURST,
    PRECISIONS,
    TO_MEMORY,
    Precision,
    kernel_group,
)
from .launch import Rk3588Device, core_share, run
from .program import Assembler, Program
from .registers import CNA, CORE, DPU
from .stages import EW_OPERANDS, LUT_REGISTERS, write_bypass, write_idle_ew, write_zeros
from .tensor import ATOM, align

MAX_DATA_BANKS = CBUF_BANKS - 1
"""The weights need one bank at least."""

MAX_HEIGHT = CNA.DATA_SIZE0.fields["DATAIN_HEIGHT"].mask
MAX_GRAINS = (1 << CNA.CONV_CON2.fields["FEATURE_GRAINS"].width) - 1
MAX_CHANNELS = 1 << CNA.DATA_SIZE1.fields["DATAIN_CHANNEL_REAL"].width
MAX_KERNELS = 1 << DPU.DATA_CUBE_CHANNEL.fields["CHANNEL"].width

DCOMP_AMOUNTS = tuple(getattr(CNA, f"DCOMP_AMOUNT{index}") for index in range(16))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What differs between the three supported pairs of types."""

    dtype_in: np.dtype[Any]
    dtype_out: np.dtype[Any]
    safe_elements: int
    """Rows x K of the largest tile that is known to be safe whatever K is."""

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.dtype_in]

    @property
    def out_precision(self) -> Precision:
        return PRECISIONS[self.dtype_out]

    @property
    def kernel_group(self) -> int:
        return kernel_group(self.precision)

    @property
    def wide(self) -> npt.DTypeLike:
        """The type in which partial sums are kept."""
        return np.int32 if self.dtype_in == np.int8 else np.float32

    @property
    def c2_in(self) -> int:
        return ATOM // self.dtype_in.itemsize

    @property
    def c2_out(self) -> int:
        return ATOM // self.dtype_out.itemsize

    @property
    def out_atoms(self) -> int:
        """16-byte atoms that one kernel group's results fill for one pixel."""
        return self.kernel_group // self.c2_out


_KINDS = {
    (kind.dtype_in, kind.dtype_out): kind
    for kind in (
        _Kind(np.dtype(np.float16), np.dtype(np.float32), 16384),
        _Kind(np.dtype(np.float16), np.dtype(np.float16), 16384),
        _Kind(np.dtype(np.int8), np.dtype(np.int32), 32768),
    )
}


def _kind(dtype_in: npt.DTypeLike, dtype_out: npt.DTypeLike) -> _Kind:
    kind = _KINDS.get((np.dtype(dtype_in), np.dtype(dtype_out)))
    if kind is None:
        known = ", ".join(f"{i}->{o}" for i, o in _KINDS)
        raise ProgramError(
            message=f"no matmul from {np.dtype(dtype_in)} to {np.dtype(dtype_out)}; "
            f"there are {known}"
        )
    return kind


def write_plain_input(asm: Assembler) -> None:
    """The input conversion of the CNA, bypassed."""
    asm.write(CNA.CVT_CON0, DATA_SIGN=1, CVT_TYPE=1, CVT_BYPASS=1)
    asm.write(CNA.CVT_CON1, CVT_SCALE0=1)
    asm.write(CNA.CVT_CON2, CVT_SCALE1=1)
    asm.write(CNA.CVT_CON3, CVT_SCALE2=1)
    asm.write(CNA.CVT_CON4, CVT_SCALE3=1)


def matmul_program(
    m: int,
    k: int,
    n: int,
    dtype_in: npt.DTypeLike,
    dtype_out: npt.DTypeLike,
    input_dma: int,
    weights_dma: int,
    output_dma: int,
) -> Program:
    """One task that computes C (m, n) from A (m, k) and the packed weights.

    Types: float16 -> float32, float16 -> float16, int8 -> int32. The three DMA addresses are those
    of buffers in the layouts above, 16-byte aligned. Any shape that the registers hold is accepted;
    one that no hardware capture covers is marked in ``Program.unproven``.

    ProgramError: a shape that cannot fit one task (the text says which limit), K not a multiple of
    C2, a bad address or type.
    """
    kind = _kind(dtype_in, dtype_out)
    _check_shape(kind, m, k, n)
    for name, address in (("input", input_dma), ("weights", weights_dma), ("output", output_dma)):
        if address % ATOM or not 0 <= address < 1 << 32:
            raise ProgramError(
                message=f"{name} address {address:#x} is not a 16-byte aligned 32-bit DMA address"
            )
    row_bytes = k * kind.dtype_in.itemsize
    data_banks = -(-m * row_bytes // BANK_BYTES)
    fp16 = kind.precision == Precision.FP16

    asm = Assembler()
    asm.write(DPU.S_POINTER, **ALTERNATE)
    asm.write(CNA.CONV_CON1, PROC_PRECISION=kind.precision, IN_PRECISION=kind.precision)
    asm.write(CNA.CONV_CON2, FEATURE_GRAINS=min(m + 1, MAX_GRAINS))
    asm.write(CNA.CONV_CON3, CONV_Y_STRIDE=1, CONV_X_STRIDE=1)
    asm.write(CNA.DATA_SIZE0, DATAIN_WIDTH=1, DATAIN_HEIGHT=m)
    asm.write(CNA.DATA_SIZE1, DATAIN_CHANNEL_REAL=k - 1, DATAIN_CHANNEL=k)
    asm.write(CNA.DATA_SIZE2, DATAOUT_WIDTH=1)
    asm.write(CNA.DATA_SIZE3, DATAOUT_ATOMICS=m)
    asm.write(CNA.WEIGHT_SIZE0, WEIGHT_BYTES=row_bytes * n)
    asm.write(CNA.WEIGHT_SIZE1, WEIGHT_BYTES_PER_KERNEL=row_bytes)
    asm.write(CNA.WEIGHT_SIZE2, WEIGHT_WIDTH=1, WEIGHT_HEIGHT=1, WEIGHT_KERNELS=n)
    asm.write(CNA.CBUF_CON0, WEIGHT_BANK=CBUF_BANKS - data_banks, DATA_BANK=data_banks)
    asm.write(CNA.CBUF_CON1, DATA_ENTRIES=-(-row_bytes // CBUF_UNIT))
    write_plain_input(asm)
    write_zeros(asm, CNA.FC_CON0, CNA.FC_CON1, CNA.PAD_CON0)
    asm.write(CNA.FEATURE_DATA_ADDR, FEATURE_BASE_ADDR=input_dma)
    asm.write(CNA.FC_CON2)
    asm.write(CNA.DMA_CON0, WEIGHT_BURST_LEN=LONGEST_BURST, DATA_BURST_LEN=LONGEST_BURST)
    asm.write(CNA.DMA_CON1, LINE_STRIDE=4)
    asm.write(CNA.DMA_CON2, SURF_STRIDE=m - 4)
    asm.write(CNA.FC_DATA_SIZE0, DMA_WIDTH=1, DMA_HEIGHT=m)
    asm.write(CNA.FC_DATA_SIZE1, DMA_CHANNEL=k)
    write_zeros(asm, CNA.DCOMP_CTRL, CNA.DCOMP_REGNUM)
    asm.write(CNA.DCOMP_ADDR0, DECOMPRESS_ADDR0=weights_dma)
    write_zeros(asm, *DCOMP_AMOUNTS, CNA.CVT_CON5, CNA.PAD_CON1)

    asm.write(CORE.MISC_CFG, PROC_PRECISION=kind.precision, QD_EN=fp16)
    asm.write(CORE.DATAOUT_SIZE_0, DATAOUT_HEIGHT=m - 1)
    asm.write(CORE.DATAOUT_SIZE_1, DATAOUT_CHANNEL=n - 1)
    write_zeros(asm, CORE.CLIP_TRUNCATE, CORE.UNDOC_3030)

    asm.write(DPU.FEATURE_MODE_CFG, BURST_LEN=LONGEST_BURST, OUTPUT_MODE=TO_MEMORY)
    asm.write(
        DPU.DATA_FORMAT,
        OUT_PRECISION=kind.out_precision,
        IN_PRECISION=kind.precision,
        PROC_PRECISION=kind.precision,
    )
    asm.write(DPU.OFFSET_PEND)
    asm.write(DPU.DST_BASE_ADDR, DST_BASE_ADDR=output_dma)
    asm.write(DPU.DST_SURF_STRIDE, DST_SURF_STRIDE=m)
    asm.write(DPU.DATA_CUBE_WIDTH)
    asm.write(DPU.DATA_CUBE_HEIGHT, HEIGHT=m - 1)
    asm.write(DPU.DATA_CUBE_NOTCH_ADDR)
    asm.write(DPU.DATA_CUBE_CHANNEL, ORIG_CHANNEL=n - 1, CHANNEL=n - 1)
    write_bypass(asm, "BS")
    write_zeros(asm, DPU.BS_ALU_CFG, DPU.BS_MUL_CFG, DPU.BS_RELUX_CMP_VALUE)
    size_e = kind.out_atoms - 1
    asm.write(DPU.BS_OW_CFG, SIZE_E_2=size_e, SIZE_E_1=size_e, SIZE_E_0=size_e, OD_BYPASS=1)
    asm.write(DPU.BS_OW_OP)
    asm.write(DPU.WDMA_SIZE_0, CHANNEL_WDMA=n - 1)
    asm.write(DPU.WDMA_SIZE_1, HEIGHT_WDMA=m - 1)
    write_bypass(asm, "BN")
    write_zeros(asm, DPU.BN_ALU_CFG, DPU.BN_MUL_CFG, DPU.BN_RELUX_CMP_VALUE)
    write_idle_ew(asm)
    asm.write(DPU.OUT_CVT_OFFSET)
    half = kind.out_precision == Precision.FP16
    asm.write(DPU.OUT_CVT_SCALE, FP32TOFP16_EN=half, OUT_CVT_SCALE=1)
    write_zeros(asm, DPU.OUT_CVT_SHIFT, *EW_OPERANDS)
    asm.write(DPU.SURFACE_ADD, SURF_ADD=m * kind.out_atoms)
    write_zeros(asm, DPU.UNDOC_40C4, *LUT_REGISTERS)
    return asm.finish("CNA", "CORE", "DPU", unproven=_unproven(kind, m, k, n))


def _check_shape(kind: _Kind, m: int, k: int, n: int) -> None:
    if min(m, k, n) < 1:
        raise ProgramError(message=f"matmul {m}x{k}x{n}: every size must be 1 or more")
    if k % kind.c2_in:
        raise ProgramError(
            message=f"matmul {m}x{k}x{n}: K must be a multiple of {kind.c2_in} for "
            f"{kind.dtype_in} (pad with zeros)"
        )
    row_bytes = k * kind.dtype_in.itemsize
    limits = (
        (row_bytes > BANK_BYTES, f"a kernel of {row_bytes} bytes exceeds a CBUF bank of 32 KiB"),
        (k > MAX_CHANNELS, f"K exceeds the {MAX_CHANNELS} of CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL"),
        (n > MAX_KERNELS, f"N exceeds the {MAX_KERNELS} of DPU.DATA_CUBE_CHANNEL.CHANNEL"),
        (m > MAX_HEIGHT, f"M exceeds the {MAX_HEIGHT} of CNA.DATA_SIZE0.DATAIN_HEIGHT"),
        (
            m * row_bytes > MAX_DATA_BANKS * BANK_BYTES,
            f"features of {m * row_bytes} bytes need more than {MAX_DATA_BANKS} CBUF banks",
        ),
    )
    for broken, rule in limits:
        if broken:
            raise ProgramError(message=f"matmul {m}x{k}x{n} does not fit one task: {rule}")


def _unproven(kind: _Kind, m: int, k: int, n: int) -> Iterator[str]:
    """What no hardware capture shows, and what is known to have misbehaved."""
    if m > 1 and m % 4:
        yield "M is neither 1 nor a multiple of 4"
    if k % 32:
        yield "K is not a multiple of 32"
    if n % kind.kernel_group:
        yield f"N is not a multiple of {kind.kernel_group}"
    if m > 1 and m * k > kind.safe_elements:
        yield f"the tile exceeds the {kind.safe_elements // k} rows that are safe for this K"
    if m + 1 > MAX_GRAINS:
        yield "FEATURE_GRAINS cannot hold M + 1"


def _steps(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(step, total - start)) for start in range(0, total, step))


def _tile_rows(kind: _Kind, k: int) -> int:
    """Rows of the largest safe tile: a multiple of 4, or 1."""
    rows = min(kind.safe_elements // k, MAX_GRAINS - 1) // 4 * 4
    return rows or 1


def matmul(
    device: Rk3588Device,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    dtype_out: npt.DTypeLike | None = None,
    *,
    cores: int | None = None,
    timeout: float = 6.0,
) -> npt.NDArray[Any]:
    """``a @ b`` on the NPU: a (M, K) and b (K, N), both int8 or both float16; any sizes.

    Gives int32 for int8 (exact, modulo 2^32), float32 for float16, or float16 when ``dtype_out``
    says so. Accumulation is in float32: with ref the exact result, the error is at most half an ulp
    of the output format at ref plus K * 2^-24 * sum|a_i * b_i|.

    Tiles stay in proven territory: M padded to a multiple of 4, K to 32, N to 16 (float16) or 32
    (int8), at most 32 KiB of features a task; K beyond one task's limit is summed up by the CPU.
    ``cores`` (None: all) share the tiles; ``timeout`` in seconds is for each submission.

    Raises ProgramError for types and shapes that cannot be multiplied, WaitTimeout, and what the
    device raises.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ProgramError(
            message=f"cannot multiply {a.dtype}{list(a.shape)} by {b.dtype}{list(b.shape)}: "
            "(M, K) and (K, N) of one type are needed"
        )
    if dtype_out is None:
        dtype_out = np.int32 if a.dtype == np.int8 else np.float32
    out_kind = _kind(a.dtype, dtype_out)
    m, k = a.shape
    n = b.shape[1]
    if 0 in (m, k, n):
        return np.zeros((m, n), out_kind.dtype_out)

    max_k = min(MAX_CHANNELS, BANK_BYTES // a.dtype.itemsize)
    # Partial sums are added up in float32 and rounded once, whatever the output format.
    kind = out_kind if k <= max_k else _kind(a.dtype, out_kind.wide)
    result = np.zeros((m, n), kind.dtype_out)
    # An overflow to infinity, here as on the NPU, is a result and no event.
    share = core_share(device, cores)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        _Bench(device, kind, share, timeout) as bench,
    ):
        for channel, channels in _steps(k, max_k):
            for kernel, kernels in _steps(n, MAX_KERNELS):
                bench.load_weights(b[channel : channel + channels, kernel : kernel + kernels])
                for row, rows in _steps(m, bench.batch_rows):
                    part = bench.multiply(a[row : row + rows, channel : channel + channels])
                    result[row : row + rows, kernel : kernel + kernels] += part
        return result.astype(out_kind.dtype_out, copy=False)


class _Bench:
    """Buffers and tiles for products with one set of weights after another."""

    BATCH_BYTES = 64 << 20
    """Features and results of one submission, roughly."""

    def __init__(self, device: Rk3588Device, kind: _Kind, cores: int, timeout: float) -> None:
        self.device, self.kind, self.cores, self.timeout = device, kind, cores, timeout
        self._buffers: dict[str, Any] = {}

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.ExitStack() as stack:
            for buffer in self._buffers.values():
                stack.callback(buffer.close)

    def _buffer(self, name: str, size: int) -> Any:
        """A buffer of at least ``size`` bytes; the one used before if it is large enough."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            if buffer is not None:
                del self._buffers[name]
                buffer.close()
            self._buffers[name] = buffer = self.device.alloc(size)
        return buffer

    def load_weights(self, b: npt.NDArray[Any]) -> None:
        """Take ``b`` (channels, kernels), padded to whole channel and kernel groups."""
        kind = self.kind
        self.k, self.n = b.shape
        self.padded_k, self.padded_n = align(self.k, 32), align(self.n, kind.kernel_group)
        kernels = np.zeros((self.padded_n, self.padded_k), kind.dtype_in)
        kernels[: self.n, : self.k] = b.T
        self.weights = self._buffer("weights", kernels.nbytes)
        with self.weights.access("w") as memory:
            _fast.pack_weights(kernels, out=memory[: kernels.nbytes])
        row_bytes = self.padded_k * kind.dtype_in.itemsize + self.padded_n * kind.dtype_out.itemsize
        self.tile_rows = _tile_rows(kind, self.padded_k)
        self.batch_rows = align(max(self.BATCH_BYTES // row_bytes, 1), self.tile_rows)

    def multiply(self, a: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``a`` (rows, channels) times the weights."""
        kind = self.kind
        tiles = [(start, rows) for start, rows in _steps(len(a), self.tile_rows)]
        sizes = [rows if rows == 1 else align(rows, 4) for _, rows in tiles]
        features = self._buffer("input", sum(sizes) * self.padded_k * kind.dtype_in.itemsize)
        results = self._buffer("output", sum(sizes) * self.padded_n * kind.dtype_out.itemsize)
        parts = self._kernel_parts(len(tiles))
        programs: list[list[Program]] = [[] for _ in range(self.cores)]
        places: list[tuple[int, int, int, int, int, int]] = []
        in_offset = out_offset = 0
        with features.access("w") as memory:
            for (start, rows), size in zip(tiles, sizes, strict=True):
                padded = np.zeros((size, self.padded_k), kind.dtype_in)
                padded[:rows, : self.k] = a[start : start + rows]
                _fast.pack_nhwc(padded, out=memory[in_offset : in_offset + padded.nbytes])
                for kernel, kernels in parts:
                    weights_offset = kernel * self.padded_k * kind.dtype_in.itemsize
                    program = matmul_program(
                        size,
                        self.padded_k,
                        kernels,
                        kind.dtype_in,
                        kind.dtype_out,
                        features.dma_address + in_offset,
                        self.weights.dma_address + weights_offset,
                        results.dma_address + out_offset,
                    )
                    programs[len(places) % self.cores].append(program)
                    places.append((start, rows, size, kernel, kernels, out_offset))
                    out_offset += size * kernels * kind.dtype_out.itemsize
                in_offset += padded.nbytes
        run(
            self.device,
            [Program.join(chain) for chain in programs],
            [features, self.weights],
            [results],
            timeout=self.timeout,
        )
        product = np.empty((len(a), self.padded_n), kind.dtype_out)
        for start, rows, size, kernel, kernels, offset in places:
            shape = (kernels // kind.c2_out, size, 1, kind.c2_out)
            packed = results.array(kind.dtype_out, shape, offset)
            unpacked = _fast.unpack_nhwc(packed, kernels).reshape(size, kernels)
            product[start : start + rows, kernel : kernel + kernels] = unpacked[:rows]
        return product[:, : self.n]

    def _kernel_parts(self, tiles: int) -> list[tuple[int, int]]:
        """Split the kernels where there are fewer row tiles than cores."""
        shares = -(-self.cores // tiles) if tiles < self.cores else 1
        step = align(-(-self.padded_n // shares), self.kind.kernel_group)
        return list(_steps(self.padded_n, step))
