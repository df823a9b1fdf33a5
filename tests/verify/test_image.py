# SPDX-License-Identifier: MIT
"""Kernel images and modules in every wrapping, and ELF files that lie."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from verify.btf_writer import BtfWriter, kernel
from verify.elf_writer import AARCH64, X86_64, driver, elf

from npukit.ioctl import IOW, IOWR
from npukit.verify import FormatError
from npukit.verify.elf import Elf
from npukit.verify.image import Module, decompress, kernel_btf
from npukit.verify.ioctl_table import tables

PACKERS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "zstd": zstandard.ZstdCompressor().compress,
}
BTF = kernel()[0].build()


def vmlinux() -> bytes:
    return elf({".text": bytes(64), ".BTF": BTF})


def bzimage(payload: bytes) -> bytes:
    """As Documentation/arch/x86/boot.rst lays it out, with two sectors of set-up code."""
    image = bytearray(3 * 512)
    image[0x1F1] = 2
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 16, len(payload))
    return bytes(image) + bytes(16) + payload + bytes(100)


def arm64_image() -> bytes:
    """Plain memory; a magic number that frames nothing comes first."""
    head = bytearray(64)
    head[:2], head[0x38:0x3C] = b"MZ", b"ARM\x64"
    decoy = b"\x9f\xeb\x01\x00" + b"\xff" * 40
    return bytes(head) + bytes(1000) + decoy + bytes(52) + BTF + bytes(500)


def zboot(payload: bytes) -> bytes:
    return b"MZ\0\0zimg" + struct.pack("<II", 64, len(payload)) + bytes(48) + payload


@pytest.mark.parametrize("packer", [*PACKERS])
def test_bzimage_of_every_compression(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "vmlinuz"
    # The build appends the unpacked size to some streams.
    path.write_bytes(bzimage(PACKERS[packer](vmlinux()) + bytes(4)))
    types = kernel_btf(path)
    assert types.find("colour", (6,))
    assert types.path == str(path)


@pytest.mark.parametrize(
    "image",
    [
        BTF,
        vmlinux(),
        arm64_image(),
        gzip.compress(arm64_image()),
        zboot(gzip.compress(arm64_image())),
    ],
    ids=["btf", "vmlinux", "Image", "Image.gz", "zboot"],
)
def test_other_images(tmp_path: Path, image: bytes) -> None:
    (tmp_path / "image").write_bytes(image)
    assert kernel_btf(tmp_path / "image").find("colour", (6,))


@pytest.mark.parametrize(
    "image",
    [b"", bytes(4096), elf({".text": b""}), bzimage(elf({".text": b""}))],
    ids=["empty", "zeros", "vmlinux", "bzImage"],
)
def test_a_kernel_without_btf_is_told(tmp_path: Path, image: bytes) -> None:
    (tmp_path / "image").write_bytes(image)
    with pytest.raises(FormatError, match="CONFIG_DEBUG_INFO_BTF"):
        kernel_btf(tmp_path / "image")


@pytest.mark.parametrize("packer", [name for name in PACKERS if name != "plain"])
def test_streams_that_are_cut_broken_or_too_large(packer: str) -> None:
    packed = PACKERS[packer](bytes(range(256)) * 64)
    for broken in (packed[:20], packed[: len(packed) // 2]):
        with pytest.raises(FormatError, match=r"cut short|corrupt"):
            decompress(broken)
    with pytest.raises(FormatError, match="more than 4096 bytes"):
        decompress(PACKERS[packer](bytes(5_000_000)), limit=4096)


def test_unknown_compressions_are_named() -> None:
    with pytest.raises(FormatError, match="by lz4"):
        decompress(b"\x02!L\x18" + bytes(20))


@pytest.mark.parametrize("packer", ["plain", "xz", "zstd", "gzip"])
def test_module_file(tmp_path: Path, packer: str) -> None:
    base = kernel()[0]
    split = BtfWriter(base)
    split.struct("toy_submit", 4, [("handle", 4, 0)])
    path = tmp_path / "toy.ko"
    path.write_bytes(PACKERS[packer](driver([], more={".BTF": split.build()})))
    module = Module(path)
    (tmp_path / "vmlinux").write_bytes(vmlinux())
    types = module.btf(kernel_btf(tmp_path / "vmlinux"))
    assert types.layout(types.find("toy_submit")[0]).flat()["handle"].type == "u32"
    assert module.release == "7.3.4-toy"
    with pytest.raises(FormatError, match="needs the kernel's"):
        module.btf(None)


def test_module_that_brings_its_own_base(tmp_path: Path) -> None:
    base = BtfWriter()
    word = base.int("unsigned int", 4)
    split = BtfWriter(base)
    split.struct("toy_submit", 4, [("handle", word, 0)])
    sections = {".BTF": split.build(), ".BTF.base": base.build()}
    (tmp_path / "toy.ko").write_bytes(driver([], more=sections))
    types = Module(tmp_path / "toy.ko").btf(None)
    assert types.layout(types.find("toy_submit")[0]).size == 4


REQUESTS = [
    (IOWR("d", 0x40, 24), "TOY_CREATE_BO", 0),
    None,
    (IOW("d", 0x42, 16), "TOY_SUBMIT", 1 << 5),
    (IOWR("d", 0x43, 8), "TOY_RESET", 1 << 2 | 1 << 0),
]


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_request_table(machine: int) -> None:
    found = tables(Elf(driver(REQUESTS, machine=machine)))
    assert list(found) == ["toy_drm_ioctls"]
    shown = [(e.number, e.name, e.guard, e.handler) for e in found["toy_drm_ioctls"]]
    assert shown == [
        (0xC0186440, "TOY_CREATE_BO", "none", "toy_0_ioctl"),
        (0x40106442, "TOY_SUBMIT", "RENDER_ALLOW", "toy_2_ioctl"),
        (0xC0086443, "TOY_RESET", "AUTH|ROOT_ONLY", "toy_3_ioctl"),
    ]


def test_a_module_without_a_table_has_none() -> None:
    assert tables(Elf(elf({".text": bytes(8)}))) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01",
        b"\x7fELF\x01\x01" + bytes(60),
        b"\x7fELF\x02\x02" + bytes(60),
        bytes(100),
    ],
)
def test_what_is_no_elf_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Elf(data)


@pytest.mark.parametrize(("entry", "count"), [(0, 10), (64, 0), (64, 65535), (10, 10)])
def test_section_headers_that_would_never_end(entry: int, count: int) -> None:
    data = bytearray(driver(REQUESTS))
    struct.pack_into("<HH", data, 58, entry, count)
    with pytest.raises(FormatError, match="section headers"):
        Elf(bytes(data))


def read_all(data: bytes) -> None:
    with suppress(FormatError):
        found = Elf(data)
        found.section(".BTF")
        tables(found)


def test_every_flipped_byte_of_a_module_is_read_or_refused() -> None:
    whole = driver(REQUESTS[:1])
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        read_all(bytes(broken))
    for end in range(0, len(whole), 7):
        read_all(whole[:end])


@settings(max_examples=100)
@given(st.data())
def test_modules_with_random_words_are_read_or_refused(data: st.DataObject) -> None:
    broken = bytearray(driver(REQUESTS))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(broken) - 8))
        struct.pack_into("<Q", broken, place, data.draw(st.integers(0, 2**64 - 1)))
    read_all(bytes(broken))


def test_more_symbols_than_any_module_has() -> None:
    many = [("", 0, ".text", 0, 0)] * ((1 << 17) + 1)
    with pytest.raises(FormatError, match="symbol table"):
        Elf(elf({".text": b""}, many)).symbols()


def test_more_tables_than_any_module_has() -> None:
    tall = [(f"{n}_ioctls", 1, ".rodata", 0, 24) for n in range(20)]
    with pytest.raises(FormatError, match="more than 16 tables"):
        tables(Elf(elf({".rodata": bytes(24)}, tall)))


def test_names_that_do_not_end() -> None:
    with pytest.raises(FormatError, match="no string"):
        Elf(elf({"." + "x" * 5000: b""}))


def test_an_image_full_of_magic_numbers(tmp_path: Path) -> None:
    (tmp_path / "Image").write_bytes(b"MZ" + b"\x9f\xeb\x01\x00" * 500_000)
    with pytest.raises(FormatError, match="CONFIG_DEBUG_INFO_BTF"):
        kernel_btf(tmp_path / "Image")
