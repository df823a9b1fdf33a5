# SPDX-License-Identifier: MIT
"""The hot path: raw ioctl and mmap, copies, layout packing, register command words.

Nothing here knows a driver or decides anything. Functions that take a buffer accept whatever has
the buffer protocol (bytearray, ctypes objects, memoryview, numpy arrays, Mapping); it must be
C-contiguous, else BufferError. Every function may be called from several threads at once; nothing
is locked, so two calls that write the same memory are the caller's affair.
"""

from collections.abc import Iterable
from collections.abc import Mapping as _Mapping
from typing import Any, Final, Self, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer, WriteableBuffer

_Item = TypeVar("_Item", bound=np.generic)
# numpy's stubs give arrays the buffer protocol for Python 3.12 and newer only.
_Readable: TypeAlias = ReadableBuffer | npt.NDArray[Any]
_Writable: TypeAlias = WriteableBuffer | npt.NDArray[Any]

PAGE_SIZE: Final[int]
"""Bytes of a page of the running kernel; 4, 16 and 64 KiB all exist on boards with an NPU."""

PROT_NONE: Final[int]
PROT_READ: Final[int]
PROT_WRITE: Final[int]
PROT_EXEC: Final[int]
MAP_SHARED: Final[int]
MAP_PRIVATE: Final[int]
MAP_ANONYMOUS: Final[int]
MAP_POPULATE: Final[int]
MAP_NORESERVE: Final[int]
MAP_LOCKED: Final[int]

# ---- The kernel ---------------------------------------------------------------------------------

def ioctl(fd: int, request: int, arg: int | _Readable | None = None) -> tuple[int, int]:
    """ioctl(2) itself: (result, errno), the result as the kernel gave it.

    A result of -1 is a failure and errno says which; otherwise errno is 0. FastRPC, for one,
    returns the DSP's own codes as results, negative ones too, so no other value is taken for a
    failure. A kernel's error never raises, EINTR included.

    `request` is the unsigned 32-bit number. `arg` is an address or a plain value of up to 64
    bits, or a buffer: its address is passed, and it is held for the call. Whether the kernel
    writes to it is the request's affair, so pass bytes and read-only arrays only where it does
    not. An int, or what has __index__ (numpy.uint64), is always a value. The GIL is released.

    TypeError, OverflowError: `fd` is no C int, `request` no 32-bit number, `arg` no 64-bit one.
    """

def ioctl_many(
    fd: int,
    calls: npt.NDArray[np.uint64],
    results: npt.NDArray[np.int64],
    stop_on_error: bool = False,
) -> int:
    """Row after row of `calls` (n, 2), each (request, address or value), as ioctl() would.

    Row i of `results` (n, 2) becomes (result, errno). Returns the number of calls made: n, or
    fewer when `stop_on_error` ended the loop after the first result of -1, whose row is the last
    one written. The whole loop runs without the GIL. What the addresses point to must stay alive.

    TypeError, ValueError: another dtype, shape or memory order. BufferError: read-only `results`.
    """

@final
class Mapping:
    """Mapped memory with the buffer protocol (format "B", read-only without PROT_WRITE).

    Comes from mmap(). The memory stays mapped while any view lives: memoryviews, arrays of
    numpy.frombuffer(mapping) or numpy.asarray(memoryview(mapping)), and what they were sliced
    into. (numpy.ndarray(..., buffer=mapping) asks for no view, here as elsewhere: hand it a shape
    and dtype through frombuffer(...).view(dtype).reshape(shape) instead.)

    Unmapped by close() or at the end of its life. A child process has its own copy of the
    mapping, as after any fork.
    """

    @property
    def address(self) -> int:
        """Where it is mapped; 0 once unmapped."""

    @property
    def length(self) -> int:
        """Bytes, as asked of mmap()."""

    @property
    def closed(self) -> bool:
        """Whether close() was called. Views may still live, and the memory with them."""

    @property
    def views(self) -> int:
        """Exported buffers that live now; slices of a memoryview share its export."""

    def close(self) -> None:
        """Give out no new views (BufferError), and unmap when the last one goes, at once if none.

        Closing again does nothing. OSError: munmap(2) refused (a huge page mapped in part).
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def mmap(
    fd: int,
    length: int,
    offset: int = 0,
    prot: int = ...,
    flags: int = ...,
) -> Mapping:
    """mmap(2) itself: `length` bytes of `fd` at `offset`, by default shared, readable and writable.

    The fd is not duplicated and may be closed afterwards (fd -1 with MAP_ANONYMOUS needs none).
    The kernel rounds the length up to its page. A length past the end of a regular file is
    allowed; touching a page wholly past the end is SIGBUS, as ever. `offset` is an unsigned
    64-bit number: DRM and KFD encode objects in its upper bits.

    OSError: what the kernel refused, with its errno. OverflowError: negative, or beyond 64 bits.
    """

def munmap(mapping: Mapping) -> None:
    """mapping.close()"""

def fence() -> None:
    """A full memory barrier between this processor and whatever shares its memory, devices too.

    No load or store moves across it, in either direction. It moves no caches: memory that a device
    does not see coherently needs its driver's own synchronization as well.
    """

# ---- Copies -------------------------------------------------------------------------------------

def copy(dst: _Writable, src: _Readable, strategy: str | None = None) -> None:
    """Copy the bytes of `src` to `dst`, which is as long; overlapping ranges as memmove(3).

    Without `strategy`, copy_plan() decides for 4 MiB and more; below, it is libc's copy.
    The first copy of that size measures the plan, in at most 50 ms. Strategies: "plain" (libc),
    "stream" (non-temporal stores: dst will not be in the cache afterwards), "threads" (a second
    thread copies the upper half), "stream+threads". The GIL is released for 32 KiB and more.

    ValueError: lengths differ (both are named), unknown strategy. BufferError: `dst` is
    read-only, or one of them not C-contiguous. TypeError: no buffer, or one of Python objects.
    """

def copy_2d(
    dst: _Writable,
    src: _Readable,
    rows: int,
    row_bytes: int,
    dst_pitch: int,
    src_pitch: int,
) -> None:
    """Copy `rows` rows of `row_bytes`, which begin `pitch` bytes apart in each buffer.

    The last row need not be followed by the rest of its pitch. Rows must not overlap those of the
    other buffer, except row i with row i.

    ValueError: rows reach past a buffer's end, a pitch is below row_bytes, a number is negative.
    BufferError, TypeError: as copy().
    """

def copy_plan() -> dict[int, tuple[str, dict[str, float]]] | None:
    """{smallest size in bytes: (strategy, {strategy: measured GB/s})}, or None before it is known.

    Bands begin at 4, 16 and 128 MiB. A strategy other than "plain" is in the plan because it was at
    least 1.2 times as fast (with threads 1.5 times). Rates are missing where nothing was measured:
    in a plan of set_copy_plan(), for threads on one processor or below 16 MiB, and where time ran
    out. Nor is the last band measured: there libc streams by itself, and a second thread is taken
    where it paid in the band below.
    """

def set_copy_plan(plan: _Mapping[int, str] | str | None) -> None:
    """Use this strategy, or one for each band ({4 MiB: ..., 16 MiB: ..., 128 MiB: ...}).

    None forgets the plan: the next copy of 4 MiB or more measures it again.

    ValueError: unknown strategy, other bands.
    """

# ---- Layouts ------------------------------------------------------------------------------------
#
# An atom is 16 bytes: C2 = 16 // itemsize elements. C1 = ceil(C / C2). Elements are moved, never
# looked at, so any dtype of the size will do. `fill` stands in the channels that the tensor does
# not have. `out` is any writable C-contiguous buffer of exactly the result's bytes, for instance
# a slice of a Mapping; the array returned then is a view of it (and holds the mapping). The GIL
# is released.
#
# ValueError: other dimensions, src not C-contiguous, `out` of another size or over `src`.
# TypeError: other itemsize. BufferError: `out` read-only or not contiguous. OverflowError: `fill`
# does not fit the dtype.

def pack_nc1hwc2(
    src: npt.NDArray[_Item], fill: float = 0, out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """(C, H, W) to (C1, H, W, C2): feature data as the NVDLA family reads it.

    Items of 1, 2 or 4 bytes. Integer data with a zero point wants `fill` to be that zero point.
    """

def unpack_nc1hwc2(
    src: npt.NDArray[_Item], channels: int, out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """(C1, H, W, C2) to (channels, H, W); ValueError unless C1 = ceil(channels / C2)."""

def pack_nhwc(
    src: npt.NDArray[_Item], fill: float = 0, out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """(H, W, C) to (C1, H, W, C2), or a matrix (M, K) to (K1, M, C2): a matmul's features.

    Items of 1, 2 or 4 bytes.
    """

def unpack_nhwc(
    src: npt.NDArray[_Item], channels: int, out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """(C1, H, W, C2) to (H, W, channels), or (N1, M, C2) to (M, channels): a matmul's result.

    ValueError unless C1 = ceil(channels / C2).
    """

def pack_weights(
    src: npt.NDArray[_Item], fill: float = 0, out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """(N, K) or (N, KH, KW, K) to the order in which the RK3588 fetches weights, as one row.

    Items of 1 byte (kernel groups of 32) or 2 (groups of 16). Order: kernel group, channel group
    of 32, kh, kw, kernel in its group, channel in its group. Channels are filled up to a multiple
    of C2 with `fill`; the last groups hold only what is left, so there are N * KH * KW * align(K,
    C2) items.

    Source: Mesa's rocket driver and matmul programs proven on hardware agree on it.
    """

def unpack_weights(
    src: npt.NDArray[_Item], shape: Iterable[int], out: _Writable | None = None
) -> npt.NDArray[_Item]:
    """The inverse of pack_weights(): one row back to `shape`, (N, K) or (N, KH, KW, K)."""

# ---- Register command words ---------------------------------------------------------------------

def encode_regcmds(
    target: npt.ArrayLike,
    value: npt.ArrayLike,
    register: npt.ArrayLike,
    out: _Writable | None = None,
) -> npt.NDArray[np.uint64]:
    """Words (n,) of target << 48 | value << 16 | register.

    Each is a sequence of n integers or one integer for all (three single integers make one word).
    Contiguous arrays of uint16, uint32 and uint16 are read in place; all else is converted first,
    and checked. `out` as for the layouts: n words.

    ValueError: a number outside its field (named with its index), lengths differ, more than one
    dimension, `out` of another size or over the source. TypeError: no integers.
    """

def decode_regcmds(
    words: _Readable,
    out: tuple[_Writable | None, _Writable | None, _Writable | None] | None = None,
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
    """(target, value, register), each (n,), of n words: an array of uint64, or bytes of any buffer.

    `out` as for the layouts, one for each.

    ValueError: not a multiple of 8 bytes, `out` of another size or over `words`. TypeError: an
    array of another dtype.
    """

# ---- SIMD ---------------------------------------------------------------------------------------

def simd() -> str:
    """The SIMD level in use: "portable", "neon", "sse2", "avx2", "avx512" or "avx512-vnni"."""

def simd_available() -> list[str]:
    """The levels that this processor has, from "portable" to the best, which is used by default."""

def set_simd(name: str) -> None:
    """Use this level from now on, for tests and benchmarks; results are the same with each.

    ValueError: the processor has no such level.
    """
