# SPDX-License-Identifier: MIT
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from npukit.cli import main
from npukit.trace.record import Record
from npukit.trace.recorder import to_file

Trace = Callable[[str], tuple[Record, ...]]


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["trace", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def rocket_file(smoke_trace: Trace, tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        sink = to_file(file)
        for record in smoke_trace("rocket"):
            sink(record)
    return str(path)


def test_show(rocket_file: str) -> None:
    text = run("show", rocket_file)
    assert "DRM_IOCTL_ROCKET_SUBMIT" in text
    assert "enable CNA CORE DPU" in text
    assert "submits: 5, 5 waited for" in text
    events = json.loads(run("show", rocket_file, "--format", "chrome"))["traceEvents"]
    assert any(event["name"] == "DRM_IOCTL_ROCKET_SUBMIT" for event in events)


def test_replay(rocket_file: str, tmp_path: Path) -> None:
    assert run("replay", rocket_file).endswith(" calls, 0 differences\n")
    text = Path(rocket_file).read_text()
    other = tmp_path / "other.jsonl"
    other.write_text(text.replace('"size":1048576', '"size":0'))
    output = run("replay", str(other), code=1)
    assert "DRM_IOCTL_ROCKET_CREATE_BO: errno is 'ENOSPC', was recorded as 'none'" in output


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert "No such file" in run("show", str(path), code=1)
    path.write_text("hello\n")
    assert "line 1: not a trace of npukit" in run("replay", str(path), code=1)


def test_a_device_that_nothing_simulates_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("w") as file:
        to_file(file)(Record("open", 0, 0, 0, 0, -1, "", {"path": "/dev/x", "flags": 0}, result=5))
    assert "/dev/x: nothing simulates its driver" in run("replay", str(path), code=1)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inner:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def test_a_trace_that_was_changed_anywhere_is_shown_or_refused(
    rocket_file: str, tmp_path: Path
) -> None:
    whole = Path(rocket_file).read_text().splitlines()
    changed = tmp_path / "changed"
    random = Random(1)
    codes = set()
    for _ in range(300):
        lines = list(whole)
        number = random.randrange(1, len(lines))
        record = json.loads(lines[number])
        *path, last = random.choice(list(places(record)))
        part = record
        for key in path:
            part = part[key]
        part[last] = random.choice([None, -1, 1 << 64, 0.5, "", "\udcff", [], [1], {}, {"a": 1}])
        lines[number] = json.dumps(record)
        changed.write_text("\n".join([*lines, ""]))
        for form in ("text", "chrome"):
            result = CliRunner().invoke(main, ["trace", "show", "--format", form, str(changed)])
            assert isinstance(result.exception, SystemExit | None), (record, result.exc_info)
            codes.add(result.exit_code)
    assert codes == {0, 1}
