# SPDX-License-Identifier: MIT
"""What several test modules share."""

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
"""Golden data and specifications, which stand beside the checkout and are not part of it."""

needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason="golden data (../shared) is not beside this checkout"
)


def skip_if_refused(result: "subprocess.CompletedProcess[str]") -> None:
    """Of ``npukit sim run`` or ``npukit trace``: 125 says what the machine forbids or lacks."""
    if result.returncode == 125:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """For what a thread of a simulated device brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def open_fds() -> set[int]:
    """The descriptors that this process has open now."""
    return {int(name) for name in os.listdir("/proc/self/fd")} - {_listing_fd()}


def _listing_fd() -> int:
    """The number that listdir's own descriptor had: the lowest free one."""
    fd = os.open("/", os.O_RDONLY)
    os.close(fd)
    return fd


def mapped_files() -> int:
    """How many mappings of memfds this process has."""
    with open("/proc/self/maps") as maps:
        return sum("/memfd:" in line for line in maps)


@contextlib.contextmanager
def no_leak() -> Iterator[None]:
    """Fails when descriptors or mappings of memfds are left that were not there before."""
    gc.collect()
    fds, maps = open_fds(), mapped_files()
    yield
    gc.collect()
    # A job of a simulated device may still be letting go, on a thread of its own.
    deadline = time.monotonic() + 2
    while (open_fds() - fds or mapped_files() > maps) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = {fd: _target(fd) for fd in open_fds() - fds}
    assert not left, f"descriptors left open: {left}"
    assert mapped_files() <= maps, "mappings left"


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return "closed meanwhile"
