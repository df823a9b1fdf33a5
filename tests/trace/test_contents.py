# SPDX-License-Identifier: MIT
"""Traces with what buffers held: jobs are run again on it, and what they write is compared."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support import no_leak

import npukit
from npukit import smoke
from npukit.cli import main
from npukit.sim import SimKernel
from npukit.trace.buffers import Bo
from npukit.trace.contents import CHUNK, Contents, digest
from npukit.trace.record import Block, Chunk, Record
from npukit.trace.recorder import Recorder
from npukit.trace.replay import opened, replay

DEVICES = ["rknpu", "rknpu-misc", "rocket", "amdxdna", "fastrpc-cdsp"]


def record(name: str, contents: Contents) -> list[Record]:
    """The smoke test, with contents, by way of JSON."""
    kernel = SimKernel([name])
    records: list[Record] = []
    with (
        Recorder(records.append, contents=contents) as recorder,
        npukit._open(kernel.path(name), recorder.kernel(kernel)) as device,
    ):
        for _step, check in smoke._steps(device, True):
            passed, seen = check(device)
            assert passed, seen
    return [Record.from_json(record.to_json()) for record in records]


@functools.cache
def trace(name: str) -> tuple[Record, ...]:
    return tuple(record(name, Contents()))


def play(records: list[Record] | tuple[Record, ...], name: str, kernel: SimKernel) -> list[str]:
    nodes = {path: kernel.path(name) for path in opened(records)}
    return [str(difference) for difference in replay(records, kernel, nodes)]


def chunks(records: list[Record] | tuple[Record, ...], side: str) -> list[Chunk]:
    blocks = [getattr(record, side) for record in records]
    return [chunk for block in blocks if block is not None for chunk in block.data]


@pytest.mark.parametrize("name", DEVICES)
def test_jobs_run_again_on_what_they_were_given_and_write_the_same(name: str) -> None:
    records = trace(name)
    assert len(chunks(records, "sent")) > 50
    assert len(chunks(records, "received")) > 50
    with no_leak():
        kernel = SimKernel([name])
        assert play(records, name, kernel) == []
        assert kernel.log == []


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc", "rocket"])
def test_the_bytes_are_those_that_the_program_had(name: str) -> None:
    """What the jobs wrote holds the product that numpy has."""
    m, k, n = smoke._INT8_SHAPE
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    expected = a.astype(np.int32) @ b.astype(np.int32)
    first = next(r for r in trace(name) if r.received is not None and r.received.data)
    assert first.received is not None
    data = b"".join(chunk.content or b"" for chunk in first.received.data)
    assert np.array_equal(np.sort(np.frombuffer(data, np.int32)), np.sort(expected.ravel()))


def test_a_design_that_copies_gives_what_it_was_given() -> None:
    records = trace("amdxdna")
    waits = [r for r in records if r.request == "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT"]
    submits = [r for r in records if r.request == "DRM_IOCTL_AMDXDNA_EXEC_CMD"]
    outputs = [c.digest for c in chunks(waits[:1], "received")]
    inputs = {c.digest for c in chunks(submits[:1], "sent")}
    assert sum(name in inputs for name in outputs) == 262144 // CHUNK


def test_a_dsp_flips_the_bits_that_it_was_told() -> None:
    records = trace("fastrpc-cdsp")
    both = chunks(records, "sent") + chunks(records, "received")
    known = {c.digest: c.content for c in both if c.content is not None}
    # The first call opens the module; nothing has changed until the one that flips.
    before, after = (
        np.frombuffer(b"".join(known[c.digest] for c in chunks(records, side)), np.uint8)
        for side in ("sent", "received")
    )
    assert len(before) == smoke.BUFFER_BYTES
    assert set(before ^ after) == {0x5A}


@pytest.mark.parametrize("name", DEVICES)
def test_an_input_byte_that_is_changed_gives_a_difference(name: str) -> None:
    records = list(trace(name))
    submits = [i for i, r in enumerate(records) if r.sent is not None and r.sent.data]
    # amdxdna's first jobs only move what they are given, which is told once for both sides.
    index = submits[2 if name == "amdxdna" else 0]
    sent = records[index].sent
    assert sent is not None
    # An operand; amdxdna's heap comes before it.
    place = next(
        at for at, chunk in enumerate(sent.data)
        if chunk.content is not None and (name != "amdxdna" or chunk.handle == 4)
    )  # fmt: skip
    chunk = sent.data[place]
    assert chunk.content is not None
    content = bytes([chunk.content[0] ^ 1]) + chunk.content[1:]
    data = [*sent.data]
    data[place] = dataclasses.replace(chunk, content=content, digest=digest(content))
    records[index] = dataclasses.replace(records[index], sent=dataclasses.replace(sent, data=data))
    found = play(records, name, SimKernel([name]))
    assert any(" of buffer " in line for line in found), found
    # A chunk whose bytes are not those of its digest is no data.
    data[place] = dataclasses.replace(chunk, content=content)
    found = play(records, name, SimKernel([name]))
    assert any("is damaged" in line for line in found)


def test_an_output_byte_that_is_changed_is_named() -> None:
    records = list(trace("rocket"))
    index = next(i for i, r in enumerate(records) if r.received is not None and r.received.data)
    received = records[index].received
    assert received is not None
    chunk = received.data[1]
    assert chunk.content is not None
    content = chunk.content[:7] + bytes([chunk.content[7] ^ 0x80]) + chunk.content[8:]
    data = [*received.data]
    data[1] = dataclasses.replace(chunk, content=content, digest=digest(content))
    other = dataclasses.replace(received, data=data)
    records[index] = dataclasses.replace(records[index], received=other)
    found = play(records, "rocket", SimKernel(["rocket"]))
    assert found == [
        f"call {index}, DRM_IOCTL_ROCKET_PREP_BO: byte {CHUNK + 7} of buffer {chunk.handle} is "
        f"{chunk.content[7]}, was recorded as {content[7]}"
    ]


def test_each_content_and_each_change_is_told_once() -> None:
    held = bytearray(5 * CHUNK + 100)
    bo = Bo((1, 5), "rocket", 7, len(held), 0)
    contents = Contents()

    def read(offset: int, size: int) -> bytes:
        return bytes(held[offset : offset + size])

    assert list(contents.changes(bo, read)) == []
    held[CHUNK] = held[3 * CHUNK] = 1
    held[-1] = 2
    found = list(contents.changes(bo, read))
    assert [(c.handle, c.offset, c.content is None) for c in found] == [
        (7, CHUNK, False), (7, 3 * CHUNK, True), (7, 5 * CHUNK, False)
    ]  # fmt: skip
    assert len(found[2].content or b"") == 100
    assert list(contents.changes(bo, read)) == []
    # Zeros again are a change, too.
    held[CHUNK] = 0
    found = list(contents.changes(bo, read))
    assert [(c.offset, c.content) for c in found] == [(CHUNK, bytes(CHUNK))]


def test_no_more_is_recorded_than_the_limit() -> None:
    records = record("rocket", Contents(10 * CHUNK))
    both = chunks(records, "sent") + chunks(records, "received")
    assert sum(len(chunk.content or b"") for chunk in both) == 10 * CHUNK
    found = play(records, "rocket", SimKernel(["rocket"]))
    assert any("the buffers held more than is recorded" in line for line in found)


def test_wild_chunks_hurt_nobody() -> None:
    for wild in (
        Chunk(1, -8, digest(b"x"), b"x"),
        Chunk(1, 1 << 62, digest(b"x"), b"x"),
        Chunk(77, 0, digest(b"x"), b"x"),
        Chunk(1, "x", digest(b"x"), b"x"),  # type: ignore[arg-type]
        Chunk(1, 0, "x", 5),  # type: ignore[arg-type]
    ):
        records = list(trace("rocket"))
        index = next(i for i, r in enumerate(records) if r.sent is not None and r.sent.data)
        sent = records[index].sent
        assert isinstance(sent, Block)
        other = dataclasses.replace(sent, data=[wild])
        records[index] = dataclasses.replace(records[index], sent=other)
        found = play(records, "rocket", SimKernel(["rocket"]))
        assert any(line.startswith(f"call {index},") for line in found)


def test_the_command_records_and_replays(tmp_path: Path) -> None:
    file = str(tmp_path / "trace.jsonl")
    run = CliRunner().invoke
    result = run(main, ["smoke", "--device", "sim:rocket", "--trace", file, "--data"])
    assert result.exit_code == 0, result.output
    result = run(main, ["trace", "replay", file])
    assert (result.exit_code, result.output.endswith(" 0 differences\n")) == (0, True)
    assert " changed: " in run(main, ["trace", "show", file]).output
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()[1:]]
    assert any("data" in line.get("sent", {}) for line in lines)
    assert run(main, ["smoke", "--device", "sim:rocket", "--data"]).exit_code == 2
