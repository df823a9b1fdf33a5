# SPDX-License-Identifier: MIT
"""A DSP that means no good: what it can have of the host, and what it can make it do."""

import contextlib
import errno
import logging
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devices.hexagon_session import session
from devices.test_fastrpc_host import Dsp
from hypothesis import given, settings
from hypothesis import strategies as st
from support import no_leak

from npukit.abi import hexagon
from npukit.devices import fastrpc_host
from npukit.devices.fastrpc_host import AEE_EBADPARM, OPEN_LIMIT, Host
from npukit.sim.cdsp import HostRefused, Invocation, Process, Skel


@contextlib.contextmanager
def tree() -> Iterator[Path]:
    """A folder to be shown, beside what must not be: its files say SECRET. Nothing stays open."""
    before = os.listdir("/proc/self/fd")
    with tempfile.TemporaryDirectory() as top:
        inside = Path(top, "inside")
        (inside / "sub").mkdir(parents=True)
        (inside / "data").write_bytes(b"open")
        (inside / "sub" / "deep").write_bytes(b"open")
        Path(top, "secret").write_bytes(b"SECRET")
        Path(top, "sub").mkdir()
        Path(top, "sub", "deep").write_bytes(b"SECRET")
        (inside / "up").symlink_to("..")
        (inside / "link").symlink_to("../secret")
        (inside / "sub" / "out").symlink_to(top)
        (inside / "dangling").symlink_to("../made")
        yield inside
    assert os.listdir("/proc/self/fd") == before


def read_all(dsp: Dsp, name: str, mode: str = "rb") -> bytes | None:
    result, file = dsp.fopen(name, mode)
    if result:
        return None
    std = dsp.module("apps_std")
    numbers = struct.pack("<II", file, 64)
    _result, (_numbers, data) = dsp.call(std, hexagon.APPS_STD_FREAD, [numbers], [8, 64])
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [numbers[:4]])[0] == 0
    return data.rstrip(b"\0")


PARTS = st.sampled_from(
    ["..", ".", "", "sub", "data", "deep", "up", "link", "out", "secret", "made", "inside",
     "dangling", "~", "\udcff", "sub\n", "%2e%2e"]
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.lists(PARTS, max_size=7), st.sampled_from(["", "/", "//", "{}/", "{}/../", "/proc/self/cwd"])
)
def test_no_name_leads_out(parts: list[str], start: str) -> None:
    name = start + "/".join(parts)
    with tree() as inside:
        for writable in (False, True):
            host = Host([inside], writable=writable)
            dsp = Dsp(host)
            given = name.replace("{}", str(inside)).encode(errors="surrogateescape").decode("latin")
            assert read_all(dsp, given) in (None, b"open")
            extended = struct.pack("<I", hexagon.APPS_STD_STAT)
            dsp.std(hexagon.APPS_STD_STAT, given, head=extended, outs=[96])
            for method in (hexagon.APPS_STD_FILE_EXISTS, hexagon.APPS_STD_OPENDIR):
                dsp.std(method, given, outs=[8])
            if writable:
                for mode in ("w", "a", "r+"):
                    dsp.fopen(given, mode)
                for method in (hexagon.APPS_STD_MKDIR, hexagon.APPS_STD_RMDIR,
                               hexagon.APPS_STD_FREMOVE):  # fmt: skip
                    dsp.std(method, given)
            host.close()
        # Whatever it wrote, made or removed, it was inside.
        top = inside.parent
        assert sorted(os.listdir(top)) == ["inside", "secret", "sub"]
        assert (top / "secret").read_bytes() == (top / "sub" / "deep").read_bytes() == b"SECRET"
        assert os.listdir(top / "sub") == ["deep"]


@pytest.mark.parametrize("what", ["leaf", "folder"])
def test_a_link_put_there_at_the_wrong_moment_is_not_followed(what: str) -> None:
    with tree() as inside:
        top = inside.parent
        stop = threading.Event()

        def swap_leaf() -> None:
            while not stop.is_set():
                (top / "new").symlink_to(top / "secret")
                os.replace(top / "new", inside / "data")
                (top / "new").write_bytes(b"open")
                os.replace(top / "new", inside / "data")

        def swap_folder() -> None:
            while not stop.is_set():
                os.rename(inside / "sub", top / "away")
                (inside / "sub").symlink_to(top / "sub")
                (inside / "sub").unlink()
                os.rename(top / "away", inside / "sub")

        swap, name = (swap_leaf, "data") if what == "leaf" else (swap_folder, "sub/deep")
        host = Host([inside], writable=True)
        dsp = Dsp(host)
        swapper = threading.Thread(target=swap)
        swapper.start()
        try:
            seen = {read_all(dsp, name, mode) for _ in range(700) for mode in ("rb", "r+")}
        finally:
            stop.set()
            swapper.join()
        # Whether the loop met the file in its place is chance; left alone, it is read.
        seen.add(read_all(dsp, name))
        host.close()
        assert b"open" in seen
        assert seen <= {b"open", b"", None}


def test_nothing_but_ordinary_files_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    host = Host([tmp_path], writable=True)
    for name in ("pipe", "socket", ".", ""):
        for mode in ("rb", "r+", "w", "a"):
            assert Dsp(host).fopen(name, mode)[0] == errno.EACCES
    listening.close()
    # Devices: opening one may do something, so it is not opened at all.
    with no_leak():
        assert Dsp(Host(["/dev"])).fopen("tty")[0] in (errno.EACCES, errno.ENOENT)
        assert Dsp(Host(["/dev"], writable=True)).fopen("null", "w")[0] == errno.EACCES


def test_a_link_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    dsp = Dsp(Host([tmp_path]))
    assert dsp.std(hexagon.APPS_STD_FILE_EXISTS, "link", outs=[1]) == (0, [b"\0"])
    head = struct.pack("<I", hexagon.APPS_STD_STAT)
    assert dsp.std(hexagon.APPS_STD_STAT, "link", head=head, outs=[96])[0] == errno.EACCES


def test_files_and_modules_are_counted(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    host = Host([tmp_path])
    dsp = Dsp(host)
    std = dsp.module("apps_std")
    texts = [b"data\0", b"rb\0"]
    call = [struct.pack("<II", 5, 3), *texts]
    for _ in range(OPEN_LIMIT):
        assert dsp.call(std, hexagon.APPS_STD_FOPEN, call, [4])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_FOPEN, call, [4])[0] == errno.EMFILE
    assert dsp.call(std, hexagon.APPS_STD_OPENDIR, [bytes(4), b".\0"], [8])[0] == errno.EMFILE
    assert f"the DSP has {OPEN_LIMIT} files open" in host.asked[-1]
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [struct.pack("<I", 7)])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_FOPEN, call, [4])[0] == 0
    name = b"apps_std\0"
    for _ in range(OPEN_LIMIT - 1):
        dsp.open_module("apps_std")
    result, (numbers, text) = dsp.call(0, 0, [struct.pack("<II", 9, 20), name], [8, 20])
    assert (result, struct.unpack("<II", numbers)) == (0, (0, fastrpc_host.AEE_EOUTOFHANDLES))
    assert text.startswith(b"too many are open\0")
    host.close()


def test_what_was_asked_for_is_remembered_up_to_a_limit() -> None:
    host = Host()
    dsp = Dsp(host)
    for _ in range(3):
        dsp.fopen("none")
    assert len(host.asked) == 3
    host.asked.extend(["x"] * fastrpc_host.ASKED_LIMIT)
    dsp.fopen("none")
    assert len(host.asked) == fastrpc_host.ASKED_LIMIT + 3


def test_no_line_of_the_log_is_the_dsps_to_forge(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    dsp = Dsp(host)
    evil = "x\n2026-01-01 CRITICAL root: all is lost \x1b[2J\r\x9b"
    node = hexagon.adspmsgd_node(level=99, str=evil.encode(), file=b"a\nb", line=0xFFFF)
    with caplog.at_level(logging.DEBUG, "npukit"):
        dsp.fopen(evil)
        dsp.std(hexagon.APPS_STD_PRINT_STRING, evil)
        dsp.call(0, 0, [bytes(8), evil.encode() + b"\0"], [8, 9])
        msgd = dsp.module("adspmsgd_apps")
        raw = bytes(node)
        assert dsp.call(msgd, hexagon.MSGD_LOG, [struct.pack("<I", len(raw)), raw])[0] == 0
        # Bytes that are no text.
        assert dsp.call(msgd, hexagon.MSGD_LOG, [struct.pack("<I", 256), b"\xff" * 256])[0] == 0
        # No whole record, and one that says more than there is.
        assert dsp.call(msgd, hexagon.MSGD_LOG, [struct.pack("<I", 9999), raw[:255]])[0] == 0
        assert dsp.call(msgd, hexagon.MSGD_LOG, [])[0] == AEE_EBADPARM
    assert len(caplog.records) == 6
    for record in caplog.records:
        assert record.getMessage().isprintable(), record
    assert all(line.isprintable() for line in host.asked)


def test_a_line_without_an_end_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * (8 << 20) + b"\nrest")
    host = Host([tmp_path])
    dsp = Dsp(host)
    std = dsp.module("apps_std")
    _result, file = dsp.fopen("long")
    size = (8 << 20) + 100
    head = [struct.pack("<II", file, size)]
    result, (at_end, line) = dsp.call(std, hexagon.APPS_STD_FGETS, head, [4, size])
    assert (result, at_end, line.rstrip(b"\0")) == (0, bytes(4), b"x" * (8 << 20) + b"\n")
    _result, (_at_end, line) = dsp.call(std, hexagon.APPS_STD_FGETS, head, [4, 3])
    assert line == b"re\0"
    for capacity in (0, 1):
        assert dsp.call(std, hexagon.APPS_STD_FGETS, head, [4, capacity])[0] == 0
    _result, (_at_end, line) = dsp.call(std, hexagon.APPS_STD_FGETS, head, [4, 9])
    assert line.startswith(b"st\0")
    host.close()


METHODS = st.one_of(st.integers(0, 36), st.integers(0, 0xFFFFFFFF))


@settings(max_examples=500)
@given(
    st.integers(0, 6),
    METHODS,
    st.lists(st.one_of(st.binary(max_size=300),
                       st.lists(st.integers(0, 12), max_size=6).map(
                           lambda words: struct.pack(f"<{len(words)}I", *words)),
                       st.sampled_from([b"data\0", b"rb\0", b"w\0", b"sub\0"])), max_size=6),
    st.lists(st.sampled_from([0, 1, 4, 8, 9, 96, 264, 70 << 20, 0xFFFFFFFF]), max_size=4),
    st.booleans(),
)  # fmt: skip
def test_any_call_has_an_answer(
    handle: int, method: int, ins: list[bytes], capacities: list[int], known: bool
) -> None:
    logging.disable(logging.CRITICAL)
    with tree() as inside:
        host = Host([inside], environment={"A": "B"})
        dsp = Dsp(host)
        for name in ("apps_std", "apps_mem", "adspmsgd_apps"):
            dsp.module(name)
        if known:
            dsp.fopen("data")
        if method > 30:
            ins = [struct.pack("<I", method) + (ins[0] if ins else b""), *ins[1:]]
        result, _outs = dsp.call(handle, method, ins, capacities)
        assert isinstance(result, int)
        if sum(capacities) > fastrpc_host.CALL_LIMIT:
            assert result == AEE_EBADPARM
        assert (inside / "data").read_bytes() == b"open"
        host.close()
    logging.disable(logging.NOTSET)


@settings(max_examples=300)
@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.binary(max_size=200))
def test_any_bytes_have_an_answer(handle: int, sc: int, packed: bytes) -> None:
    logging.disable(logging.CRITICAL)
    result, reply = Host().answer(handle, sc, packed)
    logging.disable(logging.NOTSET)
    assert result & 0xFFFFFFFF >= 0
    assert len(reply) <= fastrpc_host.CALL_LIMIT + 255 * 12


class Large:
    """A module that hands its host more than anyone should."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.refused = 0

    def invoke(self, call: Invocation) -> None:
        module = self.process.host_module("apps_std")
        data = bytes(fastrpc_host.CALL_LIMIT)
        try:
            self.process.call_host(module, hexagon.APPS_STD_FWRITE, [bytes(8), data], [8])
        except HostRefused as refused:
            self.refused = refused.code


def test_a_call_that_is_too_large_is_not_fetched(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Any] = []

    def make(process: Process) -> Skel:
        made.append(Large(process))
        return made[-1]  # type: ignore[no-any-return]

    with session() as device, caplog.at_level(logging.WARNING, "npukit.fastrpc"):
        sim: Any = device.kernel
        sim.devices[-1].dsp.register("file:///libbig.so?big", make)
        module = device.open_module("file:///libbig.so?big")
        device.invoke(module, 2)
        assert made[0].refused == AEE_EBADPARM
        # The listener goes on.
        made[0].refused = 0
        device.invoke(module, 2)
        assert made[0].refused == AEE_EBADPARM
    # Two in buffers, an out buffer, and the lengths of all three.
    assert f"refuses a call of {fastrpc_host.CALL_LIMIT + 28} bytes" in caplog.text
