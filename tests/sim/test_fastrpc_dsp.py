# SPDX-License-Identifier: MIT
"""The simulated DSP: opening modules, calls to the host, the end of processes."""

import errno
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from fastrpc_raw import Later, Session, machine
from support import no_leak

from npukit.abi import aee, hexagon
from npukit.abi import fastrpc as abi
from npukit.ioctl.kernel import PAGE_SIZE
from npukit.programs.hexagon import idl, marshal
from npukit.sim import SimKernel
from npukit.sim.cdsp import DspFault, Invocation
from npukit.sim.fastrpc import FastRpcSim

ECHO = idl.load("echo.idl")
INIT2 = (hexagon.HANDLE_LISTENER, hexagon.LISTENER_INIT2)
NEXT2 = (hexagon.HANDLE_LISTENER, hexagon.LISTENER_NEXT2)


@pytest.fixture
def cdsp() -> Iterator[tuple[SimKernel, FastRpcSim]]:
    with no_leak():
        kernel, device = machine()
        yield kernel, device
        device.dsp.join()


def code(name: str) -> int:
    return aee.code_of(name) - (1 << 32)


def echo_call(session: Session, handle: int, name: str, *arguments: Any) -> Any:
    """(value, errno, results) of a method of echo.idl, called raw."""
    method = ECHO.methods[name]
    ins, outs = marshal.pack_call(method, arguments)
    value, number, filled = session.call(handle, method.number, [bytes(i) for i in ins], outs)
    return value, number, marshal.unpack_results(method, arguments, filled)


def test_a_module_is_opened_by_file_and_entry(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        handle, result, text = session.open_module(ECHO.uri() + "&_session=3")
        assert (result, text) == (0, "")
        assert echo_call(session, handle, "echo", b"abc", 3) == (0, 0, (b"abc",))
        other, _result, _text = session.open_module(ECHO.uri())
        assert other != handle
        wrong = session.open_module("file:///libecho_skel.so?main")
        assert wrong[:2] == (0, aee.code_of("ENOSUCHSYMBOL"))
        assert "no 'main'" in wrong[2]
        # Nobody listens, so nobody can be asked for the file.
        absent = session.open_module("file:///libabsent_skel.so?x")
        assert absent[:2] == (0, aee.code_of("EUNABLETOLOAD"))
        assert "cannot open libabsent_skel.so: the host does not listen" in absent[2]
        for expected in (0, aee.code_of("EINVHANDLE")):
            closed = session.call(0, 1, [struct.pack("<II", handle, 255)], [4, 255])
            assert closed[:2] == (0, 0)
            assert struct.unpack("<I", closed[2][0]) == (expected,)
        assert echo_call(session, handle, "echo", b"abc", 3)[0] == code("EINVHANDLE")


def test_a_malformed_open_is_refused(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        for ins, outs in (([], [8, 9]), ([bytes(4)], [8, 9]), ([bytes(8)], [8, 9]), ([], [])):
            assert session.call(0, 0, ins, outs)[:2] == (code("EBADPARM"), 0)
        uri = ECHO.uri().encode() + b"\0"
        assert session.call(0, 0, [struct.pack("<II", len(uri), 0), uri], [])[0] == code("EBADPARM")


def test_remotectl1_has_two_methods_more(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        uri = ECHO.uri().encode() + b"\0"
        value, _errno, (numbers, _text) = session.call(
            hexagon.HANDLE_REMOTECTL1, 2, [struct.pack("<II", len(uri), 255), uri], [8, 255]
        )
        assert (value, struct.unpack("<II", numbers)[1]) == (0, 0)


def test_attributes_can_be_asked_of_the_dsp_itself(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        value, _errno, (table,) = session.call(2, 0, [struct.pack("<I", 6)], [24])
        assert (value, struct.unpack("<6I", table)[5]) == (0, 0x8C73)
        device.dsp.info_result = aee.code_of("EUNSUPPORTED")
        assert session.call(2, 0, [struct.pack("<I", 6)], [24])[0] == code("EUNSUPPORTED")


def next2(
    session: Session, context: int, result: int, reply: bytes, capacity: int
) -> tuple[int, tuple[int, ...], bytes]:
    """(value, (context, handle, scalars, needed), packed)."""
    head = struct.pack("<IIII", context, result, len(reply), capacity)
    value, _errno, (numbers, packed) = session.call(*NEXT2, [head, reply], [16, capacity])
    return value, struct.unpack("<IIII", numbers), packed


def test_the_dsp_calls_the_host_through_next2(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        assert session.call(*INIT2)[:2] == (0, 0)
        handle, _result, _text = session.open_module(ECHO.uri())
        asking = Later(lambda: echo_call(session, handle, "checksum", "name"))
        # First it opens the module apps_std; every byte of that call is written down here.
        value, (context, module, sc, needed), packed = next2(session, 0, 0xFFFFFFFF, b"", 256)
        assert (value, module, sc) == (0, 0, 0x00020200)
        name = b"apps_std\0"
        expected = struct.pack("<IxxxxIII", 8, len(name), 255, len(name))
        expected = expected + bytes(-len(expected) % 8) + name + struct.pack("<II", 8, 255)
        assert packed[:needed] == expected
        reply = struct.pack("<IxxxxIII", 8, 5, 0, 255) + bytes(4) + bytes(255)
        value, (context, module, sc, needed), packed = next2(session, context, 0, reply, 16)
        # fopen_with_env, of which only the beginning fits.
        assert (module, sc, packed) == (5, 0x13050100, struct.pack("<IxxxxII", 16, 18, 2))
        value, _errno, (still, rest) = session.call(
            hexagon.HANDLE_LISTENER,
            hexagon.LISTENER_GET_IN_BUFS2,
            [struct.pack("<III", context, 16, needed - 16)],
            [4, needed - 16],
        )
        assert (value, struct.unpack("<I", still)) == (0, (needed,))
        assert b"ADSP_LIBRARY_PATH\0" in rest
        assert b"name\0" in rest
        # ENOENT is answered; the module hands it on.
        ending = Later(lambda: next2(session, context, errno.ENOENT, b"", 64))
        assert asking.result()[:2] == (errno.ENOENT, 0)
        assert session.call(hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT)[:2] == (0, 0)
        assert ending.result()[0] == code("EBADSTATE")


def test_a_reply_of_the_wrong_size_fails_the_call(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        session.call(*INIT2)
        handle, _result, _text = session.open_module(ECHO.uri())
        asking = Later(lambda: echo_call(session, handle, "checksum", "name"))
        _value, (context, *_rest), _packed = next2(session, 0, 0xFFFFFFFF, b"", 256)
        ending = Later(lambda: next2(session, context, 0, struct.pack("<I", 4), 64))
        assert asking.result()[:2] == (code("EUNPACK"), 0)
        session.call(hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT)
        ending.result()


def test_the_listener_refuses_what_makes_no_sense(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        assert next2(session, 0, 0, b"", 16)[0] == code("EBADSTATE")
        session.call(*INIT2)
        unknown = [struct.pack("<III", 99, 0, 4)]
        listener = hexagon.HANDLE_LISTENER
        assert session.call(listener, 5, unknown, [4, 4])[0] == code("EBADPARM")
        assert session.call(listener, 9)[0] == code("EUNSUPPORTED")


def test_the_end_of_a_process_ends_its_calls(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        handle, _result, _text = session.open_module(ECHO.uri())
        session.call(*INIT2)
        waiting = Later(lambda: echo_call(session, handle, "hang"))
        asking = Later(lambda: echo_call(session, handle, "checksum", "name"))
        listening = Later(lambda: next2(session, 0, 0xFFFFFFFF, b"", 256))
        listening.result()
        assert session.call(hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT)[:2] == (0, 0)
        assert waiting.result()[0] == asking.result()[0] == code("EBADSTATE")
        assert session.call(0, 0)[0] == code("EBADSTATE")
        assert session.call(hexagon.HANDLE_PROCESS, 3)[0] == code("EBADSTATE")
    assert device.dsp.processes == {}


def test_an_exception_in_a_module_ends_its_process(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp

    def broken(call: Invocation) -> None:
        raise ZeroDivisionError("in the module")

    with Session(kernel) as session, Session(kernel) as other:
        handle = session.try_module(device, broken)
        assert session.invoke(handle, abi.REMOTE_SCALARS_MAKE(2, 0, 0))[0] == code("ECPUEXCEPTION")
        assert session.invoke(handle, abi.REMOTE_SCALARS_MAKE(2, 0, 0))[0] == code("EBADSTATE")
        assert any("in the module" in line for line in kernel.log)
        # Only its own.
        assert other.open_module(ECHO.uri())[1] == 0


def test_memory_is_found_only_where_it_is_mapped(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        handle, _result, _text = session.open_module(ECHO.uri())
        fd = session.alloc(PAGE_SIZE)
        arg = abi.fastrpc_mem_map(fd=fd, flags=abi.FASTRPC_MAP_FD, length=4096)
        assert session.ask(abi.FASTRPC_IOCTL_MEM_MAP, arg) == (0, 0)
        address = arg.vaddrout
        assert echo_call(session, handle, "transform_mapped", address + 4, 4092, 0xFF)[0] == 0
        mapping = kernel.mmap(fd, PAGE_SIZE)
        assert bytes(memoryview(mapping)[:6]) == b"\0\0\0\0\xff\xff"
        kernel.munmap(mapping)
        # One byte too far is an exception of the process.
        late = echo_call(session, handle, "transform_mapped", address + 4, 4093, 0xFF)
        assert late[0] == code("ECPUEXCEPTION")
        kernel.close(fd)
    assert any("MemoryFault" in line for line in kernel.log)
    assert device.dsp.processes == {}


def test_a_module_refuses_what_its_interface_does_not_have(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        handle, _result, _text = session.open_module(ECHO.uri())
        assert session.call(handle, 29)[0] == code("EUNSUPPORTED")
        lying = [struct.pack("<II", 4, 3), b"abc"]
        assert session.call(handle, 2, lying, [3])[0] == code("EBADPARM")
        assert session.call(handle, 2, [struct.pack("<II", 3, 3), b"abc"], [])[0] == code(
            "EBADPARM"
        )


def test_a_method_above_30_is_found(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    seen: list[int] = []
    with Session(kernel) as session:
        handle = session.try_module(device, lambda call: seen.append(call.method))
        session.call(handle, 31, [struct.pack("<I", 77)])
        session.call(handle, 31)
        session.call(handle, 30)
        assert seen == [77, 31, 30]


def test_fault_codes_may_be_given_by_name() -> None:
    assert DspFault("EBADPARM").code == 0x8000040E
    assert str(DspFault(0x27)) == "0x27"
