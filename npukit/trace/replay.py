# SPDX-License-Identifier: MIT
"""A recorded trace, said again to another kernel, and its answers compared.

What may differ, and how it is carried over:

- descriptors, handles, the driver's names of objects, map offsets and device addresses: those of
  the same buffer object or file here stand in for the recorded ones, also within task tables and
  register commands;
- addresses of the process: what they pointed to is laid out anew; where it could not be read, the
  pointer is a bad one again. What pointed into a buffer's mapping points into the one here; a heap
  of amdxdna is mapped at a multiple of 64 MiB as its driver needs it, and packets are changed to
  the addresses here;
- times: a wait that was recorded as done is given at least ten seconds, and must be done here; one
  that was not done in time may be done here, else its deadline keeps its distance to the call;
  durations are not compared;
- of a block's two interrupt bits of an RK3588 either stands for both: which of its register groups
  ends last is chance where several cores run.

All else must be equal: errno, value, every other field that came back, and the memory that the
kernel filled. Calls are made one after another in the order in which they ended, so nothing waits
for a call that comes later; what may wait for other calls, as a thread does that serves a DSP, is
begun where it began, on a thread of its own. Where the trace has what buffer objects held, jobs run
on that and what they write is compared; else buffer objects hold what jobs are made of and zeros.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit import _fast
from npukit.abi.rknpu import DRM_IOCTL_RKNPU_MEM_MAP, rknpu_task
from npukit.devices.amdxdna import HEAP_CHUNK, HeapPlaces
from npukit.ioctl import Kernel, NpuError, Struct, Union
from npukit.programs.rk3588.registers import PC, REGISTERS

from .buffers import Bo, Buffers
from .contents import digest
from .follow import LIMIT, blocks, extent, pointer_names, request_of
from .meaning import GIVES_FD, NOWHERE, ROLES, WAITS_FOR_OTHERS, Role
from .record import PACKET, REGCMD, Block, Chunk, Key, Memory, Record
from .recorder import Recorder

PATIENCE = 10.0
"""Seconds that a wait gets here if it was recorded as done: simulated NPUs are slower."""
_NOT_DONE = frozenset({"EBUSY", "ETIMEDOUT", "ETIME"})
_XDNA = "amdxdna_accel_driver"
_MAP_FIXED, _MAP_FIXED_NOREPLACE = 0x10, 0x100000
_BAD_POINTER = 8
"""Within the page that no process has."""
_DUPLICATES = frozenset({fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC})
_ADDRESSES = frozenset(
    offset
    for offset, register in REGISTERS.items()
    if str(register).endswith(("_BASE_ADDR", "FEATURE_DATA_ADDR", "DCOMP_ADDR0"))
    or register is PC.BASE_ADDRESS
)
"""Offsets of the registers that hold device addresses."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a call answered otherwise: its place in the trace, and what of it."""

    index: int
    record: Record
    what: str
    recorded: Any
    found: Any

    def __str__(self) -> str:
        name = self.record.request or self.record.call
        return (
            f"call {self.index}, {name}: {self.what} is {self.found!r}, was recorded as "
            f"{self.recorded!r}"
        )


class _Waiting(threading.Thread):
    """A call that may wait for others. ``keep`` is what its argument points to."""

    def __init__(self, ask: Callable[[], object], keep: list[Any]) -> None:
        super().__init__(name="replayed call", daemon=True)
        self._ask = ask
        self._kept = keep
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._ask()


class _CannotPlay(Exception):
    """The record does not hold what it takes."""


_MALFORMED = (_CannotPlay, TypeError, ValueError, OverflowError, KeyError, AttributeError)
"""What a record that nobody recorded so may lead to."""


def opened(records: Sequence[Record]) -> dict[str, str]:
    """The nodes that a trace opens and the driver that each turned out to have ("": unknown)."""
    found: dict[str, str] = {}
    for index, record in enumerate(records):
        if record.call != "open" or record.errno:
            continue
        driver = record.driver
        for later in records[index + 1 :]:
            same = later.file == (record.pid, record.result)
            if driver or (later.call == "close" and same):
                break
            if same and later.driver not in ("", "drm"):
                driver = later.driver
        path = record.arguments["path"]
        found[path] = found.get(path) or driver
    return found


def replay(
    records: Sequence[Record],
    kernel: Kernel,
    nodes: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> list[Difference]:
    """Make the calls of a trace on ``kernel``; what was answered otherwise.

    ``nodes`` says which node stands for a recorded one here. All that the trace leaves open is
    closed at the end. ``patience``: seconds that what was recorded as done is given.
    """
    player = _Player(kernel, nodes or {}, patience)
    try:
        for index, begins in _in_order(records):
            if begins:
                player.begin(index, records[index])
            else:
                player.play(index, records[index])
    finally:
        player.close()
    return player.differences


def _in_order(records: Sequence[Record]) -> Iterator[tuple[int, bool]]:
    """The place of each record in the order of ends, and with True, where it began, that of each
    that may wait for what comes before its end."""
    waiting = [
        (record.start_ns, index)
        for index, record in enumerate(records)
        if record.request in WAITS_FOR_OTHERS
    ]
    waiting.sort(reverse=True)
    for index, record in enumerate(records):
        while waiting and waiting[-1] <= (record.start_ns + record.duration_ns, index):
            yield waiting.pop()[1], True
        yield index, False


class _Player:
    def __init__(self, kernel: Kernel, nodes: Mapping[str, str], patience: float) -> None:
        self._patience = patience
        self.differences: list[Difference] = []
        self._nodes = nodes
        self._answers: dict[int, Record] = {}
        """Thread -> what its newest call answered."""
        self._recorder = Recorder(lambda answer: self._answers.update({answer.thread: answer}))
        self._kernel = self._recorder.kernel(kernel)
        self._theirs = Buffers()
        self._ours = self._recorder.buffers
        self._same: dict[Bo, Bo] = {}
        """Recorded buffer object -> the one here."""
        self._fds: dict[Key, int] = {}
        """Recorded process and descriptor -> the descriptor here."""
        self._maps: dict[Key, _fast.Mapping] = {}
        """Recorded process and address -> the mapping here."""
        self._chunks: dict[str, bytes] = {}
        self._moved: dict[Bo, list[tuple[int, int]]] = {}
        """Recorded buffer object -> (start, end) of what was changed to the addresses here."""
        self._heaps: dict[Key, HeapPlaces] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._record: Record
        self._domain: int | None = None
        self._keep: list[Any] = []
        self._own: set[Key] = set()
        """Recorded process and address of mappings of no file."""
        self._stuck: list[_Waiting] = []

    def begin(self, index: int, record: Record) -> None:
        """Make a call on a thread of its own: it may wait for calls that end before it."""
        self._record = record
        self._keep.clear()
        with self._told(index, record):
            fd = self._fd(record.file)
            request, argument = self._request(record)
            ask = functools.partial(self._kernel.ioctl, fd, request, argument)
            self._waiting[index] = _Waiting(ask, list(self._keep))

    def play(self, index: int, record: Record) -> None:
        """Make one call, or see one through that has begun, and compare."""
        self._record = record
        self._keep.clear()
        self._answers.pop(threading.get_native_id(), None)
        thread = threading.get_native_id()
        theirs, ours = len(self._theirs.all), len(self._ours.all)
        with self._told(index, record):
            if record.request in WAITS_FOR_OTHERS:
                waiting = self._waiting.pop(index, None)
                if waiting is not None:
                    thread = waiting.native_id or 0
                    waiting.join(self._patience)
                    if waiting.is_alive():
                        self._stuck.append(waiting)
                        raise _CannotPlay(f"it has not ended after {self._patience:.0f} s")
            else:
                self._call(record)
            self._theirs.add(record)
        new = self._ours.all[ours:]
        self._same.update(zip(self._theirs.all[theirs:], new, strict=False))
        answer = self._answers.pop(thread, None)
        if answer is not None:
            self._learn(record, answer)
            self.differences += [
                Difference(index, record, *what) for what in self._compare(record, answer)
            ]

    @contextlib.contextmanager
    def _told(self, index: int, record: Record) -> Iterator[None]:
        """What cannot be made of the record is a difference."""
        try:
            yield
        except _MALFORMED as error:
            what = f"not: {error!r}" if not isinstance(error, _CannotPlay) else f"not: {error}"
            self.differences.append(Difference(index, record, "the call", "made", what))

    def close(self) -> None:
        """Give back all that the trace left."""
        for mapping in self._maps.values():
            self._kernel.munmap(mapping)
        self._maps.clear()
        for places in self._heaps.values():
            places.release()
        for fd in self._fds.values():
            with contextlib.suppress(OSError):
                self._kernel.close(fd)
        for waiting in (*self._waiting.values(), *self._stuck):
            # Without its file nothing keeps it.
            waiting.join(self._patience)
        self._recorder.close()

    # Making the call.

    def _call(self, record: Record) -> None:
        kernel, given = self._kernel, record.arguments
        # A descriptor that came from another process is one of its own here, too.
        fd = self._fd((given.get("pid", record.pid), record.fd))
        # What goes wrong is in the answer's record, like all else.
        with contextlib.suppress(OSError, RuntimeError):
            if record.call == "ioctl":
                kernel.ioctl(fd, *self._request(record))
            elif record.call == "open":
                kernel.open(self._nodes.get(given["path"], given["path"]), given["flags"])
            elif record.call == "mmap":
                self._map(fd, record)
            elif record.call == "munmap" and (record.pid, given["address"]) in self._own:
                self._own.discard((record.pid, given["address"]))
            elif record.call == "munmap":
                found = self._maps.pop((record.pid, given["address"]), None)
                if found is None:
                    raise _CannotPlay("nothing is mapped there")
                kernel.munmap(found)
            elif record.call == "poll":
                pairs = [(self._fd((record.pid, one)), events) for one, events in given["fds"]]
                if any(here < 0 for here, _events in pairs):
                    raise _CannotPlay("a descriptor is not there")
                kernel.poll(pairs, self._patience if record.result > 0 else 0)
            elif record.call == "fcntl":
                kernel.fcntl(fd, given["command"], given["arg"])
            elif record.call in ("close", "dup", "fstat"):
                getattr(kernel, record.call)(fd)
            elif record.call == "lseek":
                kernel.lseek(fd, given["offset"], given["whence"])
            elif record.call == "ftruncate":
                kernel.ftruncate(fd, given["length"])
            elif record.call == "memfd_create":
                kernel.memfd_create(given["name"], given["flags"])
            else:
                raise _CannotPlay("there is no such call")

    def _map(self, fd: int, record: Record) -> None:
        given, key = record.arguments, (record.pid, record.result)
        if given["flags"] & _fast.MAP_ANONYMOUS:
            # The program's own memory, with which it may have steered where the kernel maps.
            self._own.add(key)
            return
        length, flags = given["length"], given["flags"] & ~(_MAP_FIXED | _MAP_FIXED_NOREPLACE)
        offset = self._offset(record.file, given["offset"])
        with contextlib.ExitStack() as stack:
            places = None
            heap = record.driver == _XDNA and not record.errno and length > 0
            if heap and record.result % HEAP_CHUNK == length % HEAP_CHUNK == 0:
                # The driver takes heaps in these places only.
                places = self._heaps.setdefault(
                    record.file, HeapPlaces(self._kernel.kernel, "", 8 * HEAP_CHUNK)
                )
                try:
                    stack.enter_context(places.aimed(length))
                except NpuError as error:
                    raise _CannotPlay(f"{error.hint}") from None
            mapping = self._kernel.mmap(fd, length, offset, given["prot"], flags)
            if places is not None:
                places.took(mapping.address, length)
        if not record.errno:
            self._maps[key] = mapping

    def _request(self, record: Record) -> tuple[Any, Any]:
        """An ioctl's request and argument."""
        request = request_of(record.driver, record.number)
        if request is None:
            if record.sent is not None:
                raise _CannotPlay(f"{record.driver} has no request {record.number:#x}")
            return record.number, None
        if record.sent is None:
            if request.struct is not None:
                return request, _BAD_POINTER if "arg" in record.arguments else None
            return request, record.arguments.get("arg")
        self._domain = record.sent.fields.get("iommu_domain_id")
        if request.struct is None or request.struct.__name__ != record.sent.struct:
            raise _CannotPlay(f"{request.name} takes no {record.sent.struct}")
        self._fill_buffers(record.sent)
        return request, self._build(record.sent, request.struct)

    def _build(self, block: Block, ctype: Any) -> Any:
        """A structure like the recorded one; what it points to is kept until the next call."""
        if not issubclass(ctype, (Struct, Union)):
            return memoryview(bytearray(ctype(block.fields["value"])))
        if ctype._tail_:
            value = ctype.with_tail(len(block.fields[ctype._tail_[0]]))
        else:
            value = ctype()
        try:
            self._set(value, block.fields)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise _CannotPlay(f"{block.struct}: {error}") from None
        self._point(value, block, "")
        return value

    def _set(self, value: Any, fields: dict[str, Any]) -> None:
        roles = ROLES.get(type(value).__name__, {})
        known = value.fields()
        for name, given in fields.items():
            if name not in known:
                raise _CannotPlay(f"{type(value).__name__} has no field {name}")
            if isinstance(given, dict):
                self._set(getattr(value, name), given)
            elif isinstance(given, list):
                array = getattr(value, name)
                for index, element in enumerate(given):
                    if isinstance(element, dict):
                        self._set(array[index], element)
                    else:
                        array[index] = element
            else:
                role = None if name in value._pointers_ else roles.get(name)
                setattr(value, name, self._here(role, given))

    def _point(self, value: Any, block: Block, prefix: str) -> None:
        """Lay out anew what the pointers of a structure point to."""
        roles = ROLES.get(block.struct, {})
        for name, pointer in value._pointers_.items():
            if getattr(value, name):
                memory = block.memory.get(prefix + name)
                address = self._lay_out(value, pointer, memory, roles.get(name))
                setattr(value, name, address)
        for name in value.fields():
            inner = getattr(value, name)
            if isinstance(inner, (Struct, Union)):
                self._point(inner, block, f"{prefix}{name}.")

    def _lay_out(self, value: Any, pointer: Any, memory: Memory | None, role: Role | None) -> int:
        place = self._in_mapping(memory)
        if memory is not None and place is not None:
            mapping, offset = place
            if isinstance(memory.content, bytes):
                memoryview(mapping)[offset : offset + len(memory.content)] = memory.content
                return mapping.address + offset
        count, stride = extent(value, pointer)
        if pointer.target is ctypes.c_char and pointer.count is None:
            count = memory.count + 1 if memory else 1
        size = count * stride
        if memory is not None and memory.content is None:
            return _BAD_POINTER
        content = memory.content if memory else None
        if size > LIMIT or (memory and content is not None and len(content) < memory.count):
            raise _CannotPlay(f"{size} bytes are more than is recorded")
        data = bytearray(max(size, 1))
        if isinstance(content, bytes):
            data[: len(content)] = content
        else:
            for index, element in enumerate(content or ()):
                if isinstance(element, Block):
                    image = bytes(self._build(element, pointer.target))[:stride]
                elif isinstance(element, int):
                    image = bytes(pointer.target(self._here(role, element)))
                else:
                    raise _CannotPlay(f"{element!r} where a number or a structure belongs")
                data[index * stride : index * stride + len(image)] = image
        buffer = (ctypes.c_char * len(data)).from_buffer(data)
        self._keep.append(buffer)
        return ctypes.addressof(buffer)

    def _in_mapping(self, memory: Memory | None) -> tuple[_fast.Mapping, int] | None:
        """The mapping here of the one that a pointer led into, and where in it. None: into none."""
        if memory is not None:
            for (pid, start), mapping in self._maps.items():
                offset = memory.address - start
                if pid == self._record.pid and 0 <= offset <= mapping.length - memory.count:
                    return mapping, offset
        return None

    def _fill_buffers(self, block: Block) -> None:
        """Write the recorded contents, and the task tables, register commands and packets of a job,
        where they stand here."""
        for chunk in block.data:
            bo = self._of_chunk(chunk)
            content = self._content(chunk)
            self._place(bo, chunk.offset, chunk.offset + len(content))[:] = content
        for inner in blocks(block):
            for name, memory in inner.memory.items():
                if memory.content is None:
                    continue
                if memory.type == REGCMD:
                    bo = self._theirs.at(self._record.file, memory.address, self._domain)
                    words = [self._word(word) for word in memory.content if isinstance(word, int)]
                    image = b"".join(word.to_bytes(8, "little") for word in words)
                    self._write(bo, memory.address - (bo.dma or 0) if bo else 0, image)
                elif memory.type == PACKET and isinstance(memory.content, bytes):
                    bo = self._theirs.of(self._record.file, block.fields["cmd_handles"])
                    self._write(bo, 0, self._packet(memory.content))
                elif memory.type == "rknpu_task" and name == "task_obj_addr":
                    bo = self._theirs.named(self._record.file, memory.address)
                    rows = [row for row in memory.content if isinstance(row, Block)]
                    self._write(bo, 0, b"".join(bytes(self._build(r, rknpu_task)) for r in rows))

    def _of_chunk(self, chunk: Chunk) -> Bo | None:
        """The recorded buffer object that it is a part of."""
        record = self._record
        if record.call == "mmap":
            return self._theirs.maps.get((record.pid, record.result), (0, None))[1]
        if record.request in WAITS_FOR_OTHERS:
            file = self._theirs.files.get((record.pid, chunk.handle))
            return file.backing if file else None
        return self._theirs.of(record.file, chunk.handle)

    def _stand_in(self, bo: Bo) -> Bo | None:
        """The buffer object here for a recorded one."""
        if bo in self._same:
            return self._same[bo]
        file = self._ours.files.get((os.getpid(), self._fd((bo.file[0], bo.handle))))
        return file.backing if file and file.alone else None

    def _content(self, chunk: Chunk) -> bytes:
        """A chunk's bytes, which it or an earlier one of its digest has."""
        if chunk.content is not None:
            if digest(chunk.content) != chunk.digest:
                raise _CannotPlay(f"chunk {chunk.digest} is damaged")
            self._chunks[chunk.digest] = chunk.content
        if chunk.digest not in self._chunks:
            raise _CannotPlay("the buffers held more than is recorded")
        return self._chunks[chunk.digest]

    def _write(self, bo: Bo | None, offset: int, data: bytes) -> None:
        """What holds addresses, and so is not what was recorded."""
        self._place(bo, offset, offset + len(data))[:] = data
        if bo is not None:
            self._moved.setdefault(bo, []).append((offset, offset + len(data)))

    def _place(self, bo: Bo | None, offset: int, end: int) -> memoryview:
        """Memory here of a recorded buffer object."""
        here = self._stand_in(bo) if bo is not None else None
        for mapping in self._maps.values():
            if here is not None and 0 <= offset <= end <= here.maps.get(mapping.address, 0):
                return memoryview(mapping)[offset:end]
        if here is not None and 0 <= offset <= end <= here.size:
            # The program's own mapping was not recorded. This one stays to the end: what the job
            # leaves is looked at through it.
            fd, place = here.file[1], here.offset
            for file, known in self._ours.files.items():
                if known.backing is here:
                    fd, place = file[1], 0
            with contextlib.suppress(OSError):
                if place is None and here.driver == "rknpu":
                    asked = DRM_IOCTL_RKNPU_MEM_MAP(self._kernel, fd, handle=here.handle)
                    place = here.offset = asked.offset
                if place is None:
                    raise _CannotPlay("the buffer object is not mapped here")
                mapping = self._kernel.mmap(fd, here.size, place)
                self._maps[0, mapping.address] = mapping
                return memoryview(mapping)[offset:end]
        raise _CannotPlay("the job's buffer object is not mapped here")

    def _outputs(self, block: Block) -> Iterator[tuple[str, Any, Any]]:
        """The first byte of each chunk that differs."""
        for chunk in block.data:
            bo = self._of_chunk(chunk)
            try:
                theirs = self._content(chunk)
                end = chunk.offset + len(theirs)
                ours = bytes(self._place(bo, chunk.offset, end))
            except _CannotPlay as error:
                yield f"what buffer {chunk.handle} holds", "compared", f"not: {error}"
                continue
            if ours == theirs:
                continue
            moved = self._moved.get(bo, []) if bo is not None else []
            for at, (before, now) in enumerate(zip(theirs, ours, strict=True), chunk.offset):
                if before != now and not any(start <= at < stop for start, stop in moved):
                    yield f"byte {at} of buffer {chunk.handle}", before, now
                    break

    # From recorded values to those here.

    def _fd(self, file: Key) -> int:
        """Descriptors that the trace did not open are none of ours."""
        return self._fds.get(file, -1)

    def _here(self, role: Role | None, value: int) -> int:
        """What stands for a recorded value; the value itself where nothing is known of it."""
        file = self._record.file
        bo: Bo | None = None
        if role is Role.FD:
            return self._fds.get((self._record.pid, value), min(value, 0))
        if role is Role.DEADLINE:
            return self._deadline(value)
        if role is Role.DMA:
            return self._address(value)
        if role is Role.HANDLE:
            bo = self._theirs.of(file, value)
            here = self._same.get(bo) if bo else None
            return here.handle if here else value
        if role is Role.OBJECT:
            bo = self._theirs.named(file, value)
            here = self._same.get(bo) if bo else None
            return here.object if here and here.object is not None else value
        return value

    def _deadline(self, value: int) -> int:
        now = self._kernel.kernel.monotonic_ns()
        distance = value - self._record.start_ns
        if not self._record.errno:
            return now + max(distance, int(self._patience * 1e9))
        # 0 and negative deadlines ask without waiting.
        return max(now + distance, 1) if value > 0 else value

    def _address(self, value: int) -> int:
        bo = self._theirs.at(self._record.file, value, self._domain)
        here = self._same.get(bo) if bo else None
        if bo is None or here is None or bo.dma is None or here.dma is None:
            return value
        return value - bo.dma + here.dma

    def _offset(self, file: Key, offset: int) -> int:
        known = self._theirs.files.get(file)
        for bo in known.bos.values() if known else ():
            here = self._same.get(bo)
            if bo.offset == offset and here is not None and here.offset is not None:
                return here.offset
        return offset

    def _word(self, word: int) -> int:
        """A register command with the device address that it may hold carried over."""
        register, value = word & 0xFFFF, word >> 16 & 0xFFFFFFFF
        if register not in _ADDRESSES or (register == PC.BASE_ADDRESS.offset and value == 0):
            return word
        return word & ~(0xFFFFFFFF << 16) | (self._address(value) & 0xFFFFFFFF) << 16

    def _packet(self, packet: bytes) -> bytes:
        """A packet with the device addresses in it carried over: they stand at any word."""
        image, at = bytearray(packet), 8
        while at + 8 <= len(image):
            value = int.from_bytes(image[at : at + 8], "little")
            here = self._address(value)
            image[at : at + 8] = here.to_bytes(8, "little")
            at += 4 if here == value else 8
        return bytes(image)

    # Comparing.

    def _learn(self, record: Record, answer: Record) -> None:
        """Which new descriptors stand for which."""
        if record.call == "close":
            self._fds.pop(record.file, None)
        if answer.errno or answer.result < 0:
            return
        if _gives_fd(record):
            self._fds[record.pid, record.result] = answer.result
        after, here = record.after, answer.after
        if record.call != "ioctl" or after is None or here is None or record.sent is None:
            return
        roles = ROLES.get(after.struct, {})
        names = [name for name, role in roles.items() if role is Role.FD]
        if after.struct == "rknpu_mem_create" and record.request.startswith("IOCTL_"):
            names.append("handle")
        for name in names:
            if after.fields[name] != record.sent.fields[name]:
                self._fds[record.pid, after.fields[name]] = here.fields[name]

    def _compare(self, record: Record, answer: Record) -> Iterable[tuple[str, Any, Any]]:
        if record.errno != answer.errno:
            roles = ROLES.get(record.sent.struct, {}) if record.sent else {}
            waits = Role.DEADLINE in roles.values()
            if not (waits and record.errno in _NOT_DONE and not answer.errno):
                yield "errno", record.errno or "none", answer.errno or "none"
            return
        if record.call == "poll" and record.result > 0 and answer.result == 0:
            yield "the number of ready descriptors", record.result, 0
        compared = record.call not in ("mmap", "poll") and not _gives_fd(record)
        if compared and record.result != answer.result:
            yield "the value", record.result, answer.result
        if record.after is not None and answer.after is not None:
            pointers = pointer_names(request_of(record.driver, record.number))
            yield from _compare(record.after, answer.after, pointers, "")
        if record.received is not None:
            yield from self._outputs(record.received)


def _gives_fd(record: Record) -> bool:
    if record.call == "fcntl":
        return record.arguments["command"] in _DUPLICATES
    return record.call in ("open", "dup", "memfd_create") or record.request in GIVES_FD


def _compare(
    recorded: Block, found: Block, pointers: Mapping[str, frozenset[str]], where: str
) -> Iterable[tuple[str, Any, Any]]:
    """The fields and filled memory that differ, but for what may."""
    roles = ROLES.get(recorded.struct, {})
    for name, value in recorded.fields.items():
        here = found.fields.get(name)
        if name in pointers.get(recorded.struct, ()):
            same = (value == 0) == (here == 0)
        elif roles.get(name) is Role.INTERRUPTS:
            same = isinstance(here, int) and _either_group(value) == _either_group(here)
        elif roles.get(name) in (Role.DMA, Role.USER):
            same = (value == NOWHERE) == (here == NOWHERE)
        else:
            same = name in roles or value == here
        if not same:
            yield where + name, value, here
    for name, memory in recorded.memory.items():
        theirs, other = memory.content, found.memory.get(name)
        ours = other.content if other else None
        if memory.type in (REGCMD, PACKET) or theirs is None:
            continue
        if ours is None or isinstance(theirs, bytes) or len(ours) != len(theirs):
            if theirs != ours:
                yield f"what {where}{name} points to", theirs, ours
            continue
        for index, (before, now) in enumerate(zip(theirs, ours, strict=True)):
            place = f"{where}{name}[{index}]"
            if isinstance(before, Block) and isinstance(now, Block):
                yield from _compare(before, now, pointers, place + ".")
            elif before != now and name not in roles:
                yield place, before, now


def _either_group(bits: int) -> int:
    return (bits | bits >> 1) & 0x15555
