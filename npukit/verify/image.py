# SPDX-License-Identifier: MIT
"""The BTF inside of a kernel image or module file, whatever it is wrapped in.

A kernel comes as vmlinux (ELF), as amd64 bzImage (Documentation/arch/x86/boot.rst: a compressed
ELF inside of a boot program), as arm64 Image (Documentation/arch/arm64/booting.rst: plain memory,
in which the BTF is searched for), or as EFI zboot (a compressed Image); a module as .ko, plain or
compressed. Everything is bounded: a small file cannot unpack to more than ``LIMIT`` bytes.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from pathlib import Path
from typing import Protocol

from .btf import MAGIC, Btf
from .elf import Elf
from .errors import FormatError

LIMIT = 512 << 20
"""Bytes that a file may hold or unpack to."""
_CHUNK = 1 << 20
_MAX_CANDIDATES = 1 << 16
"""Places in an Image that may begin with BTF's magic number; a real one has a handful."""
_ZSTD_CHUNK = 1 << 10
"""zstd's unpacker takes no limit: one run-length block of 4 bytes gives 128 KiB."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_KINDS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x5d\0\0": "lzma",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x02!L\x18": "lz4",
    b"\x89LZO": "lzo",
}


def _kind(data: bytes) -> str | None:
    return next((kind for magic, kind in _KINDS.items() if data.startswith(magic)), None)


def _unpacker(kind: str) -> _Decompressor | None:
    if kind == "gzip":
        return _Gzip()
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor() if kind in ("xz", "lzma") else None


def decompress(data: bytes, *, path: str = "data", limit: int = LIMIT) -> bytes:
    """Unpack gzip, bzip2, xz, lzma or zstd; anything else is returned as it is.

    Bytes behind the end of the stream are ignored: the kernel build appends some. FormatError when
    the data is corrupt, cut short, unpacks to more than ``limit`` bytes, or needs an unpacker that
    is not there.
    """
    kind = _kind(data)
    if kind is None:
        return data
    if kind == "zstd":
        return _zstd(data, path, limit)
    unpacker = _unpacker(kind)
    if unpacker is None:
        raise FormatError(f"compressed by {kind}, which npukit cannot unpack", path=path)
    pieces = []
    total = 0
    try:
        piece = unpacker.decompress(data, _CHUNK)
        while True:
            pieces.append(piece)
            total += len(piece)
            if total > limit:
                raise FormatError(f"unpacks to more than {limit} bytes", path=path)
            if unpacker.eof:
                return b"".join(pieces)
            piece = unpacker.decompress(b"", _CHUNK)
            if not piece and not unpacker.eof:
                raise FormatError(f"its {kind} stream is cut short", path=path)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"corrupt {kind} stream: {error}", path=path) from error


def _zstd(data: bytes, path: str, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise FormatError(
            "unpacking zstd needs zstandard: pip install 'npukit[abi]'", path=path
        ) from None
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    pieces = []
    total = 0
    try:
        for start in range(0, len(data), _ZSTD_CHUNK):
            pieces.append(unpacker.decompress(data[start : start + _ZSTD_CHUNK]))
            total += len(pieces[-1])
            if total > limit:
                raise FormatError(f"unpacks to more than {limit} bytes", path=path)
            if unpacker.eof:
                return b"".join(pieces)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"corrupt zstd stream: {error}", path=path) from error
    raise FormatError("its zstd stream is cut short", path=path)


def read(path: Path) -> bytes:
    """A whole file, unpacked. FormatError when it is too large; OSError when it cannot be read."""
    with path.open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise FormatError(f"larger than {LIMIT >> 20} MiB", path=str(path))
    return decompress(data, path=str(path))


def kernel_btf(path: Path) -> Btf:
    """The BTF of a kernel: of vmlinux, vmlinuz, Image, or a plain BTF file like
    /sys/kernel/btf/vmlinux.

    FormatError when there is none in it.
    """
    return Btf(_of_kernel(read(path), str(path), 0), path=str(path))


def _of_kernel(data: bytes, path: str, depth: int) -> bytes:
    if data.startswith(MAGIC):
        return data
    if data.startswith(b"\x7fELF"):
        section = Elf(data, path=path).section(".BTF")
        if section is None:
            raise FormatError(_NO_BTF, path=path)
        return section
    inner = _bzimage(data, path) or _zboot(data, path)
    if inner and depth == 0:
        return _of_kernel(decompress(inner, path=path), path, depth + 1)
    return _search(data, path)


_NO_BTF = "no BTF inside: this kernel was built without CONFIG_DEBUG_INFO_BTF"


def _bzimage(data: bytes, path: str) -> bytes | None:
    if data[0x202:0x206] != b"HdrS" or len(data) < 0x250:
        return None
    sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (sectors + 1) * 512 + offset
    if start + length > len(data):
        raise FormatError("corrupt bzImage: its payload ends behind the file", path=path)
    return data[start : start + length]


def _zboot(data: bytes, path: str) -> bytes | None:
    if data[:2] != b"MZ" or data[4:8] != b"zimg" or len(data) < 16:
        return None
    offset, length = struct.unpack_from("<II", data, 8)
    if offset + length > len(data):
        raise FormatError("corrupt EFI image: its payload ends behind the file", path=path)
    return data[offset : offset + length]


def _search(data: bytes, path: str) -> bytes:
    """The largest run of bytes that is framed like BTF: an Image holds no table that says where."""
    best: tuple[int, int] | None = None
    start = data.find(MAGIC)
    for _ in range(_MAX_CANDIDATES):
        if start < 0:
            break
        header = data[start : start + 24]
        if len(header) == 24:
            length, type_off, type_len, str_off, str_len = struct.unpack_from("<IIIII", header, 4)
            end = length + max(type_off + type_len, str_off + str_len)
            plausible = 24 <= length <= 64 and type_len and str_len and str_off >= type_len
            if plausible and start + end <= len(data) and (best is None or end > best[1]):
                best = (start, end)
        start = data.find(MAGIC, start + 1)
    if best is None:
        raise FormatError(_NO_BTF, path=path)
    return data[best[0] : best[0] + best[1]]


class Module:
    """A module file, unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.elf = Elf(read(path), path=str(path))

    @property
    def release(self) -> str | None:
        """The kernel release that it was built for, from the vermagic of its .modinfo."""
        for entry in (self.elf.section(".modinfo") or b"").split(b"\0"):
            if entry.startswith(b"vermagic="):
                return entry[9:].split(b" ")[0].decode("utf-8", "replace")
        return None

    def btf(self, base: Btf | None) -> Btf:
        """Its BTF, on the kernel's ``base``, or on the one that it brings itself.

        FormatError when it has none, or when it needs a base and there is none.
        """
        section = self.elf.section(".BTF")
        if section is None:
            raise FormatError(
                "no BTF inside: built without CONFIG_DEBUG_INFO_BTF_MODULES", path=str(self.path)
            )
        # A module built apart from the kernel carries what it needs of the kernel's types.
        own_base = self.elf.section(".BTF.base")
        if own_base is not None:
            base = Btf(own_base, path=f"{self.path}:.BTF.base")
        if base is None:
            raise FormatError("its BTF needs the kernel's, which is not there", path=str(self.path))
        return Btf(section, base, path=str(self.path))
