# SPDX-License-Identifier: MIT
"""The xclbin container (axlf): what a compiled design of an AMD XDNA NPU comes in.

``Xclbin`` reads one over any buffer without copying it: sections and PDI images are memoryviews,
so a caller maps the file. Nothing in a file is trusted: every offset, size and count is checked
against the bytes that are there before it is used, and arrays that share bytes are refused, so
that what is decoded stays within a small multiple of the file.
``build`` writes a container and ``build_npu`` one for NPU kernels. Little-endian throughout.

Source: XRT's xclbin.h and its parser; the layout was checked against files of xclbinutil 2.25.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar
from xml.sax.saxutils import quoteattr

from npukit.ioctl import ProgramError

Buffer = bytes | bytearray | memoryview
"""What a container is read from; anything else with the buffer protocol will do as well."""

MAGIC = b"xclbin2\0"
MAX_SECTIONS = 65536
MAX_PDI_BYTES = 128 << 20
MAX_METADATA_BYTES = 4 << 20
"""Of EMBEDDED_METADATA: a real one has a few KiB, and a parsed tree is many times its text."""

_HEADER = struct.Struct("<8si28x256xQQQQHBBHH16s64s16s16sI4x")
_SECTION = struct.Struct("<I16s4xQQ")
_ALIGN = 8
assert (_HEADER.size, _SECTION.size) == (456, 40)


class SectionKind(IntEnum):
    """enum axlf_section_kind, without what only FPGAs have."""

    BITSTREAM = 0
    EMBEDDED_METADATA = 2
    MEM_TOPOLOGY = 6
    CONNECTIVITY = 7
    IP_LAYOUT = 8
    BUILD_METADATA = 14
    KEYVALUE_METADATA = 15
    PDI = 18
    SYSTEM_METADATA = 22
    AIE_METADATA = 25
    ASK_GROUP_TOPOLOGY = 26
    ASK_GROUP_CONNECTIVITY = 27
    AIE_RESOURCES = 29
    VENDER_METADATA = 31
    AIE_PARTITION = 32
    IP_METADATA = 33
    AIE_RESOURCES_BIN = 34
    AIE_TRACE_METADATA = 35
    DTBO = 36


def kind_name(kind: int) -> str:
    """The name of a section kind; its number where npukit has none."""
    return SectionKind(kind).name if kind in SectionKind._value2member_map_ else str(kind)


IP_KERNEL, IP_PS_KERNEL = 1, 7
MEM_DRAM = 2
CDO_PRIMARY, CDO_LITE, CDO_PREPOST = 1, 2, 3
SUBTYPE_DPU = 1


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its bytes are a view of the file."""

    kind: int
    name: str
    data: memoryview


@dataclass(frozen=True, slots=True)
class Ip:
    """An entry of IP_LAYOUT. ``name`` is "kernel:instance"."""

    type: int
    properties: int
    base: int
    name: str

    @property
    def subtype(self) -> int:
        """Of a PS_KERNEL: 1 is DPU."""
        return self.properties & 3

    @property
    def functional(self) -> int:
        return self.properties >> 4 & 3

    @property
    def kernel_id(self) -> int:
        return self.properties >> 16 & 0xFFF


@dataclass(frozen=True, slots=True)
class Memory:
    """An entry of MEM_TOPOLOGY."""

    type: int
    used: bool
    size_kib: int
    base: int
    tag: str


@dataclass(frozen=True, slots=True)
class Connection:
    """An entry of CONNECTIVITY: argument ``argument`` of IP ``ip`` uses memory ``memory``."""

    argument: int
    ip: int
    memory: int


@dataclass(frozen=True, slots=True)
class CdoGroup:
    """A configuration within a PDI, and the kernels that it serves."""

    name: str
    type: int
    pdi_id: int
    dpu_kernel_ids: tuple[int, ...]
    pre_cdo_groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pdi:
    """A configuration image. ``image`` is a view of the file; what is in it stays opaque."""

    uuid: bytes
    image: memoryview
    cdo_groups: tuple[CdoGroup, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the image, hexadecimal."""
        return hashlib.sha256(self.image).hexdigest()


@dataclass(frozen=True, slots=True)
class AiePartition:
    """Section AIE_PARTITION: the columns that a design takes, and its PDIs."""

    name: str
    column_width: int
    start_columns: tuple[int, ...]
    pdis: tuple[Pdi, ...]
    ops_per_cycle: int = 0
    schema: int = 0
    inference_fingerprint: int = 0
    pre_post_fingerprint: int = 0
    kernel_commit_id: str = ""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: ``offset`` and ``size`` in bytes of its register map."""

    name: str
    id: int
    offset: int
    size: int
    type: str
    address_qualifier: int

    @property
    def is_buffer(self) -> bool:
        """A device address (qualifier 1, global) and not a number."""
        return self.address_qualifier == 1


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel of EMBEDDED_METADATA."""

    name: str
    type: str
    functional: int
    dpu_kernel_id: int | None
    arguments: tuple[Argument, ...]
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """A kernel's instance as the driver is told of it: its PDI and its functional number.

    ``index`` is its place in the list of CUs, which is its bit in a packet's CU mask.
    """

    name: str
    index: int
    kernel: KernelInfo
    pdi: Pdi | None
    banks: dict[int, int] = field(default_factory=dict)
    """Argument -> memory: of several connected ones the highest, as XRT chooses."""


def _bad(text: str) -> ProgramError:
    return ProgramError(message=f"xclbin: {text}")


_T = TypeVar("_T")


class _Reader:
    """Bounds-checked access to one section's bytes."""

    def __init__(self, data: memoryview, what: str) -> None:
        self.data = data
        self.what = what
        self.left = len(data)
        self.images = 0
        """Bytes of PDI images so far, which must not overlap either."""
        """Bytes that arrays may still claim: those of an honest file do not overlap."""

    def unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        if offset + layout.size > len(self.data):
            raise _bad(f"{self.what} ends within what stands at {offset:#x}")
        return layout.unpack_from(self.data, offset)

    def view(self, offset: int, size: int, what: str) -> memoryview:
        if offset + size > len(self.data):
            raise _bad(
                f"{self.what}: {what} of {size} bytes at {offset:#x} is not within its "
                f"{len(self.data)} bytes"
            )
        return self.data[offset : offset + size]

    def array(self, count: int, offset: int, layout: struct.Struct, what: str) -> list[int]:
        """Where each of ``count`` elements stands."""
        size = count * layout.size
        self.view(offset, size, f"{what} ({count})")
        self.left -= size
        if self.left < 0:
            raise _bad(f"{self.what}: its arrays overlap ({what})")
        return list(range(offset, offset + size, layout.size))

    def integers(self, count: int, offset: int, code: str, what: str) -> tuple[int, ...]:
        self.array(count, offset, struct.Struct(f"<{code}"), what)
        return struct.unpack_from(f"<{count}{code}", self.data, offset)

    def string(self, offset: int) -> str:
        """The C string at ``offset``, at most 1 KiB of it; offset 0 means none."""
        if offset == 0:
            return ""
        head = bytes(self.view(offset, min(1024, max(len(self.data) - offset, 1)), "a name"))
        return _text(head)


def _text(raw: bytes) -> str:
    """Text; bytes that are none stay lone surrogates, so that writing gives them back."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Xclbin:
    """A container over ``buffer``, which must stay as it is while this lives.

    ProgramError, here for a broken frame and from each attribute for a broken section. TypeError
    for what is no buffer, such as a path.
    """

    def __init__(self, buffer: Buffer) -> None:
        try:
            data = memoryview(buffer)
        except TypeError:
            raise TypeError(
                f"the bytes of an xclbin are needed, not {type(buffer).__name__}: read a file with "
                "Path(...).read_bytes()"
            ) from None
        if not data.c_contiguous:
            raise _bad("not a contiguous buffer")
        self.data = data.cast("B").toreadonly()
        """The whole file."""
        if len(self.data) < _HEADER.size:
            raise _bad(f"{len(self.data)} bytes are no container: the header has {_HEADER.size}")
        (
            magic,
            self.signature_length,
            self.unique_id,
            self.length,
            self.timestamp,
            self.feature_rom_timestamp,
            patch,
            major,
            minor,
            self.mode,
            self.action_mask,
            self.interface_uuid,
            vbnv,
            self.uuid,
            debug_bin,
            count,
        ) = _HEADER.unpack_from(self.data)
        if magic != MAGIC:
            raise _bad(f"it begins with {magic!r}, not {MAGIC!r}")
        self.version: tuple[int, int, int] = (major, minor, patch)
        self.vbnv = _text(vbnv)
        self.debug_bin = _text(debug_bin)
        if self.length > len(self.data):
            raise _bad(f"it states {self.length} bytes and has {len(self.data)}: cut off?")
        if count > MAX_SECTIONS:
            raise _bad(f"{count} sections: the most is {MAX_SECTIONS}")
        end = _HEADER.size + count * _SECTION.size
        if end > len(self.data):
            raise _bad(f"the table of {count} sections is cut off")
        sections = []
        shared = len(self.data) - end
        for index in range(count):
            kind, name, offset, size = _SECTION.unpack_from(
                self.data, _HEADER.size + index * _SECTION.size
            )
            if offset + size > len(self.data) or offset < end:
                raise _bad(
                    f"section {index} ({kind_name(kind)}): {size} bytes at {offset:#x} are not "
                    f"within the {len(self.data)} bytes behind the table"
                )
            # Sections that lie over one another would make a small file stand for a huge one.
            shared -= size
            if shared < 0:
                raise _bad(f"section {index} ({kind_name(kind)}): sections share bytes")
            sections.append(Section(kind, _text(name), self.data[offset : offset + size]))
        self.sections: tuple[Section, ...] = tuple(sections)

    def __repr__(self) -> str:
        return f"<Xclbin {self.uuid.hex()} of {len(self.sections)} sections>"

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the whole file, hexadecimal: the identity of a design."""
        return hashlib.sha256(self.data).hexdigest()

    def section(self, kind: int) -> Section | None:
        """The first section of a kind."""
        return next((section for section in self.sections if section.kind == kind), None)

    def _decoded(self, kind: int, decode: Callable[[_Reader], _T], missing: _T) -> _T:
        section = self.section(kind)
        return missing if section is None else decode(_Reader(section.data, kind_name(kind)))

    @functools.cached_property
    def ips(self) -> tuple[Ip, ...]:
        return self._decoded(SectionKind.IP_LAYOUT, _ips, ())

    @functools.cached_property
    def memories(self) -> tuple[Memory, ...]:
        return self._decoded(SectionKind.MEM_TOPOLOGY, _memories, ())

    @functools.cached_property
    def connections(self) -> tuple[Connection, ...]:
        return self._decoded(SectionKind.CONNECTIVITY, _connections, ())

    @functools.cached_property
    def group_memories(self) -> tuple[Memory, ...]:
        return self._decoded(SectionKind.ASK_GROUP_TOPOLOGY, _memories, ())

    @functools.cached_property
    def group_connections(self) -> tuple[Connection, ...]:
        return self._decoded(SectionKind.ASK_GROUP_CONNECTIVITY, _connections, ())

    @functools.cached_property
    def partition(self) -> AiePartition | None:
        """None in a container for another kind of device."""
        return self._decoded(SectionKind.AIE_PARTITION, _partition, None)

    @functools.cached_property
    def metadata(self) -> str:
        """The XML of EMBEDDED_METADATA."""
        section = self.section(SectionKind.EMBEDDED_METADATA)
        if section is None:
            return ""
        if len(section.data) > MAX_METADATA_BYTES:
            raise _bad(
                f"EMBEDDED_METADATA: {len(section.data)} bytes; at most {MAX_METADATA_BYTES}"
            )
        try:
            return bytes(section.data).rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise _bad(f"EMBEDDED_METADATA is not UTF-8: {error}") from None

    @functools.cached_property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """The kernels that EMBEDDED_METADATA describes."""
        return _kernels(self.metadata)

    @functools.cached_property
    def compute_units(self) -> tuple[ComputeUnit, ...]:
        """Each instance of each kernel, in the order that gives it its bit in a CU mask.

        ProgramError when an instance is not in IP_LAYOUT.
        """
        places = {ip.name: index for index, ip in enumerate(self.ips)}
        pdis: dict[int, Pdi] = {}
        for pdi in self.partition.pdis if self.partition else ():
            for group in pdi.cdo_groups:
                for kernel_id in group.dpu_kernel_ids:
                    pdis.setdefault(kernel_id, pdi)
        banks: dict[int, dict[int, int]] = {}
        for connection in self.connections:
            of_ip = banks.setdefault(connection.ip, {})
            known = of_ip.get(connection.argument, connection.memory)
            of_ip[connection.argument] = max(known, connection.memory)
        units: list[ComputeUnit] = []
        for kernel in self.kernels:
            for instance in kernel.instances:
                name = f"{kernel.name}:{instance}"
                if name not in places:
                    raise _bad(f"the instance {name} is not in IP_LAYOUT")
                found = None if kernel.dpu_kernel_id is None else pdis.get(kernel.dpu_kernel_id)
                used = banks.get(places[name], {})
                units.append(ComputeUnit(name, len(units), kernel, found, used))
        return tuple(units)

    def compute_unit(self, name: str | None = None) -> ComputeUnit:
        """By "kernel:instance", by kernel (its first instance), or the only one there is."""
        units = self.compute_units
        found = [u for u in units if name is None or name in (u.name, u.kernel.name)]
        if not found or (name is None and len(found) > 1):
            names = ", ".join(unit.name for unit in units) or "none"
            raise _bad(f"which compute unit? There are {names}; asked for {name!r}")
        return found[0]

    def rebuild(self) -> bytes:
        """A new file with the same header and sections, written by ``build``."""
        return build(
            [(section.kind, section.name, section.data) for section in self.sections],
            uuid=self.uuid,
            version=self.version,
            timestamp=self.timestamp,
            feature_rom_timestamp=self.feature_rom_timestamp,
            unique_id=self.unique_id,
            mode=self.mode,
            action_mask=self.action_mask,
            interface_uuid=self.interface_uuid,
            vbnv=self.vbnv,
            debug_bin=self.debug_bin,
        )


# Reading sections.

_COUNT = struct.Struct("<i")
_IP = struct.Struct("<IIQ64s")
_MEMORY = struct.Struct("<BB6xQQ16s")
_CONNECTION = struct.Struct("<iii")
_PARTITION = struct.Struct("<B3xII4xQQH6xII72xIII52x")
_PDI = struct.Struct("<16sIIII64x")
_CDO_GROUP = struct.Struct("<IB3xQIIII64x")
_ENTRIES_AT = 8
assert (_PARTITION.size, _PDI.size, _CDO_GROUP.size) == (184, 96, 96)


def _count(reader: _Reader) -> int:
    (count,) = reader.unpack(_COUNT, 0)
    if count < 0:
        raise _bad(f"{reader.what} has {count} entries")
    return count


def _ips(reader: _Reader) -> tuple[Ip, ...]:
    rows = (
        _IP.unpack_from(reader.data, place)
        for place in reader.array(_count(reader), _ENTRIES_AT, _IP, "entries")
    )
    return tuple(Ip(kind, properties, base, _text(name)) for kind, properties, base, name in rows)


def _memories(reader: _Reader) -> tuple[Memory, ...]:
    rows = (
        _MEMORY.unpack_from(reader.data, place)
        for place in reader.array(_count(reader), _ENTRIES_AT, _MEMORY, "entries")
    )
    return tuple(Memory(t, bool(used), size, base, _text(tag)) for t, used, size, base, tag in rows)


def _connections(reader: _Reader) -> tuple[Connection, ...]:
    places = reader.array(_count(reader), _COUNT.size, _CONNECTION, "entries")
    return tuple(Connection(*_CONNECTION.unpack_from(reader.data, place)) for place in places)


def _partition(reader: _Reader) -> AiePartition:
    (
        schema,
        name,
        ops_per_cycle,
        inference,
        pre_post,
        width,
        columns,
        columns_at,
        pdis,
        pdis_at,
        commit,
    ) = reader.unpack(_PARTITION, 0)
    return AiePartition(
        name=reader.string(name),
        column_width=width,
        start_columns=reader.integers(columns, columns_at, "H", "start columns"),
        pdis=tuple(_pdi(reader, p) for p in reader.array(pdis, pdis_at, _PDI, "PDIs")),
        ops_per_cycle=ops_per_cycle,
        schema=schema,
        inference_fingerprint=inference,
        pre_post_fingerprint=pre_post,
        kernel_commit_id=reader.string(commit),
    )


def _pdi(reader: _Reader, place: int) -> Pdi:
    uuid, size, image_at, groups, groups_at = _PDI.unpack_from(reader.data, place)
    if size > MAX_PDI_BYTES:
        raise _bad(f"{reader.what}: a PDI of {size} bytes; the most is {MAX_PDI_BYTES}")
    image = reader.view(image_at, size, "a PDI")
    reader.images += size
    if reader.images > len(reader.data):
        raise _bad(f"{reader.what}: the images of its PDIs share bytes")
    places = reader.array(groups, groups_at, _CDO_GROUP, "CDO groups")
    return Pdi(uuid, image, tuple(_cdo_group(reader, p) for p in places))


def _cdo_group(reader: _Reader, place: int) -> CdoGroup:
    name, kind, pdi_id, ids, ids_at, before, before_at = _CDO_GROUP.unpack_from(reader.data, place)
    return CdoGroup(
        reader.string(name),
        kind,
        pdi_id,
        reader.integers(ids, ids_at, "Q", "DPU kernel ids"),
        reader.integers(before, before_at, "I", "CDO groups before it"),
    )


def _kernels(text: str) -> tuple[KernelInfo, ...]:
    if not text:
        return ()
    # Entities may grow without bound; no tool writes a document type into this section.
    if "<!" in text.replace("<!--", "") or "<?xml" in text[1:]:
        raise _bad("EMBEDDED_METADATA has declarations: only elements are taken")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise _bad(f"EMBEDDED_METADATA is not XML: {error}") from None
    return tuple(_kernel(node) for node in root.iterfind("./platform/device/core/kernel"))


def _kernel(node: ElementTree.Element) -> KernelInfo:
    name = node.get("name", "")
    extended = node.find("extended-data")
    kernel_id = None if extended is None else extended.get("dpu_kernel_id")
    return KernelInfo(
        name=name,
        type=node.get("type", ""),
        functional=0 if extended is None else _number(extended, "functional", name),
        dpu_kernel_id=None
        if extended is None or kernel_id is None
        else _number(extended, "dpu_kernel_id", name),
        arguments=tuple(
            Argument(
                argument.get("name", ""),
                _number(argument, "id", name),
                _number(argument, "offset", name),
                _number(argument, "size", name),
                argument.get("type", ""),
                _number(argument, "addressQualifier", name),
            )
            for argument in node.iterfind("arg")
        ),
        instances=tuple(instance.get("name", "") for instance in node.iterfind("instance")),
    )


def _number(node: ElementTree.Element, name: str, kernel: str) -> int:
    text = node.get(name, "0")[:32]
    value = _integer(text)
    if value is None:
        raise _bad(f"kernel {kernel}: {node.tag} {name}={text!r} is no number of 64 bits")
    return value


@functools.lru_cache(1024)
def _integer(text: str) -> int | None:
    try:
        value = int(text, 0)
    except ValueError:
        return None
    return value if 0 <= value < 1 << 64 else None


# Writing.


def build(
    sections: Iterable[tuple[int, str, Buffer]],
    *,
    uuid: bytes | None = None,
    version: tuple[int, int, int] = (2, 25, 0),
    timestamp: int = 0,
    feature_rom_timestamp: int = 0,
    unique_id: int = 0,
    mode: int = 0,
    action_mask: int = 0,
    interface_uuid: bytes = bytes(16),
    vbnv: str = "",
    debug_bin: str = "",
) -> bytes:
    """A container of ``sections`` (kind, name, bytes), each aligned to 8 bytes, in that order.

    ``uuid`` has 16 bytes; None takes it from the contents, so that equal designs get equal files.
    ValueError for what does not fit its field.
    """
    rows = [(int(kind), name, memoryview(data).cast("B")) for kind, name, data in sections]
    if len(rows) > MAX_SECTIONS:
        raise ValueError(f"{len(rows)} sections: the most is {MAX_SECTIONS}")
    if uuid is None:
        content = hashlib.sha256()
        for kind, name, data in rows:
            content.update(f"{kind} {name} {len(data)};".encode())
            content.update(data)
        uuid = content.digest()[:16]
    if len(uuid) != 16 or len(interface_uuid) != 16:
        raise ValueError("a UUID has 16 bytes")
    table = []
    parts: list[bytes | memoryview] = []
    place = _HEADER.size + len(rows) * _SECTION.size
    for kind, name, data in rows:
        gap = -place % _ALIGN
        entry = (kind, _padded(name, 16), place + gap, len(data))
        table.append(_packed(f"section {name!r} of kind {kind}", _SECTION, *entry))
        parts += [bytes(gap), data]
        place += gap + len(data)
    major, minor, patch = version
    header = bytearray(
        _packed(
            f"version {version}, timestamp {timestamp} or another number of the header",
            _HEADER,
            MAGIC,
            -1,
            unique_id,
            place,
            timestamp,
            feature_rom_timestamp,
            patch,
            major,
            minor,
            mode,
            action_mask,
            interface_uuid,
            _padded(vbnv, 64),
            uuid,
            _padded(debug_bin, 16),
            len(rows),
        )
    )
    # reserved and keyBlock: no signature.
    header[12 : 40 + 256] = b"\xff" * 284
    return b"".join([header, *table, *parts])


def _packed(what: str, layout: struct.Struct, *values: object) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"{what} does not fit its field: {error}") from None


def _padded(text: str, room: int) -> bytes:
    raw = _raw(text)
    if len(raw) > room:
        raise ValueError(f"{text!r} does not fit in {room} bytes")
    return raw.ljust(room, b"\0")


def encode_ips(ips: Sequence[Ip]) -> bytes:
    """Section IP_LAYOUT."""
    rows = [
        _packed(repr(ip), _IP, ip.type, ip.properties, ip.base, _padded(ip.name, 64)) for ip in ips
    ]
    return struct.pack("<i4x", len(ips)) + b"".join(rows)


def encode_memories(memories: Sequence[Memory]) -> bytes:
    """Section MEM_TOPOLOGY or ASK_GROUP_TOPOLOGY."""
    rows = [
        _packed(repr(m), _MEMORY, m.type, m.used, m.size_kib, m.base, _padded(m.tag, 16))
        for m in memories
    ]
    return struct.pack("<i4x", len(memories)) + b"".join(rows)


def encode_connections(connections: Sequence[Connection]) -> bytes:
    """Section CONNECTIVITY or ASK_GROUP_CONNECTIVITY."""
    rows = [_packed(repr(c), _CONNECTION, c.argument, c.ip, c.memory) for c in connections]
    return struct.pack("<i", len(connections)) + b"".join(rows)


class _Writer:
    """Collects what a section's offsets point to."""

    def __init__(self, head: int) -> None:
        self.out = bytearray(head)

    def put(self, data: Buffer) -> int:
        """Where ``data`` went, 8-byte aligned."""
        self.out += bytes(-len(self.out) % _ALIGN)
        place = len(self.out)
        self.out += data
        return place

    def reserve(self, size: int) -> int:
        return self.put(bytes(size))

    def fill(self, place: int, what: str, layout: struct.Struct, *values: object) -> None:
        self.out[place : place + layout.size] = _packed(what, layout, *values)

    def array(self, values: Sequence[int], code: str) -> tuple[int, int]:
        layout = struct.Struct(f"<{len(values)}{code}")
        return len(values), self.put(_packed(f"one of {values}", layout, *values))


def encode_partition(partition: AiePartition) -> bytes:
    """Section AIE_PARTITION. ValueError when a PDI is too large, or a number for its field."""
    writer = _Writer(_PARTITION.size)
    name = writer.put(_raw(partition.name) + b"\0")
    columns = writer.array(partition.start_columns, "H")
    pdis_at = writer.reserve(len(partition.pdis) * _PDI.size)
    for index, pdi in enumerate(partition.pdis):
        if len(pdi.image) > MAX_PDI_BYTES:
            raise ValueError(f"a PDI of {len(pdi.image)} bytes; the most is {MAX_PDI_BYTES}")
        image_at = writer.put(pdi.image)
        groups_at = writer.reserve(len(pdi.cdo_groups) * _CDO_GROUP.size)
        for number, group in enumerate(pdi.cdo_groups):
            row = (
                writer.put(_raw(group.name) + b"\0"),
                group.type,
                group.pdi_id,
                *writer.array(group.dpu_kernel_ids, "Q"),
                *writer.array(group.pre_cdo_groups, "I"),
            )
            writer.fill(groups_at + number * _CDO_GROUP.size, f"{group}", _CDO_GROUP, *row)
        place = pdis_at + index * _PDI.size
        counted = (len(pdi.image), image_at, len(pdi.cdo_groups), groups_at)
        if len(pdi.uuid) != 16:
            raise ValueError("a UUID has 16 bytes")
        writer.fill(place, f"PDI {index}", _PDI, pdi.uuid, *counted)
    commit = partition.kernel_commit_id
    writer.fill(
        0,
        f"a number of {partition.name!r}",
        _PARTITION,
        partition.schema,
        name,
        partition.ops_per_cycle,
        partition.inference_fingerprint,
        partition.pre_post_fingerprint,
        partition.column_width,
        *columns,
        len(partition.pdis),
        pdis_at,
        writer.put(_raw(commit) + b"\0") if commit else 0,
    )
    return bytes(writer.out)


def encode_metadata(kernels: Sequence[KernelInfo]) -> bytes:
    """Section EMBEDDED_METADATA."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<project><platform><device><core>"]
    for kernel in kernels:
        lines.append(f'<kernel name={quoteattr(kernel.name)} language="c" type="{kernel.type}">')
        if kernel.dpu_kernel_id is not None:
            lines.append(
                f'<extended-data subtype="{SUBTYPE_DPU}" functional="{kernel.functional}" '
                f'dpu_kernel_id="{kernel.dpu_kernel_id:#x}"/>'
            )
        lines += [
            f'<arg name={quoteattr(a.name)} addressQualifier="{a.address_qualifier}" id="{a.id}" '
            f'size="{a.size:#x}" offset="{a.offset:#04x}" type={quoteattr(a.type)}/>'
            for a in kernel.arguments
        ]
        lines += [f"<instance name={quoteattr(name)}/>" for name in kernel.instances]
        lines.append("</kernel>")
    lines.append("</core></device></platform></project>")
    return "\n".join(lines).encode()


FIRST_BUFFER_ARGUMENT = 3
"""Arguments 0 to 2 of an instruction-stream kernel: opcode, instructions, their number of words."""


def stream_arguments(buffers: int) -> tuple[Argument, ...]:
    """The arguments of a kernel that runs an instruction stream over ``buffers`` buffers.

    Source: the register map that mlir-aie writes; buffer addresses are packed without padding.
    """
    fixed = (
        Argument("opcode", 0, 0x00, 8, "uint64_t", 0),
        Argument("instr", 1, 0x08, 8, "char *", 1),
        Argument("ninstr", 2, 0x10, 4, "uint32_t", 0),
    )
    return fixed + tuple(
        Argument(f"bo{i}", FIRST_BUFFER_ARGUMENT + i, 0x14 + 8 * i, 8, "void*", 1)
        for i in range(buffers)
    )


@dataclass(frozen=True, slots=True)
class NpuKernel:
    """What ``build_npu`` needs to know of a kernel: its PDI image and its number of buffers."""

    name: str
    pdi: bytes
    buffers: int
    instances: tuple[str, ...] = ("MLIRAIE",)
    dpu_kernel_id: int = 0x901


def build_npu(
    kernels: Sequence[NpuKernel],
    *,
    column_width: int,
    start_columns: Sequence[int] = (0,),
    ops_per_cycle: int = 2048,
    uuid: bytes | None = None,
) -> bytes:
    """A container as mlir-aie has it made: a PDI for each kernel, instructions in SRAM, data in
    host memory. ValueError when two kernels share a DPU kernel id: their PDIs could not be told
    apart."""
    if len({kernel.dpu_kernel_id for kernel in kernels}) != len(kernels):
        raise ValueError("two kernels have the same dpu_kernel_id")
    host = Memory(MEM_DRAM, True, 0x10000, 0x4000000, "HOST")
    sram = Memory(MEM_DRAM, True, 0xC000, 0x4000000, "SRAM")
    infos: list[KernelInfo] = []
    ips: list[Ip] = []
    connections: list[Connection] = []
    pdis: list[Pdi] = []
    for kernel in kernels:
        arguments = stream_arguments(kernel.buffers)
        infos.append(
            KernelInfo(kernel.name, "dpu", 0, kernel.dpu_kernel_id, arguments, kernel.instances)
        )
        for instance in kernel.instances:
            connections += [
                Connection(argument.id, len(ips), int(argument.name == "instr"))
                for argument in arguments
                if argument.is_buffer
            ]
            properties = SUBTYPE_DPU | kernel.dpu_kernel_id << 16
            ips.append(Ip(IP_PS_KERNEL, properties, (1 << 64) - 1, f"{kernel.name}:{instance}"))
        group = CdoGroup("DPU", CDO_PRIMARY, 1, (kernel.dpu_kernel_id,), ())
        digest = hashlib.sha256(kernel.pdi).digest()[:16]
        pdis.append(Pdi(digest, memoryview(kernel.pdi), (group,)))
    partition = AiePartition("", column_width, tuple(start_columns), tuple(pdis), ops_per_cycle)
    return build(
        [
            (SectionKind.MEM_TOPOLOGY, "", encode_memories([host, sram])),
            (SectionKind.AIE_PARTITION, "", encode_partition(partition)),
            (SectionKind.EMBEDDED_METADATA, "", encode_metadata(infos)),
            (SectionKind.IP_LAYOUT, "", encode_ips(ips)),
            (SectionKind.CONNECTIVITY, "", encode_connections(connections)),
        ],
        uuid=uuid,
    )
