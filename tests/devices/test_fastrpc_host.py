# SPDX-License-Identifier: MIT
"""The host's side of a DSP process: which files it may see, what each call answers."""

import errno
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from devices.hexagon_session import machine, nothing_left, session

from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice
from npukit.devices.fastrpc_errors import HexagonError
from npukit.devices.fastrpc_host import (
    AEE_EBADPARM,
    AEE_EUNSUPPORTED,
    Host,
    pack_outs,
    unpack_call,
)
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL, DspFault, HostRefused, Invocation, Process

ECHO = idl.load("echo.idl")


def pack_ins(ins: Sequence[bytes], capacities: Sequence[int]) -> bytes:
    """As the DSP packs a call."""
    packed = bytearray()
    for data in ins:
        packed += struct.pack("<I", len(data))
        if data:
            packed += bytes(-len(packed) % 8) + data
    return bytes(packed) + b"".join(struct.pack("<I", capacity) for capacity in capacities)


class Dsp:
    """Calls a Host as a DSP does, without one."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._modules: dict[str, int] = {}

    def call(
        self, handle: int, method: int, ins: Sequence[bytes], capacities: Sequence[int] = ()
    ) -> tuple[int, list[bytes]]:
        """(result, out buffers)."""
        sc = abi.REMOTE_SCALARS_MAKE(min(method, 31), len(ins), len(capacities))
        result, packed = self.host.answer(handle, sc, pack_ins(ins, capacities))
        outs, at = [], 0
        for capacity in capacities if result == 0 else ():
            assert struct.unpack_from("<I", packed, at) == (capacity,)
            at += 4
            if capacity:
                at += -at % 8
            outs.append(packed[at : at + capacity])
            at += capacity
        return result, outs

    def module(self, name: str) -> int:
        """The handle of a module; opened once."""
        if name not in self._modules:
            self._modules[name] = self.open_module(name)
        return self._modules[name]

    def open_module(self, name: str) -> int:
        text = name.encode() + b"\0"
        result, (numbers, _text) = self.call(0, 0, [struct.pack("<II", len(text), 9), text], [8, 9])
        assert result == 0
        handle, error = struct.unpack("<II", numbers)
        assert error == 0
        return int(handle)

    def std(self, method: int, *texts: str, head: bytes = b"", outs: Sequence[int] = ()) -> Any:
        """A call of apps_std with strings."""
        encoded = [text.encode() + b"\0" for text in texts]
        lengths = head + b"".join(struct.pack("<I", len(text)) for text in encoded)
        return self.call(self.module("apps_std"), method, [lengths, *encoded], outs)

    def fopen(self, name: str, mode: str = "rb") -> tuple[int, int]:
        """(result, file)."""
        result, outs = self.std(hexagon.APPS_STD_FOPEN, name, mode, outs=[4])
        return result, struct.unpack("<I", outs[0])[0] if outs else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the DSP may see, with something beside it that it may not."""
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "data").write_bytes(b"line one\nline two\n")
    (inside / "sub" / "deep").write_bytes(b"deep")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "inside-not").mkdir()
    (tmp_path / "inside-not" / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "outward").symlink_to(tmp_path)
    (inside / "near").symlink_to("data")
    os.mkfifo(inside / "pipe")
    return inside


def test_packing_round_trip_and_what_is_cut_short() -> None:
    ins, capacities = [b"abc", b"", b"12345678", b"x"], [3, 0, 9]
    sc = abi.REMOTE_SCALARS_MAKE(2, 4, 3)
    packed = pack_ins(ins, capacities)
    assert unpack_call(packed, sc) == (ins, capacities)
    for length in range(len(packed)):
        with pytest.raises(ValueError, match=r"a length at|an in buffer of"):
            unpack_call(packed[:length], sc)
    # Bytes written down by hand: length, bytes at a multiple of 8, length, ...
    zeros = bytes(5)
    assert pack_outs([b"ab", b"", b"cdef"], [3, 0, 2]) == (
        b"\3\0\0\0" + zeros[:4] + b"ab\0" + b"\0\0\0\0" + b"\2\0\0\0" + zeros + b"cd"
    )


@pytest.mark.parametrize("name", ["data", "./data", "sub/deep", "sub//deep"])
def test_files_below_the_folder_open(folder: Path, name: str) -> None:
    host = Host([folder])
    for given in (name, f"{folder}/{name}"):
        assert Dsp(host).fopen(given)[0] == 0
    host.close()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("../secret", errno.EACCES),
        ("sub/../../secret", errno.EACCES),
        ("sub/../data", errno.EACCES),
        ("link", errno.EACCES),
        ("near", errno.EACCES),
        ("outward/secret", errno.EACCES),
        ("pipe", errno.EACCES),
        ("sub", errno.EACCES),
        ("/etc/passwd", errno.EACCES),
        ("{folder}-not/secret", errno.EACCES),
        ("{folder}/../secret", errno.EACCES),
        ("{folder}/link", errno.EACCES),
        ("none", errno.ENOENT),
        ("data/more", errno.EACCES),
        ("", errno.EACCES),
    ],
)
def test_what_leads_out_is_refused(folder: Path, name: str, code: int) -> None:
    host = Host([folder])
    given = name.format(folder=folder)
    assert Dsp(host).fopen(given)[0] == code
    assert Dsp(host).std(hexagon.APPS_STD_FOPEN_WITH_ENV, "P", ";", given, "r", outs=[4])[0] == code
    assert host.asked[0].startswith(f"{given}: ")
    host.close()


def test_folders_are_searched_in_turn(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "more").write_bytes(b"more")
    host = Host([tmp_path / "missing", folder, other])
    dsp = Dsp(host)
    assert dsp.fopen("more")[0] == dsp.fopen("data")[0] == 0
    assert host.asked == ["more: found", "data: found"]
    host.close()
    assert Dsp(Host()).fopen("data")[0] == errno.ENOENT


def test_reading(folder: Path) -> None:
    host = Host([folder])
    dsp = Dsp(host)
    std = dsp.module("apps_std")
    _result, file = dsp.fopen("data")
    head = struct.pack("<I", file)

    def read(size: int) -> tuple[int, int, bytes]:
        _result, (numbers, data) = dsp.call(
            std, hexagon.APPS_STD_FREAD, [struct.pack("<II", file, size)], [8, size]
        )
        count, at_end = struct.unpack("<ii", numbers)
        return count, at_end, data[:count]

    def number(method: int, form: str = "<i") -> int:
        result, (out,) = dsp.call(std, method, [head], [struct.calcsize(form)])
        assert result == 0
        return int(struct.unpack(form, out)[0])

    def seek(offset: int, whence: int) -> int:
        return dsp.call(std, hexagon.APPS_STD_FSEEK, [struct.pack("<IiI", file, offset, whence)])[0]

    assert read(4) == (4, 0, b"line")
    assert number(hexagon.APPS_STD_FTELL) == 4
    assert number(hexagon.APPS_STD_FLEN, "<Q") == 18
    assert number(hexagon.APPS_STD_FEOF) == 0
    assert read(99) == (14, 1, b" one\nline two\n")
    assert number(hexagon.APPS_STD_FEOF) == 1
    assert read(4) == (0, 1, b"")
    assert seek(5, 0) == 0
    assert number(hexagon.APPS_STD_FEOF) == 0
    assert seek(-9, 2) == seek(0, 1) == 0
    line = dsp.call(std, hexagon.APPS_STD_FGETS, [struct.pack("<II", file, 20)], [4, 20])
    assert line[1][1].startswith(b"line two\n\0")
    assert seek(0, 3) == errno.EINVAL
    assert dsp.call(std, hexagon.APPS_STD_REWIND, [head])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_CLEARERR, [head])[0] == 0
    assert number(hexagon.APPS_STD_FERROR) == 0
    assert number(hexagon.APPS_STD_FTELL) == 0
    assert dsp.call(std, hexagon.APPS_STD_FFLUSH, [head])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [head])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [head])[0] == errno.EBADF
    host.close()


def test_stat_and_exists(folder: Path) -> None:
    dsp = Dsp(Host([folder]))
    extended = struct.pack("<I", hexagon.APPS_STD_STAT)
    result, (raw,) = dsp.std(hexagon.APPS_STD_STAT, "data", head=extended, outs=[96])
    found = hexagon.apps_std_STAT.from_buffer_copy(raw)
    real = os.stat(folder / "data")
    assert (result, found.size, found.ino, found.mode) == (0, 18, real.st_ino, real.st_mode)
    assert found.mtime * 10**9 + found.mtimensec == real.st_mtime_ns
    assert dsp.std(hexagon.APPS_STD_STAT, "none", head=extended, outs=[96])[0] == errno.ENOENT
    for name, expected in (("data", 1), ("none", 0), ("../secret", 0)):
        assert dsp.std(hexagon.APPS_STD_FILE_EXISTS, name, outs=[1]) == (0, [bytes([expected])])


def test_folders_can_be_listed(folder: Path) -> None:
    dsp = Dsp(Host([folder]))
    result, (handle,) = dsp.std(hexagon.APPS_STD_OPENDIR, "sub", outs=[8])
    assert result == 0
    std = dsp.module("apps_std")
    names = []
    while True:
        _result, (raw,) = dsp.call(std, hexagon.APPS_STD_READDIR, [handle], [264])
        if struct.unpack_from("<i", raw, 260)[0]:
            break
        names.append(hexagon.apps_std_DIRENT.from_buffer_copy(raw[:260]).name)
    assert names == [b"deep"]
    assert dsp.call(std, hexagon.APPS_STD_CLOSEDIR, [handle])[0] == 0
    assert dsp.call(std, hexagon.APPS_STD_CLOSEDIR, [handle])[0] == errno.EBADF
    for name in ("outward", "..", "/etc"):
        assert dsp.std(hexagon.APPS_STD_OPENDIR, name, outs=[8])[0] == errno.EACCES


def test_nothing_is_written_unless_allowed(folder: Path) -> None:
    dsp = Dsp(Host([folder]))
    for mode in ("w", "wb", "a", "r+", "w+"):
        assert dsp.fopen("data", mode)[0] == errno.EROFS
    assert dsp.fopen("data", "x")[0] == errno.EINVAL
    assert dsp.std(hexagon.APPS_STD_FREMOVE, "data")[0] == errno.EROFS
    assert dsp.std(hexagon.APPS_STD_MKDIR, "new")[0] == errno.EROFS
    assert dsp.std(hexagon.APPS_STD_RMDIR, "sub")[0] == errno.EROFS
    assert (folder / "data").read_bytes() == b"line one\nline two\n"


def test_writing_where_it_is_allowed(folder: Path) -> None:
    host = Host([folder], writable=True)
    dsp = Dsp(host)
    std = dsp.module("apps_std")
    _result, file = dsp.fopen("new", "w")
    wrote = dsp.call(std, hexagon.APPS_STD_FWRITE, [struct.pack("<II", file, 4), b"abcd"], [8])
    assert wrote == (0, [struct.pack("<ii", 4, 0)])
    cut = struct.pack("<IIi", hexagon.APPS_STD_FTRUNC, file, 2)
    assert dsp.call(std, hexagon.APPS_STD_FTRUNC, [cut])[0] == 0
    assert (folder / "new").read_bytes() == b"ab"
    assert dsp.fopen("../escaped", "w")[0] == errno.EACCES
    assert dsp.fopen("link", "w")[0] == errno.EACCES
    assert (folder.parent / "secret").read_bytes() == b"secret"
    assert dsp.std(hexagon.APPS_STD_MKDIR, "made")[0] == 0
    assert dsp.std(hexagon.APPS_STD_RMDIR, "made")[0] == 0
    assert dsp.std(hexagon.APPS_STD_FREMOVE, "new")[0] == 0
    assert not (folder / "new").exists()
    host.close()


def test_environment_and_text(caplog: pytest.LogCaptureFixture) -> None:
    dsp = Dsp(Host(environment={"PATH_OF": "here"}))
    std = dsp.module("apps_std")
    name = b"PATH_OF\0"
    ins = [struct.pack("<II", len(name), 16), name]
    result, (length, value) = dsp.call(std, hexagon.APPS_STD_GETENV, ins, [4, 16])
    assert (result, length, value) == (0, struct.pack("<i", 5), b"here".ljust(16, b"\0"))
    ins[1] = b"HOME\0\0\0\0"
    assert dsp.call(std, hexagon.APPS_STD_GETENV, ins, [4, 16])[0] == errno.ENOENT
    with caplog.at_level(logging.INFO, "npukit.fastrpc.dsp"):
        dsp.std(hexagon.APPS_STD_PRINT_STRING, "from the DSP\n")
    assert caplog.messages == ["from the DSP"]


def test_what_the_host_has_not() -> None:
    host = Host()
    dsp = Dsp(host)
    text = b"none\0"
    result, (numbers, why) = dsp.call(0, 0, [struct.pack("<II", 5, 20), text], [8, 20])
    assert (result, struct.unpack("<II", numbers)) == (0, (0, 39))
    assert why.startswith(b"no such module\0")
    std = dsp.module("apps_std")
    assert dsp.call(std, hexagon.APPS_STD_FREOPEN, [bytes(16)])[0] == AEE_EUNSUPPORTED
    assert dsp.call(std, 77, [struct.pack("<I", 77)])[0] == AEE_EUNSUPPORTED
    assert dsp.call(99, 0, [])[0] == 39
    assert dsp.call(0, 9, [])[0] == AEE_EUNSUPPORTED
    closed = dsp.call(0, 1, [struct.pack("<II", std, 9)], [4, 9])
    assert closed[1][0] == bytes(4)
    assert dsp.call(0, 1, [struct.pack("<II", std, 9)], [4, 9])[1][0] == struct.pack("<I", 39)
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [bytes(4)])[0] == 39


def test_a_call_that_makes_no_sense_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    std = Dsp(host).module("apps_std")
    dsp = Dsp(host)
    assert host.answer(0, abi.REMOTE_SCALARS_MAKEX(0, 0, 0, 0, 1, 0), b"") == (AEE_EBADPARM, b"")
    assert host.answer(std, abi.REMOTE_SCALARS_MAKE(3, 1, 0), b"\x09\0\0\0")[0] == AEE_EBADPARM
    assert dsp.call(std, hexagon.APPS_STD_FCLOSE, [])[0] == AEE_EBADPARM
    assert dsp.call(std, hexagon.APPS_STD_FSEEK, [b"\1"])[0] == AEE_EBADPARM
    assert dsp.call(std, hexagon.APPS_STD_FREAD, [bytes(8)], [8, 1 << 30])[0] == AEE_EBADPARM

    def broken(ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        raise RuntimeError("oh")

    host.add("broken", {0: broken})
    with caplog.at_level(logging.ERROR, "npukit.fastrpc"):
        assert dsp.call(dsp.module("broken"), 0, [])[0] == 1
    assert "oh" in caplog.text


def test_the_dsp_reads_its_files_and_only_those(folder: Path) -> None:
    with session(folder) as device, ECHO.open(device) as echo:
        data = (folder / "data").read_bytes()
        assert echo.checksum("data") == (len(data), sum(data))
        for name, code in (("../secret", errno.EACCES), ("link", errno.EACCES), ("no", 2)):
            with pytest.raises(HexagonError) as caught:
                echo.checksum(name)
            assert caught.value.code == code
        assert device.host is not None
        assert device.host.asked[0] == "data: found"


def test_a_file_larger_than_one_read(tmp_path: Path) -> None:
    data = os.urandom(300_001)
    (tmp_path / "big").write_bytes(data)
    with session(tmp_path) as device, ECHO.open(device) as echo:
        assert echo.checksum("big") == (len(data), sum(data) & 0xFFFFFFFF)


def test_a_call_larger_than_the_listeners_buffer_comes_in_parts(tmp_path: Path) -> None:
    lengths: list[int] = []

    def take(ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        lengths.append(len(ins[1]))
        return [ins[1][-4:]]

    answers: list[Any] = []

    class Sender:
        def __init__(self, process: Process) -> None:
            self.process = process

        def invoke(self, call: Invocation) -> None:
            module = self.process.host_module("mine")
            for size in (10, 20_000, 100, 50_000):
                ins = [struct.pack("<II", size, 4), os.urandom(size - 4) + b"tail"]
                answers.append(self.process.call_host(module, 3, ins, [4]))

    with session(tmp_path) as device:
        assert device.host is not None
        device.host.add("mine", {3: take})
        sim: Any = device.kernel
        sim.devices[-1].dsp.register("file:///libs.so?s", Sender)
        device.invoke(device.open_module("file:///libs.so?s"), 2)
    assert lengths == [10, 20_000, 100, 50_000]
    assert answers == [[b"tail"]] * 4


def test_the_dsps_log_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with (
        session() as device,
        ECHO.open(device) as echo,
        caplog.at_level(logging.DEBUG, "npukit.fastrpc.dsp"),
    ):
        echo.log("before it was asked for", 2)
        device.start_log()
        for level in range(6):
            echo.log(f"line {level}", level)
    assert [(r.levelno, r.getMessage()) for r in caplog.records if r.name.endswith("dsp")] == [
        (logging.DEBUG, "module:1:0x1: line 0"),
        (logging.INFO, "module:1:0x1: line 1"),
        (logging.INFO, "module:1:0x1: line 2"),
        (logging.ERROR, "module:1:0x1: line 3"),
        (logging.CRITICAL, "module:1:0x1: line 4"),
        (logging.CRITICAL, "module:1:0x1: line 5"),
    ]


def test_the_dsp_grows_its_heap_through_the_host() -> None:
    seen: list[Any] = []

    class Grower:
        def __init__(self, process: Process) -> None:
            self.process = process

        def invoke(self, call: Invocation) -> None:
            address = self.process.grow_heap(1 << 20)
            seen.append(dict(self.process.heap) == {address: 1 << 20})
            mem = self.process.host_module("apps_mem")
            gone = struct.pack("<Qq", address, 1 << 20)
            self.process.call_host(mem, hexagon.APPS_MEM_REQUEST_UNMAP64, [gone], [])
            seen.append(self.process.heap)
            old = struct.pack("<iIIIi", 0, 0, 0x3000, 0, 4096)
            (out,) = self.process.call_host(mem, hexagon.APPS_MEM_REQUEST_MAP, [old], [8])
            small = struct.unpack("<II", out)[1]
            gone = struct.pack("<Ii", small, 4096)
            self.process.call_host(mem, hexagon.APPS_MEM_REQUEST_UNMAP, [gone], [])
            for method, ins in (
                (hexagon.APPS_MEM_REQUEST_MAP64, struct.pack("<iIIxxxxQq", 0, 0, 2, 0, 4096)),
                (hexagon.APPS_MEM_REQUEST_UNMAP64, struct.pack("<Qq", 1, 4096)),
                (hexagon.APPS_MEM_SHARE_MAP, bytes(8)),
            ):
                try:
                    self.process.call_host(mem, method, [ins], [16])
                except HostRefused as refused:
                    seen.append(refused.code)
            raise DspFault(0x77)

    with session() as device:
        sim: Any = device.kernel
        sim.devices[-1].dsp.register("file:///libg.so?g", Grower)
        with pytest.raises(HexagonError):
            device.invoke(device.open_module("file:///libg.so?g"), 2)
    assert seen == [True, {}, AEE_EUNSUPPORTED, 1, AEE_EUNSUPPORTED]


def test_a_host_serves_one_session(tmp_path: Path) -> None:
    host = Host([tmp_path])
    kernel, dsp = machine()
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as one:
        one.start(SHELL, verify=UNVERIFIED, host=host)
        with FastRpcDevice.open(kernel=kernel) as two:
            with pytest.raises(ValueError, match="serves another session"):
                two.start(SHELL, verify=UNVERIFIED, host=host)
            two.start(SHELL, verify=UNVERIFIED)
            assert list(dsp.dsp.processes) == [1, 2]
        one.close()
        with FastRpcDevice.open(kernel=kernel) as three:
            three.start(SHELL, verify=UNVERIFIED, host=host)
