# SPDX-License-Identifier: MIT
"""``npukit xclbin``: containers of AMD XDNA designs: look at them, take them apart, build them."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from npukit.ioctl import NpuError
from npukit.programs.xdna.xclbin import Xclbin, build, kind_name

MANIFEST = "sections.json"
T = TypeVar("T")


def _open(path: str) -> Xclbin:
    """The container in a file, mapped for as long as it lives."""
    with failures(path), open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return Xclbin(b"")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Xclbin(memoryview(data))


@contextlib.contextmanager
def failures(path: str | Path) -> Iterator[None]:
    """Says of a file that cannot be read or written why."""
    try:
        yield
    except NpuError:
        raise
    except OSError as error:
        raise click.ClickException(f"{error.filename or path}: {error.strerror}") from None


def write(path: str | Path, data: bytes | memoryview) -> None:
    """A file of ``data``; "-" is stdout."""
    with failures(path), click.open_file(os.fspath(path), "wb") as file:
        file.write(data)
        file.flush()


@click.group()
def xclbin() -> None:
    """Read and write xclbin containers."""


def _echo(line: str) -> None:
    """A line whose names may hold bytes that are no text."""
    click.echo(line.encode("utf-8", "backslashreplace").decode())


def _summary(file: Xclbin) -> dict[str, Any]:
    partition = file.partition
    return {
        "uuid": file.uuid.hex(),
        "digest": file.digest,
        "version": ".".join(map(str, file.version)),
        "timestamp": file.timestamp,
        "platform": file.vbnv,
        "sections": [
            {"kind": kind_name(s.kind), "name": s.name, "size": len(s.data)} for s in file.sections
        ],
        "memories": [
            {"tag": m.tag, "used": m.used, "size_kib": m.size_kib, "base": m.base}
            for m in file.memories
        ],
        "partition": None
        if partition is None
        else {
            "columns": partition.column_width,
            "start_columns": list(partition.start_columns),
            "ops_per_cycle": partition.ops_per_cycle,
            "pdis": [
                {
                    "uuid": pdi.uuid.hex(),
                    "size": len(pdi.image),
                    "digest": pdi.digest,
                    "kernel_ids": [i for group in pdi.cdo_groups for i in group.dpu_kernel_ids],
                }
                for pdi in partition.pdis
            ],
        },
        "compute_units": [
            {
                "index": unit.index,
                "name": unit.name,
                "functional": unit.kernel.functional,
                "kernel_id": unit.kernel.dpu_kernel_id,
                "pdi": None if unit.pdi is None else unit.pdi.uuid.hex(),
                "arguments": [
                    {
                        "name": argument.name,
                        "offset": argument.offset,
                        "size": argument.size,
                        "buffer": argument.is_buffer,
                        "bank": unit.banks.get(argument.id),
                    }
                    for argument in unit.kernel.arguments
                ],
            }
            for unit in file.compute_units
        ],
    }


@xclbin.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: str, as_json: bool) -> None:
    """What is in FILE: sections, partition and PDIs, compute units with their arguments."""
    summary = _summary(_open(path))
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _echo(f"uuid      {summary['uuid']}")
    _echo(f"digest    {summary['digest']}")
    _echo(f"version   {summary['version']}   platform {summary['platform'] or '(any)'}")
    for section in summary["sections"]:
        name = f" {section['name']!r}" if section["name"] else ""
        _echo(f"section   {section['kind']}{name}, {section['size']} bytes")
    for index, memory in enumerate(summary["memories"]):
        _echo(f"memory    {index} {memory['tag']}, {memory['size_kib']} KiB")
    partition = summary["partition"]
    if partition is not None:
        starts = ", ".join(map(str, partition["start_columns"]))
        _echo(f"partition {partition['columns']} columns, from {starts or 'anywhere'}")
        for pdi in partition["pdis"]:
            ids = ", ".join(map(hex, pdi["kernel_ids"]))
            _echo(f"pdi       {pdi['uuid']}, {pdi['size']} bytes, kernels {ids}")
    for unit in summary["compute_units"]:
        _echo(f"cu        {unit['index']} {unit['name']}, PDI {unit['pdi'] or 'none'}")
        for argument in unit["arguments"]:
            bank = "" if argument["bank"] is None else f", memory {argument['bank']}"
            what = "address" if argument["buffer"] else "number"
            _echo(
                f"          {argument['offset']:#05x} {argument['name']}: {what} of "
                f"{argument['size']} bytes{bank}"
            )


@xclbin.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False), help="Write to this folder."
)
def extract(path: str, output: str) -> None:
    """Write each section and each PDI of FILE to a file of its own.

    sections.json says which section is which; `npukit xclbin build` makes a container of it again.
    """
    file = _open(path)
    folder = Path(output)
    with failures(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, section in enumerate(file.sections):
        name = f"{index:02d}-{kind_name(section.kind)}.bin"
        write(folder / name, section.data)
        rows.append({"kind": section.kind, "name": section.name, "file": name})
        click.echo(f"{name}  {len(section.data)} bytes")
    for index, pdi in enumerate(file.partition.pdis if file.partition else ()):
        name = f"pdi-{index}-{pdi.uuid.hex()}.pdi"
        write(folder / name, pdi.image)
        click.echo(f"{name}  {len(pdi.image)} bytes")
    head = {
        "uuid": file.uuid.hex(),
        "version": list(file.version),
        "timestamp": file.timestamp,
        "platform": file.vbnv,
        "sections": rows,
    }
    write(folder / MANIFEST, (json.dumps(head, indent=2) + "\n").encode())


def _part(base: Path, name: str) -> bytes:
    """What a file of the folder holds, and of nowhere else."""
    path = (base / name).resolve()
    if not path.is_relative_to(base.resolve()):
        raise ValueError(f"{name} is not in {base}")
    return path.read_bytes()


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


@xclbin.command("build")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The file.")
def build_(folder: str, output: str) -> None:
    """Make a container of FOLDER, which holds sections and a sections.json as `extract` writes it.

    Without "uuid" in it, the UUID comes from the contents.
    """
    base = Path(folder)
    with failures(base / MANIFEST):
        manifest = (base / MANIFEST).read_bytes()
    try:
        head = json.loads(manifest)
        sections = [
            (_typed(row["kind"], int), _typed(row.get("name", ""), str), _part(base, row["file"]))
            for row in head["sections"]
        ]
        major, minor, patch = head.get("version", (2, 25, 0))
        data = build(
            sections,
            uuid=bytes.fromhex(head["uuid"]) if "uuid" in head else None,
            version=(_typed(major, int), _typed(minor, int), _typed(patch, int)),
            timestamp=_typed(head.get("timestamp", 0), int),
            vbnv=_typed(head.get("platform", ""), str),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise click.ClickException(f"{base / MANIFEST}: {error!r}") from None
    write(output, data)
    click.echo(f"{output}  {len(data)} bytes, uuid {Xclbin(data).uuid.hex()}")
