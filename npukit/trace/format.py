# SPDX-License-Identifier: MIT
"""Records as text, and as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from npukit import _fast
from npukit.abi import fastrpc
from npukit.ioctl import ProgramError
from npukit.programs.rk3588.text import disassemble_word
from npukit.programs.xdna import ert

from .buffers import Buffers
from .contents import CHUNK
from .follow import pointer_names, request_of
from .meaning import ROLES, Role
from .names import OPEN, PROT, flags, inner, named
from .record import PACKET, REGCMD, Block, Memory, Record, escaped, write_header
from .summary import pair_submits, summarize, title, to_lines

FORMATS = ("text", "jsonl", "chrome")
MAX_BYTES = 32
"""How many bytes of a buffer a line shows."""
MAX_ELEMENTS = 64
"""How many structures or numbers of an array are shown."""

Names = Mapping[str, frozenset[str]]
"""Structure -> the names of its pointers."""

_HIDDEN = re.compile(r"_*(pad|padding|reserved|rsvd|resv)\d*$")
_HEX = re.compile(r"(addr|address|vaddr(in|out)|ptr|flags|mask|offset|base)\d*$")
_HEX_ROLES = frozenset({Role.DMA, Role.OBJECT, Role.OFFSET})

_FLAGS: dict[tuple[str, str], tuple[str, Mapping[str, int]]] = {
    ("open", "flags"): ("O_RDONLY", OPEN),
    ("mmap", "prot"): ("PROT_NONE", PROT),
    ("mmap", "flags"): (
        "0",
        {
            name: getattr(_fast, name)
            for name in ("MAP_SHARED", "MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_POPULATE")
        },
    ),
}
"""(call, argument) -> what 0 is called, and the bits by name."""
_COMMANDS = {
    getattr(fcntl, name): name
    for name in ("F_DUPFD", "F_DUPFD_CLOEXEC", "F_GETFD", "F_SETFD", "F_GETFL", "F_SETFL")
}


def to_text(records: Iterable[Record], start: int | None = None) -> Iterator[str]:
    """Lines in the manner of strace: one a call, and indented below it what pointers point to.

    Each begins with seconds since ``start`` (nanoseconds; None: the first call) and the thread; of
    what came back, only what differs from what was sent is shown.
    """
    for record in records:
        start = record.start_ns if start is None else start
        seconds = (record.start_ns - start) / 1e9
        yield f"{seconds:11.6f} {record.thread} {_call(record)}"
        for block, mark in ((record.sent, ""), (record.received, "-> ")):
            if block is not None:
                yield from _memories(block, mark, 4, _pointers(record))
                for handle in dict.fromkeys(chunk.handle for chunk in block.data):
                    changed = [chunk.offset for chunk in block.data if chunk.handle == handle]
                    yield f"    {mark}buffer {handle} changed: {len(changed)} chunks of {CHUNK}"


def _call(record: Record) -> str:
    if record.call == "ioctl":
        parts = [record.request or f"{record.number:#010x}"]
        if record.sent is not None:
            parts.append(_fields(record.sent, _pointers(record), record.request))
        elif "arg" in record.arguments:
            parts.append(f"{record.arguments['arg']:#x}")
        change = _changes(record)
        who = f"{record.fd}<{record.driver}>" if record.driver else str(record.fd)
        text = f"ioctl({', '.join([who, *parts])}{' -> ' + change if change else ''})"
    else:
        given = [str(record.fd)] if record.fd >= 0 else []
        given += [_argument(record.call, name, value) for name, value in record.arguments.items()]
        text = f"{record.call}({', '.join(given)})"
    result = f"{record.result:#x}" if record.call == "mmap" else str(record.result)
    text += f" = {-1 if record.errno else result}"
    if record.errno:
        text += f" {record.errno}"
    if record.hint:
        text += f" ({record.hint})"
    return f"{text} <{record.duration_ns / 1000:.1f} us>"


def _argument(call: str, name: str, value: Any) -> str:
    if call == "fcntl" and name == "command":
        return _COMMANDS.get(value, str(value))
    if (call, name) in _FLAGS:
        none, bits = _FLAGS[call, name]
        return flags(bits, value, none)
    if isinstance(value, str):
        return f'"{escaped(value)}"'
    return _value(name, value, name == "address")


def _value(name: str, value: Any, as_hex: bool, *structs: str) -> str:
    """A value of a field of a structure, which goes by any of these names."""
    if isinstance(value, dict):
        tags = (inner(struct, name) for struct in structs)
        return _shown(value, next(filter(None, tags), ""), frozenset())
    if isinstance(value, list):
        shown = ", ".join(_value(name, each, as_hex, *structs) for each in value[:MAX_ELEMENTS])
        return f"[{shown}{', ...' if len(value) > MAX_ELEMENTS else ''}]"
    if isinstance(value, bytes):
        return _data(value, len(value))
    for struct in structs:
        if isinstance(value, int) and (known := named(struct, name, value)):
            return known
    if isinstance(value, int) and value >= 0 and (as_hex or _HEX.search(name)):
        return hex(value)
    return str(value)


def _shown(fields: dict[str, Any], struct: str, pointers: frozenset[str], request: str = "") -> str:
    roles = ROLES.get(struct, {})

    def show(name: str) -> str:
        as_hex = name in pointers or roles.get(name) in _HEX_ROLES
        return f"{name}={_value(name, fields[name], as_hex, request, struct)}"

    return "{" + ", ".join(show(name) for name in fields if not _HIDDEN.match(name)) + "}"


def _pointers(record: Record) -> Names:
    return pointer_names(request_of(record.driver, record.number))


def _fields(block: Block, pointers: Names, request: str = "") -> str:
    names = pointers.get(block.struct, frozenset())
    shown = _shown(block.fields, block.struct, names, request)
    if block.struct == "fastrpc_invoke" and "sc" in block.fields:
        sc = block.fields["sc"]
        shown += (
            f" method {fastrpc.REMOTE_SCALARS_METHOD(sc)}: "
            f"{fastrpc.REMOTE_SCALARS_INBUFS(sc)} in, {fastrpc.REMOTE_SCALARS_OUTBUFS(sc)} out, "
            f"{fastrpc.REMOTE_SCALARS_INHANDLES(sc)} handles in, "
            f"{fastrpc.REMOTE_SCALARS_OUTHANDLES(sc)} out"
        )
    return shown


def _changes(record: Record) -> str:
    """The fields that came back otherwise than they were sent."""
    sent, received = record.sent, record.received
    if sent is None or received is None:
        return ""
    changed = {n: v for n, v in received.fields.items() if v != sent.fields.get(n)}
    block = Block(received.struct, changed)
    return _fields(block, _pointers(record), record.request) if changed else ""


def _memories(block: Block, mark: str, indent: int, pointers: Names) -> Iterator[str]:
    for name, memory in block.memory.items():
        yield from _memory(mark + name, memory, indent, pointers)


def _memory(name: str, memory: Memory, indent: int, pointers: Names) -> Iterator[str]:
    margin = " " * indent
    content = memory.content
    where = f"{margin}{name} at {memory.address:#x}"
    if content is None:
        yield f"{where}: {memory.count} {memory.type} that cannot be read"
    elif memory.type == REGCMD:
        yield f"{where}: {memory.count} words"
        for word in content:
            assert isinstance(word, int)
            yield f"{margin}    {disassemble_word(word)}"
    elif memory.type == PACKET:
        yield f"{where}: {_packet(content)}"
    elif isinstance(content, bytes):
        if memory.type == "c_char":
            text = content.partition(b"\0")[0].decode("latin-1")
            yield f'{where}: "{escaped(text)}"'
        else:
            yield f"{where}: {memory.count} bytes {_data(content, memory.count)}"
    elif all(isinstance(element, int) for element in content):
        shown = _value("", content, memory.type == "c_ulong")
        more = f", {memory.count} in all" if memory.count > len(content) else ""
        yield f"{where}: {shown}{more}"
    else:
        for index, element in enumerate(content[:MAX_ELEMENTS]):
            assert isinstance(element, Block)
            yield f"{margin}{name}[{index}] {element.struct} {_fields(element, pointers)}"
            yield from _memories(element, "", indent + 4, pointers)
        if memory.count > len(content[:MAX_ELEMENTS]):
            yield f"{margin}{name}: {memory.count} in all"


def _data(data: bytes, count: int) -> str:
    return data[:MAX_BYTES].hex() + ("..." if count > MAX_BYTES else "")


def _packet(content: Any) -> str:
    try:
        packet = ert.decode(content)
    except ProgramError as error:
        return f"{len(content)} bytes: {error.strerror}"
    operands = "".join(f", {name}={value:#x}" for name, value in packet.operands.items())
    name = ert.PacketOpcode(packet.opcode).name
    cu = "" if packet.cu is None else f", cu={packet.cu}"
    return f"{name}{cu}{operands}, body {_data(packet.body, len(packet.body))}"


class Writer:
    """A sink that writes records to a file in one of FORMATS; ``close`` writes what comes last.

    "jsonl" is what read_trace() reads, "text" ends with the summary, "chrome" opens in Perfetto.
    """

    def __init__(self, file: TextIO, form: str) -> None:
        self._file = file
        self._form = form
        self._records: list[Record] = []
        self._start: int | None = None
        self.empty = True
        """Whether no record has come."""
        if form == "jsonl":
            write_header(file)

    def __call__(self, record: Record) -> None:
        self.empty = False
        if self._form == "jsonl":
            self._file.write(record.to_json() + "\n")
            return
        self._records.append(record)
        if self._form == "text":
            self._start = record.start_ns if self._start is None else self._start
            for line in to_text([record], self._start):
                self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._form == "chrome":
            json.dump(to_chrome(self._records), self._file)
        elif self._form == "text" and self._records:
            self._file.write("\n")
            for line in to_lines(summarize(self._records)):
                self._file.write(line + "\n")
        self._file.flush()


def to_chrome(records: Iterable[Record]) -> dict[str, Any]:
    """A trace in the trace event format: a slice for each call, one from each submit to the end of
    its wait with an arrow between the two calls, and how many bytes the buffer objects of each
    process have.

    Source: "Trace Event Format", which Perfetto reads. Times are microseconds since the first call,
    which was at ``start_ns``: as doubles they hold nanoseconds for a hundred days, and Perfetto
    drops slices that rounding has overlap.
    """
    records = list(records)
    start = min((record.start_ns for record in records), default=0)

    def at(ns: int) -> float:
        return (ns - start) / 1000

    events: list[dict[str, Any]] = []
    buffers = Buffers()
    for pid in dict.fromkeys(record.pid for record in records):
        name = {"name": f"process {pid}"}
        events.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": name})
    for record in records:
        buffers.add(record)
        arguments: dict[str, Any] = {"result": record.result, "call": _call(record)}
        if record.errno:
            arguments["errno"] = record.errno
        events.append(
            {
                "ph": "X",
                "name": title(record),
                "cat": record.driver or "system",
                "pid": record.pid,
                "tid": record.thread,
                "ts": at(record.start_ns),
                "dur": record.duration_ns / 1000,
                "args": arguments,
            }
        )
    levels: dict[int, int] = {}
    for when, pid, size in sorted(_changes_of_size(buffers)):
        levels[pid] = levels.get(pid, 0) + size
        sizes = {"bytes": levels[pid]}
        events.append(
            {"ph": "C", "name": "buffer objects", "pid": pid, "ts": at(when), "args": sizes}
        )
    for index, job in enumerate(pair_submits(records)):
        common = {"cat": job.driver or "system", "name": "job"}
        whose = {"pid": job.pid, "tid": job.thread}
        span = {**common, **whose, "id2": {"local": index}}
        events.append({"ph": "b", "ts": at(job.start_ns), **span})
        if job.end_ns is None:
            continue
        events.append({"ph": "e", "ts": at(job.end_ns), **span})
        if job.waiter is not None:
            # An arrow ends within the slice that it points to.
            arrow = {**common, "id": index, "bp": "e"}
            to = {"pid": job.waiter[0], "tid": job.waiter[1], "ts": at(job.end_ns - 1)}
            events.append({"ph": "s", "ts": at(job.start_ns), **whose, **arrow})
            events.append({"ph": "f", **to, **arrow})
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"start_ns": start}}


def _changes_of_size(buffers: Buffers) -> Iterator[tuple[int, int, int]]:
    """(time, process, bytes) of each buffer object that came or went."""
    for bo in buffers.all:
        yield bo.created_ns, bo.file[0], bo.size
        if bo.ended_ns is not None:
            yield bo.ended_ns, bo.file[0], -bo.size
