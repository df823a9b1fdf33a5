# SPDX-License-Identifier: MIT
"""The stored snapshots: equal to the golden data, equal to npukit's classes, and safe to read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit.verify import SUBJECTS, FormatError, Interface, Layout, compare, witnesses
from npukit.verify.snapshot import Snapshot, diff, dump, load, parse, parse_version, versions


def golden(version: tuple[int, int]) -> dict[str, Any]:
    path = SHARED / f"data/abi/abi-linux-{version[0]}.{version[1]}.json"
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def golden_fields(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            row["name"] or "",
            row["offset"],
            row["elem_size"],
            tuple(row["dims"]),
            "unsigned" in row["type"],
            # The golden data looks into members without a name only.
            golden_fields(row["anonymous"]["fields"]) if "anonymous" in row else [],
        )
        for row in rows
    ]


NEED_FCNTL = {"DMA_HEAP_VALID_FD_FLAGS", "DRM_CLOEXEC", "DRM_RDWR"}
"""Macros made of O_CLOEXEC and the like, which the golden data was made without."""


def own_fields(fields: Any) -> list[tuple[Any, ...]]:
    return [
        (f.name, f.offset, f.size, f.dims, f.type[0] == "u" and f.type[1:].isdigit(),
         [] if f.name else own_fields(f.members))
        for f in fields
    ]  # fmt: skip


@needs_shared
@pytest.mark.parametrize("version", versions())
def test_snapshots_say_what_the_golden_data_says(version: tuple[int, int]) -> None:
    said = load(version).headers
    expected = golden(version)
    mirrored = {header for subject in SUBJECTS.values() for header in subject.headers}
    assert said.keys() == expected.keys() & mirrored
    for header, interface in said.items():
        structs = expected[header]["structs"]
        assert interface.layouts.keys() == structs.keys()
        for tag, (layout,) in interface.layouts.items():
            assert (layout.kind, layout.size) == (structs[tag]["kind"], structs[tag]["size"])
            assert own_fields(layout.fields) == golden_fields(structs[tag]["fields"])
        constants = dict(expected[header]["macros"])
        for values in expected[header]["enums"].values():
            constants |= values
        assert {n: v for n, v in interface.constants.items() if n in constants} == constants
        assert interface.constants.keys() - constants.keys() <= NEED_FCNTL


@pytest.mark.parametrize("name", [each.name for each in SUBJECTS.values() if each.mainline])
@pytest.mark.parametrize("version", versions())
def test_npukit_says_what_the_snapshots_say(name: str, version: tuple[int, int]) -> None:
    subject = SUBJECTS[name]
    said = load(version).headers.get(subject.headers[0])
    if said is None:
        return
    compared = compare(witnesses.ours(subject, version), said)
    assert compared.differences == []
    if not subject.partial:
        assert compared.unknown == []


def test_text_and_back() -> None:
    for version in versions():
        assert parse(dump(load(version)).encode()) == load(version)


def test_versions_of_releases() -> None:
    assert parse_version("7.3.4+deb13-amd64") == (7, 3)
    assert parse_version("6.12") == (6, 12)
    assert parse_version("6.18-rc1") == (6, 18)
    for text in ("", "7", "v7.3", "seven.three"):
        with pytest.raises(ValueError, match="kernel version"):
            parse_version(text)


def test_what_changed_between_two_versions() -> None:
    old = Interface(
        {"a": (Layout("a", "struct", 8, ()),), "gone": (Layout("gone", "struct", 4, ()),)},
        {"X": 1, "Y": 2},
    )
    new = Interface(
        {"a": (Layout("a", "struct", 16, ()),), "fresh": (Layout("fresh", "struct", 4, ()),)},
        {"X": 1, "Y": 3, "Z": 4},
    )
    changes = diff(
        Snapshot((6, 1), "", {"h": old, "dropped": old}), Snapshot((7, 3), "", {"h": new, "n": new})
    )
    assert sorted(f"{change.header}: {change}" for change in changes) == [
        "dropped: dropped: removed",
        "h: Y: value 0x2 -> 0x3",
        "h: Z: added",
        "h: a: size 8 -> 16",
        "h: fresh: added",
        "h: gone: removed",
        "n: n: added",
    ]


def test_the_real_difference_of_two_kernels() -> None:
    said = [str(change) for change in diff(load((6, 12)), load((7, 3)))]
    assert "drm_syncobj_handle: size 16 -> 24" in said
    assert "drm_syncobj_handle.point: added" in said
    assert "drm/rocket_accel.h: added" in said


GOOD: dict[str, Any] = {
    "kernel": "7.3",
    "package": "p",
    "headers": {
        "h": {"structs": {"s": ["struct", 4, [["x", "u32", 0, 4]]]}, "constants": {"A": 1}}
    },
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"headers": ' + b"9" * 10_000 + b"}",
        json.dumps(GOOD | {"kernel": 7}).encode(),
        json.dumps(GOOD | {"headers": []}).encode(),
        json.dumps(GOOD | {"headers": {"h": {}}}).encode(),
        json.dumps(GOOD | {"headers": {"h": {"structs": {"s": 1}, "constants": {}}}}).encode(),
        json.dumps(GOOD | {"headers": {"h": {"structs": {}, "constants": {"A": 1.5}}}}).encode(),
        json.dumps(
            GOOD | {"headers": {"h": {"structs": {"s": ["x", 1, []]}, "constants": {}}}}
        ).encode(),
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse(data)


def test_every_flipped_byte_is_read_or_refused() -> None:
    whole = json.dumps(GOOD).encode()
    assert parse(whole).headers["h"].constants == {"A": 1}
    for place in range(len(whole)):
        for flip in (0x01, 0x20, 0x80):
            broken = bytearray(whole)
            broken[place] ^= flip
            try:
                parse(bytes(broken))
            except FormatError:
                continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(max_examples=200)
@given(JSON)
def test_any_json_is_read_or_refused(tree: Any) -> None:
    for place in (tree, GOOD | {"headers": tree}, GOOD | {"headers": {"h": tree}}):
        try:
            parse(json.dumps(place).encode())
        except FormatError:
            continue
