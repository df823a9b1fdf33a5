# SPDX-License-Identifier: MIT
"""What a trace comes to: requests, buffer objects, latencies, and what was not given back."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .buffers import Bo, Buffers
from .record import Block, Key, Record, escaped

_SUBMITS = frozenset(
    {
        "DRM_IOCTL_RKNPU_SUBMIT",
        "IOCTL_RKNPU_SUBMIT",
        "DRM_IOCTL_ROCKET_SUBMIT",
        "DRM_IOCTL_AMDXDNA_EXEC_CMD",
        "FASTRPC_IOCTL_INVOKE",
        "DRM_IOCTL_IVPU_SUBMIT",
        "DRM_IOCTL_IVPU_CMDQ_SUBMIT",
        "DRM_IOCTL_QAIC_EXECUTE_BO",
        "DRM_IOCTL_QAIC_PARTIAL_EXECUTE_BO",
        "DRM_IOCTL_ETHOSU_SUBMIT",
    }
)
_BUFFER_WAITS = frozenset(
    {"drm_rocket_prep_bo", "drm_ivpu_bo_wait", "qaic_wait", "drm_ethosu_bo_wait"}
)
"""Structures that wait for what is done with the buffer object of their ``handle``."""
NONBLOCK = 1 << 1
"""RKNPU_JOBNONBLOCK"""


@dataclass(slots=True)
class Job:
    """A submit that the driver took. ``end_ns`` is when the call that waited for it came back,
    None where none did, and ``waiter`` the process and thread of that call. A submit that itself
    waits ends with itself, and has no waiter."""

    driver: str
    pid: int
    thread: int
    start_ns: int
    end_ns: int | None = None
    waiter: Key | None = None

    @property
    def latency_ns(self) -> int | None:
        return None if self.end_ns is None else self.end_ns - self.start_ns


def pair_submits(records: Iterable[Record]) -> list[Job]:
    """Each submit with the end of its wait.

    rocket: PREP_BO of a buffer that the job writes. rknpu: SUBMIT itself, or poll of its out-fence.
    amdxdna: WAIT_CMD or SYNCOBJ_TIMELINE_WAIT for its number or a later one. FastRPC: INVOKE.
    ivpu: BO_WAIT of its command buffer. qaic: WAIT_BO of a buffer that it executes. ethosu: BO_WAIT
    of a region's buffer.
    """
    jobs: list[Job] = []
    waiting: list[tuple[Job, Key, frozenset[int], int]] = []
    syncobjs: dict[tuple[Key, int], int] = {}
    for record in records:
        if record.errno or not record.answered:
            continue
        end = record.start_ns + record.duration_ns
        block = record.after
        if record.request in _SUBMITS and block is not None:
            job = Job(record.driver, record.pid, record.thread, record.start_ns)
            jobs.append(job)
            fields = block.fields
            if (names := _awaited(record.sent)) is not None:
                waiting.append((job, record.file, names, 0))
            elif block.struct == "amdxdna_drm_exec_cmd":
                waiting.append((job, record.file, frozenset({fields["hwctx"]}), fields["seq"]))
            elif block.struct == "rknpu_submit" and fields["flags"] & NONBLOCK:
                waiting.append((job, (record.pid, fields["fence_fd"]), frozenset(), 0))
            else:
                job.end_ns = end
            continue
        if block is not None and block.struct == "amdxdna_drm_create_hwctx":
            syncobjs[record.file, block.fields["syncobj_handle"]] = block.fields["handle"]
        done = _waited(record, syncobjs)
        if not done:
            continue
        left = []
        for job, file, names, number in waiting:
            if any(
                file == awaited and (not names or name in names) and number <= reached
                for awaited, name, reached in done
            ):
                job.end_ns, job.waiter = end, (record.pid, record.thread)
            else:
                left.append((job, file, names, number))
        waiting = left
    return jobs


def _awaited(submit: Block | None) -> frozenset[int] | None:
    """The buffer objects whose wait ends a submit; None where it is no buffer's."""
    if submit is None:
        return None
    if submit.struct == "drm_rocket_submit":
        return written(submit)
    if submit.struct in ("drm_ivpu_submit", "drm_ivpu_cmdq_submit"):
        # The first has the commands, and its wait tells how the job went.
        return frozenset(itertools.islice(numbers(submit, "buffers_ptr"), 1))
    if submit.struct == "qaic_execute":
        return frozenset(entry.fields["handle"] for entry in _elements(submit, "data"))
    if submit.struct == "drm_ethosu_submit":
        jobs = _elements(submit, "jobs")
        return frozenset(handle for job in jobs for handle in job.fields["region_bo_handles"]) - {0}
    return None


def written(submit: Block | None) -> frozenset[int]:
    """The buffer objects that a rocket submit says its jobs write."""
    jobs = _elements(submit, "jobs") if submit else ()
    return frozenset(handle for job in jobs for handle in numbers(job, "out_bo_handles"))


def _elements(block: Block, name: str) -> Iterator[Block]:
    """The structures that a pointer points to."""
    memory = block.memory.get(name)
    for element in (memory.content if memory else None) or ():
        if isinstance(element, Block):
            yield element


def numbers(block: Block, name: str) -> Iterator[int]:
    """What a pointer to numbers points to."""
    memory = block.memory.get(name)
    for value in (memory.content if memory else None) or ():
        if isinstance(value, int):
            yield value


def _waited(record: Record, syncobjs: dict[tuple[Key, int], int]) -> list[tuple[Key, int, int]]:
    """(descriptor, buffer or context, number) of the work that a call found done."""
    if record.call == "poll":
        polled = record.arguments["fds"] if record.result else ()
        return [((record.pid, fd), 0, 0) for fd, _events in polled]
    block = record.sent
    if block is None:
        return []
    fields = block.fields
    if block.struct in _BUFFER_WAITS:
        return [(record.file, fields["handle"], 0)]
    if block.struct == "amdxdna_drm_wait_cmd":
        return [(record.file, fields["hwctx"], fields["seq"])]
    if block.struct == "drm_syncobj_timeline_wait":
        pairs = zip(numbers(block, "handles"), numbers(block, "points"), strict=False)
        return [
            (record.file, syncobjs[record.file, handle], point)
            for handle, point in pairs
            if (record.file, handle) in syncobjs
        ]
    return []


@dataclass(frozen=True, slots=True)
class Requests:
    """All calls of one kind: their number, errors by name, and time in them."""

    driver: str
    name: str
    count: int
    errors: dict[str, int]
    total_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace comes to.

    ``leaked`` are buffer objects that no request gave back, those that the file's end took with it
    included; ``open_files`` (process and descriptor, what) and ``mappings`` (process and address,
    bytes) are what was left at the end. ``closes_seen``: whether the trace has each close and
    munmap; one from outside, which concludes that files were opened, has not.
    """

    requests: list[Requests]
    buffers: list[Bo]
    jobs: list[Job]
    leaked: list[Bo]
    open_files: list[tuple[Key, str]]
    mappings: list[tuple[Key, int]]
    closes_seen: bool = True
    processes: int = 1


def title(record: Record) -> str:
    """What a call is called: its request, or that one's number, or the call."""
    return record.request or (f"{record.number:#010x}" if record.number else record.call)


def summarize(records: Iterable[Record]) -> Summary:
    """Sum up a whole trace."""
    records = list(records)
    buffers = Buffers()
    kinds: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        buffers.add(record)
        kinds.setdefault((record.driver, title(record)), []).append(record)
    requests = []
    for (driver, name), calls in sorted(kinds.items()):
        errors: dict[str, int] = {}
        for call in calls:
            if call.errno:
                errors[call.errno] = errors.get(call.errno, 0) + 1
        total = sum(call.duration_ns for call in calls)
        requests.append(Requests(driver, name, len(calls), errors, total))
    return Summary(
        requests,
        buffers.all,
        pair_submits(records),
        [bo for bo in buffers.all if bo.ended_ns is None or bo.closed],
        sorted((key, file.what) for key, file in buffers.files.items()),
        [(key, length) for key, (length, _bo) in buffers.maps.items()],
        not any(record.call in ("open", "dup") and not record.duration_ns for record in records),
        len({record.pid for record in records}),
    )


def to_lines(summary: Summary) -> Iterator[str]:
    """The summary as text, which says whose each thing is where there are several processes."""

    def whose(pid: int) -> str:
        return f", process {pid}" if summary.processes > 1 else ""

    yield "calls:"
    for kind in summary.requests:
        errors = "".join(f", {count} {name}" for name, count in kind.errors.items())
        yield (
            f"  {kind.count:6} {kind.driver or '-'} {kind.name}, "
            f"{kind.total_ns / 1000:.1f} us in all{errors}"
        )
    yield f"buffer objects: {len(summary.buffers)}"
    for bo in summary.buffers:
        yield f"  {_bo(bo)}{whose(bo.file[0])}"
    done = [job.latency_ns for job in summary.jobs if job.latency_ns is not None]
    yield f"submits: {len(summary.jobs)}, {len(done)} waited for"
    if done:
        yield (
            "  from submit to the end of the wait: "
            f"median {statistics.median(done) / 1000:.1f} us, "
            f"{min(done) / 1000:.1f} to {max(done) / 1000:.1f} us"
        )
    for bo in summary.leaked:
        yield f"leaked: {_bo(bo)}{whose(bo.file[0])}"
    for (pid, fd), what in summary.open_files:
        opened = "left open" if summary.closes_seen else "not seen closed"
        yield f"{opened}: {fd} ({escaped(what)}){whose(pid)}"
    for (pid, address), length in summary.mappings:
        mapped = "left mapped" if summary.closes_seen else "not seen unmapped"
        yield f"{mapped}: {length} bytes at {address:#x}{whose(pid)}"


def _bo(bo: Bo) -> str:
    place = "" if bo.dma is None else f" at {bo.dma:#x}"
    end = "given back" if bo.ended_ns is not None else "held to the end"
    if bo.closed:
        end = "ended with its file"
    return f"{bo.driver} {bo.handle} of {bo.size} bytes{place}, {end}"
