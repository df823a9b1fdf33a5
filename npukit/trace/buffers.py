# SPDX-License-Identifier: MIT
"""The buffer objects, files and mappings of a program, as its calls make and end them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .meaning import CREATES, FILES, FREES, GIVES_FD, NOWHERE, ROLES, TELLS, Role
from .record import Key, Record


@dataclass(eq=False, slots=True)
class Bo:
    """A buffer object. ``ended_ns`` None: it lives; ``closed``: its file ended it, no request."""

    file: Key
    driver: str
    handle: int
    size: int
    created_ns: int
    flags: int = 0
    """With which it was made; a driver's own."""
    dma: int | None = None
    object: int | None = None
    offset: int | None = None
    domain: int | None = None
    ended_ns: int | None = None
    closed: bool = False
    maps: dict[int, int] = field(default_factory=dict)
    """Address in the process -> bytes, for each mapping that lives."""


@dataclass(eq=False, slots=True)
class File:
    """An open file: a node's path or what else it is, its descriptors, its buffer objects."""

    what: str
    fds: set[Key]
    bos: dict[int, Bo] = field(default_factory=dict)
    backing: Bo | None = None
    """The buffer object behind a dma-buf."""
    alone: bool = False
    """That one is of no other file, and is not in Buffers.all."""


class Buffers:
    """Follows a trace, call by call. ``all`` has every buffer object in the order of creation."""

    def __init__(self) -> None:
        self.files: dict[Key, File] = {}
        self.all: list[Bo] = []
        self.maps: dict[Key, tuple[int, Bo | None]] = {}
        """Process and address -> (bytes, the buffer object mapped there)."""

    def of(self, file: Key, handle: int) -> Bo | None:
        found = self.files.get(file)
        return found.bos.get(handle) if found else None

    def named(self, file: Key, name: int) -> Bo | None:
        """The buffer object that the driver calls ``name``."""
        return next((bo for bo in self._of_file(file) if bo.object == name), None)

    def at(self, file: Key, address: int, domain: int | None = None) -> Bo | None:
        """The buffer object at a device address, in an IOMMU domain where there are several."""
        for bo in self._of_file(file):
            here = bo.dma is not None and bo.dma <= address < bo.dma + bo.size
            if here and (domain is None or bo.domain is None or bo.domain == domain):
                return bo
        return None

    def shared(self, pid: int) -> list[Bo]:
        """What stands behind the dma-bufs of a process that are no driver's buffer objects; their
        handle is the first descriptor."""
        found = (file.backing for key, file in self.files.items() if key[0] == pid and file.alone)
        return list(dict.fromkeys(bo for bo in found if bo is not None))

    def living(self) -> list[Bo]:
        """Those that were never given back."""
        return [bo for bo in self.all if bo.ended_ns is None]

    def _of_file(self, file: Key) -> Iterator[Bo]:
        found = self.files.get(file)
        return iter(found.bos.values() if found else ())

    def add(self, record: Record) -> None:
        """Take the next finished call into account."""
        if record.call == "close":
            self._close(record)
        if record.errno or not record.answered or (record.result < 0 and record.call != "ioctl"):
            return
        if record.call in ("open", "memfd_create"):
            what = str(record.arguments.get("path", "memfd"))
            self._opened((record.pid, record.result), what)
        elif record.call == "dup":
            # One that another process has passed on says whose it was.
            file = self.files.get((record.arguments.get("pid", record.pid), record.fd))
            if file is not None:
                file.fds.add((record.pid, record.result))
                self.files[record.pid, record.result] = file
        elif record.call == "mmap":
            self._mapped(record)
        elif record.call == "munmap":
            key = record.pid, record.arguments["address"]
            _length, bo = self.maps.pop(key, (0, None))
            if bo is not None:
                bo.maps.pop(record.arguments["address"], None)
        elif record.call == "ioctl":
            self._asked(record)

    def _opened(self, file: Key, what: str, backing: Bo | None = None) -> None:
        self.files[file] = File(what, {file}, backing=backing)

    def _close(self, record: Record) -> None:
        file = self.files.pop(record.file, None)
        if file is None:
            return
        file.fds.discard(record.file)
        if file.fds:
            return
        if file.alone and file.backing is not None:
            file.backing.ended_ns = record.start_ns
        for bo in file.bos.values():
            bo.ended_ns, bo.closed = record.start_ns, True
        file.bos.clear()

    def _mapped(self, record: Record) -> None:
        file = self.files.get(record.file)
        length = record.arguments["length"]
        bo = file.backing if file else None
        if file and bo is None:
            offset = record.arguments["offset"]
            bo = next((bo for bo in file.bos.values() if bo.offset == offset), None)
        self.maps[record.pid, record.result] = (length, bo)
        if bo is not None:
            bo.maps[record.result] = length

    def _asked(self, record: Record) -> None:
        block = record.after
        if record.request in GIVES_FD:
            self._opened((record.pid, record.result), "dma-buf")
        if block is None:
            return
        fields = block.fields
        file = self.files.get(record.file)
        if file is None:
            file = self.files[record.file] = File("?", {record.file})
        if block.struct in CREATES:
            if fields["handle"] in file.bos:
                # rknpu answers about the object again.
                return
            bo = Bo(
                record.file,
                record.driver,
                fields["handle"],
                fields[CREATES[block.struct]],
                record.start_ns,
                fields.get("flags", 0),
                domain=fields.get("iommu_domain_id"),
            )
            file.bos[bo.handle] = bo
            self.all.append(bo)
            _tell(bo, block.struct, fields)
            if record.request.startswith("IOCTL_RKNPU"):
                # The misc device's handles are descriptors.
                self._opened((record.pid, bo.handle), "dma-buf", bo)
        elif block.struct in TELLS:
            known = file.bos.get(fields["handle"])
            if known is not None:
                _tell(known, block.struct, fields)
        elif block.struct in FREES:
            gone = file.bos.pop(fields["handle"], None)
            if gone is not None:
                gone.ended_ns = record.start_ns
        elif record.request == "DRM_IOCTL_PRIME_FD_TO_HANDLE":
            source = self.files.get((record.pid, fields["fd"]))
            if fields["handle"] not in file.bos:
                size = source.backing.size if source and source.backing else 0
                bo = Bo(record.file, record.driver, fields["handle"], size, record.start_ns)
                file.bos[bo.handle] = bo
                self.all.append(bo)
        elif block.struct in FILES:
            key = (record.pid, fields["fd"])
            self._opened(key, "dma-buf", file.bos.get(fields.get("handle", 0)))
            length = fields.get("size", fields.get("len"))
            if length is not None:
                made = Bo(key, record.driver, key[1], length, record.start_ns)
                self.files[key].backing, self.files[key].alone = made, True
        elif block.struct == "rknpu_submit" and record.sent is not None:
            fence = fields["fence_fd"]
            if fence >= 0 and fence != record.sent.fields["fence_fd"]:
                self._opened((record.pid, fence), "sync_file")


def _tell(bo: Bo, struct: str, fields: dict[str, int]) -> None:
    for name, role in ROLES[struct].items():
        value = fields[name]
        if value == NOWHERE:
            continue
        if role is Role.DMA:
            bo.dma = value
        elif role is Role.OBJECT:
            bo.object = value
        elif role is Role.OFFSET:
            bo.offset = value
