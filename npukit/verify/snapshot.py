# SPDX-License-Identifier: MIT
"""What the headers of chosen kernel versions said, stored in the package.

``snapshots/X.Y.json`` is made by tools/make_snapshots.py from a pinned Debian package. A field is
[name, type, offset, size], then its dimensions if it is an array, then its members if its type is
written in place; see ``Field``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import FormatError
from .interface import Difference, Field, Interface, Layout, compare

DIRECTORY = Path(__file__).parent / "snapshots"
_MAX_SIZE = 2 << 20

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``headers`` maps a header's path below the include directory to what it said."""

    version: Version
    package: str
    """Name, version and SHA-256 of the package that it was made from."""
    headers: dict[str, Interface]


def versions() -> list[Version]:
    """The stored versions, oldest first."""
    return sorted(parse_version(path.stem) for path in DIRECTORY.glob("*.json"))


def parse_version(text: str) -> Version:
    """(major, minor) of "7.3", or of a kernel release like "7.3.4+deb13-amd64".

    ValueError when the text does not begin so.
    """
    parts = text.split("-")[0].split("+")[0].split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise ValueError(f"{text!r} is not a kernel version")
    return int(parts[0]), int(parts[1])


@cache
def load(version: Version) -> Snapshot:
    """A stored snapshot. KeyError when there is none of that version."""
    path = DIRECTORY / f"{version[0]}.{version[1]}.json"
    if not path.is_file():
        raise KeyError(f"no snapshot of Linux {version[0]}.{version[1]}")
    return parse(path.read_bytes(), path=str(path))


def parse(data: bytes, *, path: str = "snapshot") -> Snapshot:
    """Read a snapshot; FormatError when it is not one."""
    if len(data) > _MAX_SIZE:
        raise FormatError(f"a snapshot of more than {_MAX_SIZE >> 20} MiB", path=path)
    try:
        tree = json.loads(data)
        headers = {
            _text(header): Interface(
                {_text(tag): (_layout(tag, row),) for tag, row in _table(said["structs"])},
                {_text(name): _number(value) for name, value in _table(said["constants"])},
            )
            for header, said in _table(tree["headers"])
        }
        return Snapshot(parse_version(tree["kernel"]), _text(tree["package"]), headers)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise FormatError(f"not a snapshot: {error!r:.200}", path=path) from error


def _table(tree: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(tree, dict):
        raise TypeError(f"{tree!r:.50} is not an object")
    return iter(tree.items())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is not a string")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >> 64:
        raise TypeError(f"{value!r:.50} is not a 64-bit integer")
    return value


def _layout(tag: str, row: Any) -> Layout:
    kind, size, fields = row
    if kind not in ("struct", "union"):
        raise TypeError(f"{tag} is a {kind!r:.50}")
    return Layout(tag, kind, _number(size), _fields(fields))


def _fields(rows: Any) -> tuple[Field, ...]:
    return tuple(_field(*row) for row in rows)


def _field(
    name: Any, ctype: Any, offset: Any, size: Any, dims: Any = (), members: Any = ()
) -> Field:
    return Field(
        _text(name),
        _text(ctype),
        _number(offset),
        _number(size),
        tuple(_number(dim) for dim in dims),
        members=_fields(members),
    )


def dump(snapshot: Snapshot) -> str:
    """The text of a snapshot, a structure or constant on each line, so that its diffs read well."""
    lines = []
    for header, said in sorted(snapshot.headers.items()):
        layouts = [
            f"    {json.dumps(tag)}: {json.dumps(_row(layout), separators=(',', ':'))}"
            for tag, (layout,) in sorted(said.layouts.items())
        ]
        constants = [f"    {json.dumps(name)}: {v}" for name, v in sorted(said.constants.items())]
        lines.append(
            f"  {json.dumps(header)}: {{\n"
            f'   "structs": {_block(layouts)},\n   "constants": {_block(constants)}}}'
        )
    major, minor = snapshot.version
    return (
        f'{{\n "kernel": "{major}.{minor}",\n "package": {json.dumps(snapshot.package)},\n'
        ' "headers": {\n' + ",\n".join(lines) + "\n }\n}\n"
    )


def _block(lines: list[str]) -> str:
    return "{\n" + ",\n".join(lines) + "\n   }" if lines else "{}"


def _row(layout: Layout) -> list[Any]:
    return [layout.kind, layout.size, [_field_row(member) for member in layout.fields]]


def _field_row(member: Field) -> list[Any]:
    row: list[Any] = [member.name, member.type, member.offset, member.size]
    if member.dims or member.members:
        row.append(list(member.dims))
    if member.members:
        row.append([_field_row(inner) for inner in member.members])
    return row


@dataclass(frozen=True, slots=True)
class Change:
    """What became of ``subject`` (a header, tag, TAG.FIELD or constant) between two versions."""

    header: str
    subject: str
    what: str
    """"added", "removed", or the property that changed."""
    before: int | str | None = None
    after: int | str | None = None

    def __str__(self) -> str:
        if self.what in ("added", "removed"):
            return f"{self.subject}: {self.what}"
        return f"{self.subject}: {self.what} {_said(self.before)} -> {_said(self.after)}"


def _said(value: int | str | None) -> int | str:
    return "absent" if value is None else value


def diff(old: Snapshot, new: Snapshot) -> list[Change]:
    """Everything that differs, header by header."""
    changes = []
    for header in sorted({*old.headers, *new.headers}):
        if header not in old.headers:
            changes.append(Change(header, header, "added"))
        elif header not in new.headers:
            changes.append(Change(header, header, "removed"))
        else:
            compared = compare(old.headers[header], new.headers[header])
            changes += [Change(header, name, "removed") for name in compared.absent]
            changes += [Change(header, name, "added") for name in compared.unknown]
            changes += [_change(header, difference) for difference in compared.differences]
    return changes


def _change(header: str, found: Difference) -> Change:
    if found.ours is None:
        return Change(header, found.subject, "added")
    if found.theirs is None:
        return Change(header, found.subject, "removed")
    return Change(header, found.subject, found.what, found.ours, found.theirs)
