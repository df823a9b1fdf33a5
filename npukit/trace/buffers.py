# SPDX-License-Identifier: MIT
"""The buffer objects, files and mappings of a program, as its calls make and end them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .meaning import CREATES, FILES, FREES, GIVES_FD, ROLES, TELLS, Role
from .record import Record

_NOWHERE = (1 << 64) - 1
"""AMDXDNA_INVALID_ADDR"""


@dataclass(eq=False, slots=True)
class Bo:
    """A buffer object. ``ended_ns`` None: it lives; ``closed``: its file ended it, no request."""

    fd: int
    driver: str
    handle: int
    size: int
    created_ns: int
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
    fds: set[int]
    bos: dict[int, Bo] = field(default_factory=dict)
    backing: Bo | None = None
    """The buffer object behind a dma-buf."""


class Buffers:
    """Follows a trace, call by call. ``all`` has every buffer object in the order of creation."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}
        self.all: list[Bo] = []
        self.maps: dict[int, tuple[int, Bo | None]] = {}
        """Address -> (bytes, the buffer object mapped there)."""

    def of(self, fd: int, handle: int) -> Bo | None:
        file = self.files.get(fd)
        return file.bos.get(handle) if file else None

    def named(self, fd: int, name: int) -> Bo | None:
        """The buffer object that the driver calls ``name``."""
        return next((bo for bo in self._of_file(fd) if bo.object == name), None)

    def at(self, fd: int, address: int, domain: int | None = None) -> Bo | None:
        """The buffer object at a device address, in an IOMMU domain where there are several."""
        for bo in self._of_file(fd):
            here = bo.dma is not None and bo.dma <= address < bo.dma + bo.size
            if here and (domain is None or bo.domain is None or bo.domain == domain):
                return bo
        return None

    def living(self) -> list[Bo]:
        """Those that were never given back."""
        return [bo for bo in self.all if bo.ended_ns is None]

    def _of_file(self, fd: int) -> Iterator[Bo]:
        file = self.files.get(fd)
        return iter(file.bos.values() if file else ())

    def add(self, record: Record) -> None:
        """Take the next finished call into account."""
        if record.call == "close":
            self._close(record)
        if record.errno or (record.result < 0 and record.call != "ioctl"):
            return
        if record.call in ("open", "memfd_create"):
            self._opened(record.result, str(record.arguments.get("path", "memfd")))
        elif record.call == "dup":
            file = self.files.get(record.fd)
            if file is not None:
                file.fds.add(record.result)
                self.files[record.result] = file
        elif record.call == "mmap":
            self._mapped(record)
        elif record.call == "munmap":
            _length, bo = self.maps.pop(record.arguments["address"], (0, None))
            if bo is not None:
                bo.maps.pop(record.arguments["address"], None)
        elif record.call == "ioctl":
            self._asked(record)

    def _opened(self, fd: int, what: str, backing: Bo | None = None) -> None:
        self.files[fd] = File(what, {fd}, backing=backing)

    def _close(self, record: Record) -> None:
        file = self.files.pop(record.fd, None)
        if file is None:
            return
        file.fds.discard(record.fd)
        if file.fds:
            return
        for bo in file.bos.values():
            bo.ended_ns, bo.closed = record.start_ns, True
        file.bos.clear()

    def _mapped(self, record: Record) -> None:
        file = self.files.get(record.fd)
        length = record.arguments["length"]
        bo = file.backing if file else None
        if file and bo is None:
            offset = record.arguments["offset"]
            bo = next((bo for bo in file.bos.values() if bo.offset == offset), None)
        self.maps[record.result] = (length, bo)
        if bo is not None:
            bo.maps[record.result] = length

    def _asked(self, record: Record) -> None:
        block = record.after
        if record.request in GIVES_FD:
            self._opened(record.result, "dma-buf")
        if block is None:
            return
        fields = block.fields
        file = self.files.get(record.fd)
        if file is None:
            file = self.files[record.fd] = File("?", {record.fd})
        if block.struct in CREATES:
            if fields["handle"] in file.bos:
                # rknpu answers about the object again.
                return
            bo = Bo(
                record.fd,
                record.driver,
                fields["handle"],
                fields[CREATES[block.struct]],
                record.start_ns,
                domain=fields.get("iommu_domain_id"),
            )
            file.bos[bo.handle] = bo
            self.all.append(bo)
            _tell(bo, block.struct, fields)
            if record.request.startswith("IOCTL_RKNPU"):
                # The misc device's handles are descriptors.
                self._opened(bo.handle, "dma-buf", bo)
        elif block.struct in TELLS:
            known = file.bos.get(fields["handle"])
            if known is not None:
                _tell(known, block.struct, fields)
        elif block.struct in FREES:
            gone = file.bos.pop(fields["handle"], None)
            if gone is not None:
                gone.ended_ns = record.start_ns
        elif record.request == "DRM_IOCTL_PRIME_FD_TO_HANDLE":
            source = self.files.get(fields["fd"])
            if fields["handle"] not in file.bos:
                size = source.backing.size if source and source.backing else 0
                bo = Bo(record.fd, record.driver, fields["handle"], size, record.start_ns)
                file.bos[bo.handle] = bo
                self.all.append(bo)
        elif block.struct in FILES:
            self._opened(fields["fd"], "dma-buf", file.bos.get(fields.get("handle", 0)))
        elif block.struct == "rknpu_submit" and record.sent is not None:
            fence = fields["fence_fd"]
            if fence >= 0 and fence != record.sent.fields["fence_fd"]:
                self._opened(fence, "sync_file")


def _tell(bo: Bo, struct: str, fields: dict[str, int]) -> None:
    for name, role in ROLES[struct].items():
        value = fields[name]
        if value == _NOWHERE:
            continue
        if role is Role.DMA:
            bo.dma = value
        elif role is Role.OBJECT:
            bo.object = value
        elif role is Role.OFFSET:
            bo.offset = value
