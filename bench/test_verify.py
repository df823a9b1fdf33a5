# SPDX-License-Identifier: MIT
"""Checking the ABI: parsing BTF, reading a module, and the whole check of the running kernel."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.ioctl import IOWR
from npukit.verify.btf import Btf
from npukit.verify.elf import Elf
from npukit.verify.ioctl_table import tables

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from verify.btf_writer import BtfWriter, kernel
from verify.elf_writer import driver

TYPES = 127_000
"""What Debian's kernel for amd64 has."""
MODULE_TYPES = 4_000
"""What amdxdna.ko has."""


def many(writer, count):
    """A section in which the writer's types come again and again, ``count`` in all."""
    own = writer.next - writer.first
    types = writer.types * -(-count // own)
    sizes = (0, len(types), len(types), len(writer.strings))
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes)
    return header + types + writer.strings


BASE = many(kernel()[0], TYPES)


@pytest.mark.benchmark(group="BTF of a kernel, 127,000 types")
def test_kernel_baseline(benchmark):
    benchmark.extra_info.update(label="baseline: copy its bytes")
    benchmark(bytearray, BASE)


@pytest.mark.benchmark(group="BTF of a kernel, 127,000 types")
def test_kernel_parse(benchmark):
    benchmark.extra_info.update(label="Btf(data)", limit_extra_ns=250e6)
    benchmark(Btf, BASE)


@pytest.mark.benchmark(group="BTF of a kernel, 127,000 types")
def test_kernel_parse_and_find(benchmark):
    benchmark.extra_info.update(label="Btf(data), first look-up by name", limit_extra_ns=250e6)
    benchmark(lambda: Btf(BASE).find("colour"))


def module():
    """As many types as a large driver has, and behind them what is looked for."""
    split = BtfWriter(kernel()[0])
    own = split.base.next - split.base.first
    split.types = split.base.types * (MODULE_TYPES // own)
    split.next += MODULE_TYPES // own * own
    split.struct("toy_submit", 8, [("handle", 4, 0), ("flags", 4, 32)])
    split.enum("toy_flags", {"TOY_A": 1, "TOY_B": 2})
    return split.build()


@pytest.mark.benchmark(group="a module")
def test_module_baseline(benchmark):
    benchmark.extra_info.update(label="baseline: copy its BTF's bytes")
    benchmark(bytearray, module())


@pytest.mark.benchmark(group="a module")
def test_module_parse(benchmark):
    benchmark.extra_info.update(label="its BTF: parse, look up", limit_extra_ns=10e6)
    data, base = module(), Btf(kernel()[0].build())
    benchmark(lambda: Btf(data, base).interface(["toy_submit"], ["TOY_A", "TOY_B"]))


@pytest.mark.benchmark(group="a module")
def test_module_table(benchmark):
    benchmark.extra_info.update(label="its ELF and request table", limit_extra_ns=10e6)
    data = driver([(IOWR("d", 0x40 + nr, 16), f"TOY_{nr}", 0) for nr in range(16)])
    benchmark(lambda: tables(Elf(data)))


def start(code):
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


WHOLE = pytest.mark.benchmark(group="npukit abi check, whole process", min_rounds=3, warmup=False)


@WHOLE
def test_whole_baseline(benchmark):
    benchmark.extra_info.update(label="baseline: import npukit")
    benchmark(start, "import npukit")


@WHOLE
def test_whole_check(benchmark):
    benchmark.extra_info.update(
        label="running kernel and installed headers, all drivers", limit_extra_ns=1e9
    )
    benchmark(start, "from npukit.cli.abi import abi; abi(['check'])")
