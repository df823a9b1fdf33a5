# SPDX-License-Identifier: MIT
"""The service's side of buffers: it allocates, lends, loads, and takes back.

Work that takes time is done one piece after another, so answers keep the order of the requests.
Taking back is a matter of patience: a buffer that its client has mapped is asked for again at each
``tick()`` until a deadline, and then the last resort that was configured is used.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from npukit.ioctl import NpuError
from npukit.ioctl.kernel import round_to_page
from npukit.manager.backends import (
    PROT_READ,
    PROT_WRITE,
    Backend,
    FileSegment,
    Held,
    is_whole,
)
from npukit.manager.buffers import (
    LARGEST,
    BufferRequest,
    BufferState,
    BufferType,
    Grant,
    Receiver,
)
from npukit.manager.types import MOST, UNKNOWN, BufferPriority, EngineError, Importance, brief

_log = logging.getLogger(__name__)

_FIRST_TO_GO = frozenset({BufferType.CACHE, BufferType.AUXILIARY})


class LastResort(StrEnum):
    """What happens to a client that keeps a buffer mapped beyond the deadline."""

    KEEP = "keep"
    """Nothing: the service goes on asking."""
    TRUNCATE = "truncate"
    """The memory is taken away all the same where the back-end can: the client gets SIGBUS."""
    KILL = "kill"
    """The client is killed. Drivers have been wedged by that: never the first step."""


@dataclass(frozen=True)
class Heap:
    """Memory for these buffers of these devices. ``limit`` bounds it, in bytes."""

    backend: Backend
    devices: Collection[int]
    types: Collection[BufferType]
    limit: int | None = None

    def serves(self, device: int, type: BufferType) -> bool:
        return device in self.devices and type in self.types


class _Entry:
    """One request that the service knows."""

    def __init__(self, session: Session, request: BufferRequest, heap: Heap, serial: int) -> None:
        self.session = session
        self.request = request
        self.heap = heap
        self.serial = serial
        self.state = BufferState.ALLOCATING
        self.held: Held | None = None
        self.charged = 0
        self.maps = 0
        """Mappings that the client has told of."""
        self.busy = False
        """The worker fills it from a file, and gives it back if it is gone by then."""
        self.deadline: float | None = None
        """Until when it is asked for; None while nobody wants it back."""
        self.overdue = False

    @property
    def gone(self) -> bool:
        return self.state is BufferState.GONE

    @property
    def rank(self) -> tuple[int, int, bool]:
        """The greater, the sooner it goes."""
        first = self.request.type in _FIRST_TO_GO
        return int(self.session.importance), int(self.request.priority), first


class Allocator:
    """The buffers of all clients.

    ``heaps``: the first that serves a device and type is used. ``deadline``: seconds for which a
    mapped buffer is asked for. ``on_freed`` is told the bytes that came free, once for whatever
    freed them. ``submit`` runs a piece of work some time, one after another; by default a thread of
    the allocator's own does.

    ``kill`` is for LastResort.KILL: it is called with the pid that connect() was given, at most
    once for each buffer and never after the session's close(). A process that has died leaves its
    number to another: a service that cannot rule that out opens a pidfd (``os.pidfd_open``) when
    its client connects, looks it up here and signals that. Its OSError is logged.

    Synchronization: any number of threads. Receivers, ``on_freed`` and ``kill`` are called with no
    lock held.
    """

    def __init__(
        self,
        heaps: Iterable[Heap],
        *,
        deadline: float = 5.0,
        last_resort: LastResort = LastResort.KEEP,
        kill: Callable[[int], object] | None = None,
        on_freed: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        if last_resort is LastResort.KILL and kill is None:
            raise ValueError("LastResort.KILL needs kill")
        self.heaps = tuple(heaps)
        self.deadline = deadline
        self.last_resort = last_resort
        self._kill = kill
        self._on_freed = on_freed
        self._clock = clock
        self._worker: ThreadPoolExecutor | None = None
        if submit is None:
            self._worker = ThreadPoolExecutor(1, "npukit-allocator")
            submit = self._submit_to_worker
        self._submit = submit
        self._lock = threading.RLock()
        self._serials = itertools.count()
        self._sessions: list[Session] = []
        self._used = [0] * len(self.heaps)

    def _submit_to_worker(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                # A receiver's mistake; nobody looks at the future.
                _log.exception("work failed")

        assert self._worker is not None
        self._worker.submit(run)

    def connect(
        self,
        receiver: Receiver,
        principal: str,
        pid: int = 0,
        importance: Importance = UNKNOWN,
    ) -> Session:
        """A session for one client process. Its close() gives back all that the client has.

        ValueError: with LastResort.KILL a client needs a pid that is a process's (kill(2) takes 0
        for the caller's own group, -1 for everybody).
        """
        if self.last_resort is LastResort.KILL and not is_whole(pid, 1, (1 << 31) - 1):
            raise ValueError(f"LastResort.KILL needs a process's pid, not {brief(pid)}")
        session = Session(self, receiver, principal, pid, importance)
        with self._lock:
            self._sessions.append(session)
        return session

    def set_importance(self, principal: str, importance: Importance) -> None:
        """How much a principal matters now: who matters least gives first."""
        with self._lock:
            for session in self._sessions:
                if session.principal == principal:
                    session.importance = importance

    def used(self, heap: int = 0) -> int:
        """Bytes that are charged to a heap, by its place in ``heaps``."""
        with self._lock:
            return self._used[heap]

    def preempt(self, size: int, heap: int = 0) -> int:
        """Take back ``size`` bytes of a heap, from the least important buffers.

        Returns the bytes that came free at once. What is mapped follows later, or never; see
        tick(). Buffers are taken in whole, and none more than needed.
        """
        with self._lock:
            victims = self._victims(self.heaps[heap], size)
        return self._take_back(victims)

    def tick(self) -> int:
        """Ask again for what is mapped; to be called at next_deadline() and every now and then.

        Returns the bytes that came free.
        """
        with self._lock:
            wanted = [each for each in self._entries() if each.deadline is not None]
        return self._take_back(wanted)

    def next_deadline(self) -> float | None:
        """When, by the clock, the next client has had its time; None when nobody is asked."""
        with self._lock:
            times = [
                each.deadline
                for each in self._entries()
                if each.deadline is not None and not each.overdue
            ]
        return min(times, default=None)

    def close(self) -> None:
        """Finish the work, end all sessions, and close the back-ends."""
        if self._worker is not None:
            self._worker.shutdown()
        with contextlib.ExitStack() as stack:
            for heap in self.heaps:
                stack.callback(heap.backend.close)
            for session in list(self._sessions):
                stack.callback(session.close)

    # Choosing and taking.

    def _entries(self) -> list[_Entry]:
        return [each for session in self._sessions for each in session._entries.values()]

    def _victims(self, heap: Heap, size: int, worse_than: _Entry | None = None) -> list[_Entry]:
        """Those of a heap that go first, until ``size`` bytes are found; none when they are not.

        Only those of a greater rank than ``worse_than`` are looked at.
        """
        candidates = [
            each
            for each in self._entries()
            if each.heap is heap
            and each.held is not None
            and (worse_than is None or each.rank > worse_than.rank)
        ]
        candidates.sort(key=lambda each: (each.rank, each.serial), reverse=True)
        found: list[_Entry] = []
        for each in candidates:
            if size <= 0:
                break
            found.append(each)
            size -= each.charged
        return [] if size > 0 and worse_than is not None else found

    def _take_back(self, entries: Iterable[_Entry]) -> int:
        freed = 0
        doomed: set[Session] = set()
        for entry in entries:
            with self._lock:
                if not self._revoke(entry, doomed):
                    continue
                freed += self._forget(entry)
            entry.session._tell(entry.session.receiver.on_preempted, entry.request.request_id)
        self._end({session.pid for session in doomed if not session._closed})
        self._say_freed(freed)
        return freed

    def _end(self, pids: Iterable[int]) -> None:
        for pid in pids:
            assert self._kill is not None
            try:
                self._kill(pid)
            except OSError as error:
                _log.warning("process %d cannot be killed: %s", pid, error)

    def _revoke(self, entry: _Entry, doomed: set[Session]) -> bool:
        """Try to take the memory away; the lock is held."""
        if entry.gone or entry.held is None:
            return False
        now = self._clock()
        if entry.deadline is None:
            entry.deadline = now + self.deadline
        if entry.busy:
            return False
        try:
            if entry.heap.backend.counts_maps or not entry.maps:
                entry.held.revoke()
                return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                _log.warning("request %s: %s", entry.request, error)
        if now < entry.deadline:
            return False
        if not entry.overdue:
            entry.overdue = True
            _log.warning("%s keeps %s mapped", entry.session.principal, entry.request)
            if self.last_resort is LastResort.KILL:
                doomed.add(entry.session)
        if self.last_resort is not LastResort.TRUNCATE:
            return False
        try:
            return entry.held.force()
        except OSError as error:
            _log.warning("request %s: %s", entry.request, error)
            return False

    def _forget(self, entry: _Entry) -> int:
        """Take an entry out of the books; the bytes that were charged. The lock is held."""
        entries, request_id = entry.session._entries, entry.request.request_id
        if entries.get(request_id) is entry:
            del entries[request_id]
        entry.state = BufferState.GONE
        charged, entry.charged = entry.charged, 0
        self._used[self.heaps.index(entry.heap)] -= charged
        held, entry.held = entry.held, None
        if held is not None and not entry.busy:
            held.close()
        return charged

    def _say_freed(self, size: int) -> None:
        if size and self._on_freed is not None:
            self._on_freed(size)

    # Work.

    def _charge(self, entry: _Entry) -> int:
        """Charge a request to its heap, making room if need be; 0 or why not."""
        size = round_to_page(int(entry.request.size))
        heap = entry.heap
        index = self.heaps.index(heap)
        for attempt in range(2):
            with self._lock:
                missing = 0 if heap.limit is None else self._used[index] + size - heap.limit
                if missing <= 0:
                    entry.charged = size
                    self._used[index] += size
                    return 0
                victims = self._victims(heap, missing, worse_than=entry)
            if not victims:
                return errno.ENOMEM
            if attempt == 0:
                self._take_back(victims)
        # They have been asked; the client may come again.
        return errno.EAGAIN

    def _allocate(self, entry: _Entry) -> None:
        request, session = entry.request, entry.session
        if entry.gone:
            return
        held: Held | None = None
        grant: Grant | None = None
        code = (
            errno.EIO
        )  # of a mistake of ours or of a receiver: the client is answered all the same
        try:
            code = self._charge(entry)
            if code == 0:
                name = f"npubuf-{session.pid}-{request.request_id}"
                backend = entry.heap.backend
                code = errno.EIO
                held = backend.alloc(request.size, name, request.protection, request.segment)
                grant = Grant(held.share(), held.size, backend.counts_maps)
                code = 0
        except (OSError, MemoryError) as error:
            code = getattr(error, "errno", None) or errno.ENOMEM
            _log.info("request %s: %s", request, error)
        finally:
            self._allocated(entry, held, grant, code)

    def _allocated(self, entry: _Entry, held: Held | None, grant: Grant | None, code: int) -> None:
        """Enter in the books how an allocation went, and tell the client."""
        session = entry.session
        with self._lock:
            alive = not entry.gone
            if alive and grant is not None:
                entry.held, entry.state = held, BufferState.ALLOCATED
            else:
                self._take_back_grant(entry, grant)
                grant = None
                self._forget(entry)
                if held is not None:
                    held.close()
        if alive:
            session._tell(session.receiver.on_get_buffer, entry.request.request_id, grant, code)

    def _take_back_grant(self, entry: _Entry, grant: Grant | None) -> None:
        """Nobody is left to give it to."""
        if grant is not None:
            entry.heap.backend.kernel.close(grant.fd)

    def _load(self, entry: _Entry, segment: FileSegment) -> None:
        with self._lock:
            held = entry.held
            if entry.state is not BufferState.LOADING or held is None:
                return
            entry.busy = True
        moves = held.moves
        grant: Grant | None = None
        code = errno.EIO
        try:
            code = self._fill(entry, held, segment)
            if held.moves != moves and not held.lost:
                grant = Grant(held.share(), held.size, entry.heap.backend.counts_maps)
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            if held.moves != moves and grant is None:
                # The client's own descriptor is empty, and there is no other to give it.
                held.close()
            self._loaded(entry, held, grant, code)

    def _fill(self, entry: _Entry, held: Held, segment: FileSegment) -> int:
        """Load a buffer; 0 or why not."""
        try:
            if entry.maps and not entry.request.protection & PROT_WRITE:
                raise NpuError(errno.EBUSY, hint="it is mapped")
            held.load(segment)
        except OSError as error:
            _log.info("load of %s: %s", entry.request, error)
            return error.errno or errno.EIO
        return 0

    def _loaded(self, entry: _Entry, held: Held, grant: Grant | None, code: int) -> None:
        """Enter in the books how a load went, and tell the client."""
        session, request_id = entry.session, entry.request.request_id
        freed = 0
        with self._lock:
            entry.busy = False
            if entry.gone:
                self._take_back_grant(entry, grant)
                held.close()
                return
            lost = held.lost
            if lost:
                freed = self._forget(entry)
            else:
                entry.state = BufferState.ALLOCATED
        session._tell(session.receiver.on_load, request_id, code, grant)
        if lost:
            session._tell(session.receiver.on_preempted, request_id)
            self._say_freed(freed)


class Session:
    """One client process at the allocator; the Service that its BufferClient talks to.

    File descriptors in segments stay the caller's: the session works with copies.
    """

    def __init__(
        self,
        allocator: Allocator,
        receiver: Receiver,
        principal: str,
        pid: int,
        importance: Importance,
    ) -> None:
        self.allocator = allocator
        self.receiver = receiver
        self.principal = principal
        self.pid = pid
        self.importance = importance
        self._entries: dict[int, _Entry] = {}
        self._closed = False

    def _tell(self, method: Callable[..., object], *arguments: object) -> None:
        """Call the receiver. A client that cannot be told is about to be found dead."""
        try:
            method(*arguments)
        except OSError as error:
            _log.info("%s cannot be told: %s", self.principal, error)

    def is_supported(self, pairs: Sequence[tuple[int, BufferType]]) -> list[bool | NpuError]:
        return [self._supports(device, kind) for device, kind in pairs]

    def _supports(self, device: int, type: BufferType) -> bool | NpuError:
        if not is_whole(device) or not is_whole(type, 1) or type not in set(BufferType):
            return NpuError(errno.EINVAL, hint=f"device {brief(device)}, buffer type {brief(type)}")
        return self._heap(device, type) is not None

    def _heap(self, device: int, type: BufferType) -> Heap | None:
        heaps = self.allocator.heaps
        return next((heap for heap in heaps if heap.serves(device, type)), None)

    def get_buffers(self, requests: Sequence[BufferRequest]) -> None:
        if not all(isinstance(request, BufferRequest) for request in requests):
            raise NpuError(errno.EINVAL, hint="what was sent is no buffer request")
        for request in requests:
            code = self._get_buffer(request)
            if code:
                self._tell(self.receiver.on_get_buffer, request.request_id, None, code)

    def _get_buffer(self, request: BufferRequest) -> int:
        """Take a request in; 0, or why not."""
        if (
            not isinstance(self._supports(request.device, request.type), bool)
            or not is_whole(request.request_id, -MOST)
            or not is_whole(request.size, 1, LARGEST)
            or not is_whole(request.protection, 0, PROT_READ | PROT_WRITE)
            or not _is_priority(request.priority)
            or not (request.segment is None or _is_segment(request.segment))
        ):
            return errno.EINVAL
        heap = self._heap(request.device, request.type)
        if heap is None:
            return errno.ENOSYS
        allocator = self.allocator
        with allocator._lock:
            if self._closed:
                return errno.ESHUTDOWN
            if request.request_id in self._entries:
                return errno.EINVAL
            try:
                copy = _own_file(request.segment)
            except OSError as error:
                return error.errno or errno.EBADF
            entry = _Entry(self, replace(request, segment=copy), heap, next(allocator._serials))
            self._entries[request.request_id] = entry
        self._work(copy, lambda: allocator._allocate(entry))
        return 0

    def _work(self, segment: FileSegment | None, work: Callable[[], None]) -> None:
        """Have it done some time, and close our copy of the file then."""

        def run() -> None:
            try:
                work()
            finally:
                if segment is not None:
                    os.close(segment.fd)

        self.allocator._submit(run)

    def put_buffers(self, request_ids: Sequence[int]) -> None:
        """Free buffers; those that are known go even when the call is refused for the others."""
        freed, missing = 0, []
        with self.allocator._lock:
            for request_id in request_ids:
                entry = self._find(request_id)
                if entry is None:
                    missing.append(request_id)
                else:
                    freed += self.allocator._forget(entry)
        self.allocator._say_freed(freed)
        if missing:
            raise NpuError(errno.EINVAL, hint=f"no buffer {', '.join(map(brief, missing))}")

    def load(self, request_id: int, segment: FileSegment) -> None:
        allocator = self.allocator
        with allocator._lock:
            entry = self._find(request_id)
            if entry is None or entry.state is not BufferState.ALLOCATED:
                raise NpuError(errno.EINVAL, hint=f"buffer {brief(request_id)} is not allocated")
            if not _is_segment(segment):
                raise NpuError(errno.EINVAL, hint=f"{brief(segment)} is no part of a file")
            try:
                copy = _own_file(segment)
            except OSError as error:
                raise NpuError(error.errno or errno.EBADF, hint="the segment's file") from error
            assert copy is not None
            entry.state = BufferState.LOADING
        self._work(copy, lambda: allocator._load(entry, copy))

    def set_priority(self, request_id: int, priority: BufferPriority) -> None:
        if not _is_priority(priority):
            raise NpuError(
                errno.EINVAL, hint=f"{brief(priority)} is no buffer priority (0 to 1000)"
            )
        with self.allocator._lock:
            entry = self._known(request_id)
            entry.request = replace(entry.request, priority=priority)

    def mapped(self, request_id: int) -> None:
        with self.allocator._lock:
            entry = self._find(request_id)
            if entry is None or entry.held is None:
                raise NpuError(errno.ENOENT, hint=f"buffer {brief(request_id)} was taken back")
            if entry.deadline is not None:
                raise NpuError(errno.EBUSY, hint=f"buffer {request_id} is being taken back")
            entry.maps += 1

    def unmapped(self, request_id: int) -> None:
        entry = self._find(request_id)
        if entry is not None and entry.maps:  # what was never told of is not taken off
            entry.maps -= 1

    def _find(self, request_id: int) -> _Entry | None:
        return self._entries.get(request_id) if is_whole(request_id, -MOST) else None

    def _known(self, request_id: int) -> _Entry:
        entry = self._find(request_id)
        if entry is None:
            raise NpuError(errno.EINVAL, hint=f"no buffer {brief(request_id)}")
        return entry

    def preempt(self, request_id: int) -> int:
        """Take one buffer back; the bytes that came free at once. NpuError EINVAL."""
        with self.allocator._lock:
            entry = self._known(request_id)
            if entry.held is None:
                # Still on its way: what arrives will be thrown away.
                self.allocator._forget(entry)
        if entry.gone:
            self._tell(self.receiver.on_preempted, request_id)
            return 0
        return self.allocator._take_back([entry])

    def close(self) -> None:
        """The client is gone: free all that it has, without a word to it. Idempotent."""
        allocator = self.allocator
        with allocator._lock:
            if self._closed:
                return
            self._closed = True
            allocator._sessions.remove(self)
            freed = sum(allocator._forget(entry) for entry in list(self._entries.values()))
        allocator._say_freed(freed)


def _own_file(segment: FileSegment | None) -> FileSegment | None:
    """The same segment of a descriptor of our own."""
    return None if segment is None else replace(segment, fd=os.dup(segment.fd))


def _is_segment(value: object) -> bool:
    return isinstance(value, FileSegment) and value.problem() is None


def _is_priority(value: object) -> bool:
    """Is it one that can be compared with others? A client may have sent anything."""
    try:
        BufferPriority(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, EngineError):
        return False
    return True
