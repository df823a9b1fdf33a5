# SPDX-License-Identifier: MIT
"""Make npukit/verify/snapshots/*.json from the kernel headers of pinned Debian packages.

    python tools/make_snapshots.py            write them all
    python tools/make_snapshots.py --check    say whether they are what the packages give

The packages are those of PINNED and come through this machine's apt sources, or from --debs DIR.
A package's name, version and SHA-256 are checked and stored, so anybody can make the same file.
Needs gcc and pyelftools.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

sys.path.insert(0, str(Path(__file__).resolve().parent))

from debian import Archive, Unavailable, unpack

from npukit.verify import snapshot
from npukit.verify.header import Compiler
from npukit.verify.interface import Field, Interface, Layout
from npukit.verify.subjects import SUBJECTS

PACKAGE = "linux-libc-dev"
PINNED = {
    (6, 1): (
        "bookworm",
        "6.1.176-1",
        "8bb258735b9dffbb111da778ebdd024750878e435ffd9dfcadcb6762ede6b4cf",
    ),
    (6, 12): (
        "trixie",
        "6.12.117-1",
        "8b4848725a2705e5b1612f2135c44300716690ba762368ab87df127e9a5ed416",
    ),
    (7, 3): (
        "trixie-backports",
        "7.3.4-1~bpo13+1",
        "b3a4538fca67081c8606a93f37521d0eb74ac75996a02f3321a6b27f978e10a8",
    ),
}
"""Kernel version: the suite that has the package, its version, its SHA-256."""

_MACRO = re.compile(r"^#define (\w+)\s+\S")
_MARKER = re.compile(r'^# \d+ "([^"]*)"')


def interface(compiler: Compiler, header: str) -> Interface:
    """All structures, enumerators and integer macros that ``header`` itself defines."""
    result = Interface()
    for die in _own_types(compiler, header):
        if die.tag == "DW_TAG_enumeration_type":
            for child in die.iter_children():
                result.constants[_name(child)] = child.attributes["DW_AT_const_value"].value
        elif _name(die):
            kind = "union" if die.tag == "DW_TAG_union_type" else "struct"
            layout = Layout(_name(die), kind, _size(die), _members(die))
            result.layouts[layout.name] = (layout,)
    names = [name for name in _own_macros(compiler, header) if name not in result.constants]
    for name, value in zip(names, compiler.evaluate([header], names), strict=True):
        if value is not None:
            result.constants[name] = value
    return result


def _run(compiler: Compiler, arguments: list[str], header: str) -> bytes:
    places = [part for path in compiler.directories for part in ("-isystem", str(path))]
    return subprocess.run(
        [compiler.command, "-x", "c", "-w", "-ffreestanding", *places, *arguments, "-"],
        input=f"#include <{header}>\n".encode(),
        capture_output=True,
        check=True,
    ).stdout


def _own_macros(compiler: Compiler, header: str) -> Iterator[str]:
    here = False
    for line in _run(compiler, ["-E", "-dD"], header).decode().splitlines():
        if marker := _MARKER.match(line):
            here = marker[1].endswith("/" + header)
        elif here and (macro := _MACRO.match(line)):
            yield macro[1]


def _own_types(compiler: Compiler, header: str) -> Iterator[DIE]:
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        flags = ["-c", "-gdwarf-4", "-fno-eliminate-unused-debug-types", "-o", file.name]
        _run(compiler, flags, header)
        dwarf = ELFFile(io.BytesIO(Path(file.name).read_bytes())).get_dwarf_info()
    kinds = ("DW_TAG_structure_type", "DW_TAG_union_type", "DW_TAG_enumeration_type")
    for unit in dwarf.iter_CUs():
        lines = dwarf.line_program_for_CU(unit)
        assert lines is not None
        entries, directories = lines["file_entry"], lines["include_directory"]
        for die in unit.get_top_DIE().iter_children():
            if die.tag in kinds and "DW_AT_declaration" not in die.attributes:
                entry = entries[die.attributes["DW_AT_decl_file"].value - 1]
                directory = directories[entry.dir_index - 1] if entry.dir_index else b""
                if f"{directory.decode()}/{entry.name.decode()}".endswith("/" + header):
                    yield die


def _name(die: DIE) -> str:
    name = die.attributes.get("DW_AT_name")
    return name.value.decode() if name else ""


def _size(die: DIE) -> int:
    size: int = die.attributes["DW_AT_byte_size"].value
    return size


def _members(die: DIE) -> tuple[Field, ...]:
    return tuple(_member(child) for child in die.iter_children() if child.tag == "DW_TAG_member")


def _member(die: DIE) -> Field:
    if "DW_AT_bit_size" in die.attributes:
        raise NotImplementedError(f"the snapshot has no form for the bit-field {_name(die)}")
    location = die.attributes.get("DW_AT_data_member_location")
    inner, dims = _element(die)
    described = _described(inner)
    return replace(described, name=_name(die), offset=location.value if location else 0, dims=dims)


def _element(die: DIE) -> tuple[DIE, tuple[int, ...]]:
    dims: list[int] = []
    while True:
        die = die.get_DIE_from_attribute("DW_AT_type")
        if die.tag == "DW_TAG_array_type":
            for child in die.iter_children():
                bound = child.attributes.get("DW_AT_upper_bound")
                count = child.attributes.get("DW_AT_count")
                dims.append(count.value if count else bound.value + 1 if bound else 0)
        elif die.tag not in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
            return die, tuple(dims)


def _described(die: DIE) -> Field:
    """A nameless field of that type."""
    if die.tag == "DW_TAG_pointer_type":
        return Field("", "pointer", 0, 8)
    kinds = {
        "DW_TAG_structure_type": "struct",
        "DW_TAG_union_type": "union",
        "DW_TAG_enumeration_type": "enum",
    }
    if die.tag in kinds:
        members = () if _name(die) or die.tag == "DW_TAG_enumeration_type" else _members(die)
        return Field("", f"{kinds[die.tag]} {_name(die)}".rstrip(), 0, _size(die), members=members)
    if _name(die) == "char":
        return Field("", "char", 0, 1)
    # DWARF: 5 signed, 6 signed char, 7 unsigned, 8 unsigned char.
    signs: dict[Any, str] = {5: "s", 6: "s", 7: "u", 8: "u"}
    sign = signs[die.attributes["DW_AT_encoding"].value]
    return Field("", f"{sign}{8 * _size(die)}", 0, _size(die))


def make(include: Path, version: snapshot.Version, package: str) -> snapshot.Snapshot:
    """A snapshot of the headers below ``include``; those that this version lacks are left out."""
    compiler = Compiler(include)
    if compiler.version() != version:
        raise SystemExit(f"{include} is of Linux {compiler.version()}, not {version}")
    headers = [subject.headers[0] for subject in SUBJECTS.values() if subject.mainline]
    said = {header: interface(compiler, header) for header in sorted(compiler.present(headers))}
    return snapshot.Snapshot(version, package, said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--debs", type=Path, help="a directory that holds the packages")
    options = parser.parse_args()
    changed = False
    with tempfile.TemporaryDirectory() as scratch:
        for version, (suite, pinned, digest) in PINNED.items():
            name = f"{version[0]}.{version[1]}"
            try:
                deb = Archive(options.debs).get(PACKAGE, pinned, "amd64", suite)
            except Unavailable as reason:
                print(f"{name}: cannot be made here: {reason}")
                continue
            found = hashlib.sha256(deb.read_bytes()).hexdigest()
            if found != digest:
                raise SystemExit(f"{deb.name} has SHA-256 {found}, pinned is {digest}")
            unpack(deb, Path(scratch, name), lambda path: "/include/" in path)
            include = Path(scratch, name, "usr/include")
            made = make(include, version, f"{PACKAGE} {pinned} sha256:{digest}")
            path = snapshot.DIRECTORY / f"{name}.json"
            text = snapshot.dump(made)
            if options.check:
                same = path.is_file() and path.read_text() == text
                changed |= not same
                print(f"{name}: {'as stored' if same else 'differs from what is stored'}")
            else:
                path.write_text(text)
                print(f"{name}: {len(text)} bytes, {len(made.headers)} headers")
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
