# SPDX-License-Identifier: MIT
"""A simulated Hexagon DSP: processes, the interfaces that its firmware has, modules in Python.

A module ("skel") is a Python class, registered under the URI by which a host opens it. Calls run on
threads of their process, as many as there are calls, so a module may call back to the host and wait
for its answer. What vendors do not document is chosen here: which result an unknown process or
handle gets, that an exception in a module ends its process, and that a module that is not
registered is looked for among the host's files and then refused, since no Hexagon code runs here.
"""

from __future__ import annotations

import io
import itertools
import struct
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from npukit.abi import aee, hexagon
from npukit.abi import fastrpc as abi
from npukit.programs.hexagon import idl, marshal

_PAGE = 4096
_CHUNK = 64 << 10
"""Bytes that a process reads of a host's file at once."""
FIRST_HANDLE = 0xA000_1000
EM_QDSP6 = 164

SHELL = (
    b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    + struct.pack("<HHIIIIIHHHHHH", 3, EM_QDSP6, 1, 0, 0, 0, 0, 52, 0, 0, 0, 0, 0)
    + b"npukit: the shell of a simulated DSP\0"
)
"""A process image that the simulated DSP takes. It is an ELF header of that processor, no more."""

ATTRIBUTES = {
    abi.UNSIGNED_PD_SUPPORT: 1,
    abi.HVX_SUPPORT_128B: 4,
    abi.VTCM_PAGE: 8 << 20,
    abi.VTCM_COUNT: 1,
    abi.ARCH_VER: 0x8C73,
    abi.HMX_SUPPORT_DEPTH: 1,
    abi.HMX_SUPPORT_SPATIAL: 1,
    abi.ASYNC_FASTRPC_SUPPORT: 1,
    abi.STATUS_NOTIFICATION_SUPPORT: 1,
}


class MemoryFault(Exception):
    """An access outside of what is mapped."""


class DspFault(Exception):
    """What a module or the firmware answers instead of 0: a code of npukit.abi.aee, or its own."""

    def __init__(self, code: int | str, text: str = "") -> None:
        self.code = aee.code_of(code) if isinstance(code, str) else code
        super().__init__(text or f"{self.code & 0xFFFFFFFF:#x}")


class HostRefused(DspFault):
    """The host answered a call of the DSP with a result that is not 0."""


@dataclass(frozen=True)
class DspBuffer:
    """A dma-buf that is an argument as a handle: the whole of it, and the part that is meant."""

    fd: int
    memory: memoryview
    offset: int
    length: int


@dataclass
class Invocation:
    """A call from the host. ``complete`` answers it: the result, and dma-bufs no longer needed."""

    handle: int
    sc: int
    ins: list[memoryview]
    outs: list[memoryview]
    handles: list[DspBuffer]
    complete: Callable[[int, list[int]], None]
    fdlist: list[int] = field(default_factory=list)
    """dma-bufs given as handles that the DSP no longer needs."""

    @property
    def method(self) -> int:
        number = abi.REMOTE_SCALARS_METHOD(self.sc)
        if number == hexagon.EXTENDED_METHOD and self.ins and len(self.ins[0]) >= 4:
            return int.from_bytes(self.ins[0][:4], "little")
        return number

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """The primitives that come in; DspFault(EBADPARM) when they are not there."""
        if not self.ins or len(self.ins[0]) < struct.calcsize(layout):
            raise DspFault("EBADPARM", "primitives are missing")
        return struct.unpack_from(layout, self.ins[0])

    def buffer(self, index: int) -> memoryview:
        if index >= len(self.ins):
            raise DspFault("EBADPARM", f"in buffer {index} is missing")
        return self.ins[index]

    def fill(self, index: int, data: bytes | bytearray) -> None:
        """Write an out buffer, cut to its size."""
        if index >= len(self.outs):
            raise DspFault("EBADPARM", f"out buffer {index} is missing")
        out = self.outs[index]
        size = min(len(out), len(data))
        out[:size] = data[:size]


class Skel(Protocol):
    """A module as the DSP knows it; made anew for each handle, with the process as argument."""

    def invoke(self, call: Invocation) -> None:
        """Do the call; DspFault is its result."""


class IdlSkel:
    """A module with an interface in IDL: each of its methods is a Python method of that name.

    It gets the parameters as a stub takes them (of what comes out only the capacity, in items) and
    returns what comes out, in the IDL's order: nothing, one value or a tuple.
    """

    interface: idl.Interface

    def __init__(self, process: Process) -> None:
        self.process = process

    def invoke(self, call: Invocation) -> None:
        method = self.interface.by_number.get(call.method)
        if method is None:
            raise DspFault("EUNSUPPORTED", f"no method {call.method}")
        try:
            arguments, _capacities = marshal.unpack_call(method, call.ins, call.outs)
        except ValueError as error:
            raise DspFault("EBADPARM", str(error)) from None
        results = getattr(self, method.name)(*arguments)
        if results is None:
            results = ()
        elif not isinstance(results, tuple):
            results = (results,)
        for index, data in enumerate(marshal.pack_results(method, results)):
            call.fill(index, data)


class _HostCall:
    """A call of a process to its host, until it is answered."""

    def __init__(self, lock: threading.Lock, context: int, handle: int, sc: int, packed: bytes):
        self.context = context
        self.handle = handle
        self.sc = sc
        self.packed = packed
        self.result: int | None = None
        self.reply = b""
        self.answered = threading.Condition(lock)


class Process:
    """A process on the DSP, of one session. The root process, of ``attach``, is one as well.

    Synchronization: its calls run side by side; a module locks what it shares between them.
    """

    def __init__(self, dsp: Dsp, client_id: int) -> None:
        self.dsp = dsp
        self.client_id = client_id
        self.ended = False
        self.listening = False
        self.logging = False
        self.modules: dict[int, Skel] = {}
        self.heap: dict[int, int] = {}
        """Address -> size of what the host added."""
        self.maps: dict[int, tuple[int, int, Callable[[int], memoryview]]] = {}
        """Address -> (dma-buf, length, its memory) of what MEM_MAP gave."""
        self.threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        """For the listener, and modules that wait for the end."""
        self._work = threading.Condition(self._lock)
        self._calls: deque[Invocation] = deque()
        self._idle = 0
        self._waiting: deque[_HostCall] = deque()
        self._asked: dict[int, _HostCall] = {}
        self._hosts: dict[str, int] = {}
        self._next_context = 1
        self._next_handle = FIRST_HANDLE
        self._next_address = 0xD000_0000

    def submit(self, call: Invocation) -> int | None:
        """Let a thread of the process do the call. Returns a result only when it cannot be done."""
        with self._lock:
            if self.ended:
                return aee.code_of("EBADSTATE")
            self._calls.append(call)
            if self._idle >= len(self._calls):
                self._work.notify()
                return None
            thread = threading.Thread(
                target=self._run, name=f"DSP process {self.client_id}", daemon=True
            )
            self.threads.append(thread)
        thread.start()
        return None

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                self._work.wait_for(lambda: self._calls or self.ended)
                self._idle -= 1
                if not self._calls:
                    return
                call = self._calls.popleft()
            result = self._perform(call)
            complete, fdlist = call.complete, call.fdlist
            # Shared memory stays mapped while anything views it.
            del call
            complete(result, fdlist)

    def _perform(self, call: Invocation) -> int:
        try:
            if self.ended:
                raise DspFault("EBADSTATE", "the process has ended")
            self._dispatch(call)
            return 0
        except DspFault as fault:
            return fault.code
        except Exception:
            self.dsp.log.append(
                f"DSP: exception in process {self.client_id}: {traceback.format_exc()}"
            )
            self.end()
            return aee.code_of("ECPUEXCEPTION")
        finally:
            call.ins, call.outs, call.handles = [], [], []

    def end(self) -> None:
        """The process is gone: whoever waits in it is told. Idempotent."""
        with self._lock:
            self.ended = True
            self.modules.clear()
            for waiting in (*self._waiting, *self._asked.values()):
                waiting.answered.notify_all()
            self._work.notify_all()
            self.changed.notify_all()

    def take_address(self, size: int) -> int:
        """Addresses for ``size`` bytes, a page away from all others."""
        address = self._next_address
        self._next_address += -(-size // _PAGE) * _PAGE + _PAGE
        return address

    def memory(self, address: int, length: int) -> memoryview:
        """Shared memory at an address of this process; MemoryFault when it is not all there."""
        for start, (_fd, size, view) in self.maps.items():
            if start <= address and address + length <= start + size:
                offset = address - start
                return view(offset + length)[offset:]
        raise MemoryFault(f"{length} bytes at {address:#x}")

    # What the firmware answers.

    def _dispatch(self, call: Invocation) -> None:
        handle, method = call.handle, call.method
        if handle in (hexagon.HANDLE_REMOTECTL, hexagon.HANDLE_REMOTECTL1):
            self._remotectl(call, method - 2 * (handle == hexagon.HANDLE_REMOTECTL1))
        elif handle in (hexagon.HANDLE_LISTENER, hexagon.HANDLE_LISTENER1):
            self._listener(call, method - 2 * (handle == hexagon.HANDLE_LISTENER1))
        elif handle == hexagon.HANDLE_PROCESS:
            if method != hexagon.PROCESS_EXIT:
                raise DspFault("EUNSUPPORTED")
            self.end()
        elif handle == hexagon.HANDLE_MSGD:
            if method not in (2, 3):
                raise DspFault("EUNSUPPORTED")
            self.logging = method == 2
        elif handle == hexagon.HANDLE_DSP_UTILITIES:
            table: list[int] = []
            (count,) = call.numbers("<I")
            code = self.dsp.info(count, table)
            if code:
                raise DspFault(code)
            call.fill(0, struct.pack(f"<{len(table)}I", *table))
        else:
            with self._lock:
                skel = self.modules.get(handle)
            if skel is None:
                raise DspFault("EINVHANDLE", f"no module has handle {handle:#x}")
            skel.invoke(call)

    def _remotectl(self, call: Invocation, method: int) -> None:
        if method == hexagon.REMOTECTL_OPEN:
            call.numbers("<II")
            uri = bytes(call.buffer(1)).split(b"\0", 1)[0].decode(errors="replace")
            handle, result, text = 0, 0, ""
            try:
                handle = self._open(uri)
            except DspFault as fault:
                result, text = fault.code, str(fault)
            call.fill(0, struct.pack("<II", handle, result & 0xFFFFFFFF))
            call.fill(1, text.encode() + b"\0")
        elif method == hexagon.REMOTECTL_CLOSE:
            handle, _capacity = call.numbers("<II")
            with self._lock:
                known = self.modules.pop(handle, None) is not None
            call.fill(0, struct.pack("<I", 0 if known else aee.code_of("EINVHANDLE")))
            call.fill(1, b"\0")
        elif method not in (hexagon.REMOTECTL_GROW_HEAP, hexagon.REMOTECTL_SET_PARAM):
            raise DspFault("EUNSUPPORTED", f"remotectl has no method {method}")

    def _open(self, uri: str) -> int:
        file, _, rest = uri.partition("?")
        symbol = rest.partition("&")[0]
        known = self.dsp.skels.get(file)
        if known is None:
            self._refuse(file.removeprefix("file:///"))
        else:
            entry, make = known
            if symbol != entry:
                raise DspFault("ENOSUCHSYMBOL", f"{file} has no {symbol!r}, only {entry!r}")
            skel = make(self)
            with self._lock:
                handle = self._next_handle
                self._next_handle += 0x40
                self.modules[handle] = skel
            return handle
        raise AssertionError

    def _refuse(self, name: str) -> None:
        """No such module is registered: see what the host has under that name."""
        try:
            self.read_file(name)
        except DspFault as fault:
            raise DspFault("EUNABLETOLOAD", f"cannot open {name}: {fault}") from None
        raise DspFault("EBADELF", f"{name} was read; the simulated DSP runs no Hexagon code")

    def _listener(self, call: Invocation, method: int) -> None:
        if method == hexagon.LISTENER_INIT2:
            self.listening = True
        elif method == hexagon.LISTENER_NEXT2:
            self._next2(call)
        elif method == hexagon.LISTENER_GET_IN_BUFS2:
            context, offset, capacity = call.numbers("<III")
            with self._lock:
                asked = self._asked.get(context)
            if asked is None:
                raise DspFault("EBADPARM", f"no call has context {context}")
            call.fill(0, struct.pack("<I", len(asked.packed)))
            call.fill(1, asked.packed[offset : offset + capacity])
        else:
            raise DspFault("EUNSUPPORTED", f"the listener has no method {method}")

    def _next2(self, call: Invocation) -> None:
        if not self.listening:
            raise DspFault("EBADSTATE", "next2 before init2")
        context, result, length, _capacity = call.numbers("<IIII")
        reply = bytes(call.buffer(1))[:length]
        with self._lock:
            answered = self._asked.pop(context, None)
            if answered is not None:
                answered.result, answered.reply = result, reply
                answered.answered.notify_all()
            self.changed.wait_for(lambda: self._waiting or self.ended)
            if self.ended:
                raise DspFault("EBADSTATE", "the process has ended")
            asked = self._waiting.popleft()
            self._asked[asked.context] = asked
        numbers = (asked.context, asked.handle, asked.sc, len(asked.packed))
        call.fill(0, struct.pack("<IIII", *numbers))
        call.fill(1, asked.packed)

    # What modules call.

    def call_host(
        self, handle: int, method: int, ins: Sequence[bytes], capacities: Sequence[int]
    ) -> list[bytes]:
        """Call a module of the host and wait for it; the out buffers.

        HostRefused: its result is not 0. DspFault: nobody listens, or the process ends.
        """
        number = min(method, hexagon.EXTENDED_METHOD)
        sc = abi.REMOTE_SCALARS_MAKE(number, len(ins), len(capacities))
        packed = bytearray()
        for data in ins:
            packed += len(data).to_bytes(4, "little")
            if data:
                packed += bytes(-len(packed) % 8) + data
        for capacity in capacities:
            packed += capacity.to_bytes(4, "little")
        with self._lock:
            if not self.listening:
                raise DspFault("ENOTINITIALIZED", "the host does not listen")
            asked = _HostCall(self._lock, self._next_context, handle, sc, bytes(packed))
            self._next_context += 1
            self._waiting.append(asked)
            self.changed.notify_all()
            asked.answered.wait_for(lambda: asked.result is not None or self.ended)
            if asked.result is None:
                raise DspFault("EBADSTATE", "the process has ended")
        if asked.result:
            raise HostRefused(asked.result, f"the host answers {asked.result:#x}")
        outs, at = [], 0
        for capacity in capacities:
            length = int.from_bytes(asked.reply[at : at + 4], "little")
            at += 4
            if length:
                at += -at % 8
            if length != capacity or at + length > len(asked.reply):
                raise DspFault("EUNPACK", f"the host's reply has {len(asked.reply)} bytes")
            outs.append(asked.reply[at : at + length])
            at += length
        return outs

    def host_module(self, name: str) -> int:
        """The handle of a module of the host; opened once."""
        with self._lock:
            known = self._hosts.get(name)
        if known is not None:
            return known
        encoded = name.encode() + b"\0"
        numbers, _text = self.call_host(
            hexagon.HANDLE_REMOTECTL,
            hexagon.REMOTECTL_OPEN,
            [struct.pack("<II", len(encoded), 255), encoded],
            [8, 255],
        )
        handle, result = struct.unpack("<II", numbers)
        if result:
            raise HostRefused(result, f"the host has no module {name}")
        with self._lock:
            self._hosts[name] = handle
        return int(handle)

    def read_file(self, name: str) -> bytes:
        """A file of the host, whole."""
        std = self.host_module("apps_std")
        texts = [text.encode() + b"\0" for text in ("ADSP_LIBRARY_PATH", ";", name, "rb")]
        lengths = struct.pack("<IIII", *map(len, texts))
        (answer,) = self.call_host(std, hexagon.APPS_STD_FOPEN_WITH_ENV, [lengths, *texts], [4])
        try:
            data = b""
            while True:
                wanted = struct.pack("<4sI", answer, _CHUNK)
                numbers, piece = self.call_host(std, hexagon.APPS_STD_FREAD, [wanted], [8, _CHUNK])
                count, at_end = struct.unpack("<ii", numbers)
                data += piece[:count]
                if at_end or count == 0:
                    return data
        finally:
            self.call_host(std, hexagon.APPS_STD_FCLOSE, [answer], [])

    def write_log(self, text: str, level: int = 2) -> None:
        """A line for the host's log, if it asked for lines."""
        if self.logging:
            node = hexagon.adspmsgd_node(
                level=level,
                line=1,
                thread_id=self.client_id,
                str=text.encode()[:217],
                file=b"module",
            )
            module = self.host_module("adspmsgd_apps")
            ins = [struct.pack("<I", len(bytes(node))), bytes(node)]
            self.call_host(module, hexagon.MSGD_LOG, ins, [])

    def grow_heap(self, size: int) -> int:
        """Ask the host for more heap; its address."""
        module = self.host_module("apps_mem")
        wanted = struct.pack("<iIIxxxxQq", 0, 0, abi.ADSP_MMAP_ADD_PAGES, 0, size)
        (answer,) = self.call_host(module, hexagon.APPS_MEM_REQUEST_MAP64, [wanted], [16])
        return int(struct.unpack("<QQ", answer)[1])

    def wait_for_end(self) -> None:
        """Wait until the process ends."""
        with self._lock:
            self.changed.wait_for(lambda: self.ended)


class Dsp:
    """The DSP: its processes and the modules that it knows.

    The driver's messages are methods here; they answer a result, 0 for success, at once.
    """

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.silent = False
        """It answers nothing any more."""
        self.info_result = 0
        """What it answers when asked for attributes: 0, or an old firmware's error."""
        self.attributes: dict[int, int] = dict(ATTRIBUTES)
        self.shell_mark = b""
        """What a shell must contain to be of the firmware's build."""
        self.skels: dict[str, tuple[str, Callable[[Process], Skel]]] = {}
        self.processes: dict[int, Process] = {}
        self._gone: list[Process] = []
        for skel in (EchoSkel, QnnModelSkel):
            self.register(skel.interface.uri(), skel)

    def register(self, uri: str, make: Callable[[Process], Skel]) -> None:
        """Let ``make`` be the module of ``uri``: file and entry count, its options do not."""
        file, _, rest = uri.partition("?")
        self.skels[file] = (rest.partition("&")[0], make)

    def reset(self) -> None:
        """All processes end at once."""
        for client_id in list(self.processes):
            self.release(client_id)

    def join(self) -> None:
        """Wait for the threads of processes that have ended. Not with the kernel's lock held."""
        while self._gone:
            for thread in self._gone.pop().threads:
                thread.join()

    def attach(self, client_id: int, sensors: bool) -> int:
        return self._start(client_id)

    def create(self, client_id: int, image: bytes, attrs: int) -> int:
        if not image:
            return aee.code_of("EUNABLETOLOAD")
        if image[:4] != b"\x7fELF" or int.from_bytes(image[18:20], "little") != EM_QDSP6:
            return aee.code_of("EBADELF")
        if self.shell_mark not in image:
            return aee.code_of("EQURTBADASID")
        return self._start(client_id)

    def create_static(self, client_id: int, name: bytes, heap: int) -> int:
        text = name.rstrip(b"\0").decode(errors="replace")
        self.log.append(f"DSP: static process {text!r} with {heap} bytes of heap")
        return self._start(client_id)

    def _start(self, client_id: int) -> int:
        if client_id in self.processes:
            return aee.code_of("EALREADYLOADED")
        self.processes[client_id] = Process(self, client_id)
        return 0

    def release(self, client_id: int) -> int:
        process = self.processes.pop(client_id, None)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        process.end()
        self._gone.append(process)
        return 0

    def add_pages(self, client_id: int, size: int, where: list[int]) -> int:
        process = self.processes.get(client_id)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        address = process.take_address(size)
        process.heap[address] = size
        where.append(address)
        return 0

    def remove_pages(self, client_id: int, address: int, size: int) -> int:
        process = self.processes.get(client_id)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        return 0 if process.heap.pop(address, None) == size else aee.code_of("ENOSUCHMAP")

    def map_memory(
        self,
        client_id: int,
        fd: int,
        flags: int,
        view: Callable[[int], memoryview],
        length: int,
        where: list[int],
    ) -> int:
        process = self.processes.get(client_id)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        if flags not in (
            abi.FASTRPC_MAP_STATIC,
            abi.FASTRPC_MAP_RESERVED,
            abi.FASTRPC_MAP_FD,
            abi.FASTRPC_MAP_FD_DELAYED,
            abi.FASTRPC_MAP_FD_NOMAP,
        ):
            return aee.code_of("EBADPARM")
        address = process.take_address(length)
        process.maps[address] = (fd, length, view)
        where.append(address)
        return 0

    def unmap_memory(self, client_id: int, fd: int, address: int) -> int:
        process = self.processes.get(client_id)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        return 0 if process.maps.pop(address, None) else aee.code_of("ENOSUCHMAP")

    def info(self, count: int, table: list[int]) -> int:
        """Fill ``table`` with the attributes 1 to ``count``."""
        if not self.info_result:
            table += [self.attributes.get(number, 0) for number in range(1, count + 1)]
        return self.info_result

    def invoke(self, client_id: int, call: Invocation) -> int | None:
        """A call of a host's program. A result comes back here only if no process takes it."""
        process = self.processes.get(client_id)
        if process is None:
            return aee.code_of("ENOSUCHPROCESS")
        return process.submit(call)


class EchoSkel(IdlSkel):
    """The module of echo.idl."""

    interface = idl.load("echo.idl")

    def echo(self, data: bytes, capacity: int) -> bytes:
        return data

    def transform(self, data: bytes, key: int, capacity: int) -> bytes:
        return (np.frombuffer(data, np.uint8) ^ np.uint8(key)).tobytes()

    def transform_mapped(self, address: int, length: int, key: int) -> None:
        memory = np.frombuffer(self.process.memory(address, length), np.uint8)
        np.bitwise_xor(memory, np.uint8(key), out=memory)

    def scalars(self, *values: Any) -> tuple[Any, ...]:
        return values

    def sum(self, values: npt.NDArray[np.int32]) -> int:
        return int(values.sum(dtype=np.int64))

    def update(
        self, number: int, items: npt.NDArray[np.int16]
    ) -> tuple[int, npt.NDArray[np.int16]]:
        return number + 1, items * np.int16(2)

    def greet(self, name: str, capacity: int) -> str:
        return f"hello, {name}"

    def checksum(self, name: str) -> tuple[int, int]:
        data = self.process.read_file(name)
        return len(data), int(np.frombuffer(data, np.uint8).sum(dtype=np.uint32))

    def fail(self, code: int) -> None:
        raise DspFault(code)

    def log(self, text: str, level: int) -> None:
        self.process.write_log(text, level)

    def hang(self) -> None:
        self.process.wait_for_end()
        raise DspFault("EBADSTATE")


@dataclass(frozen=True)
class _Layer:
    """A dense layer: int8 weights (K, N), int32 bias (N,); multiplier 0 in the last."""

    weights: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    multiplier: int
    shift: int


class _Graph:
    """A dense int8 network: one input, uint8 (rows, K), one output, int32 (rows, N)."""

    inputs = outputs = 1

    def __init__(self, layers: list[_Layer]) -> None:
        self.layers = layers
        self.busy = threading.Lock()
        self.input: npt.NDArray[np.uint8] | None = None
        self.output: npt.NDArray[np.int32] | None = None

    def run(self) -> None:
        if self.input is None:
            raise DspFault("EBADSTATE", "no input was set")
        activations = self.input.astype(np.int32)
        for layer in self.layers:
            sums = activations @ layer.weights.astype(np.int32) + layer.bias
            if layer.multiplier:
                # To the nearest, a half upwards, and no negative activation.
                product = sums.astype(np.int64) * layer.multiplier + (1 << layer.shift >> 1)
                activations = np.clip(product >> layer.shift, 0, 127).astype(np.int32)
        self.output = sums.astype(np.int32)


def read_model(data: bytes) -> list[_Graph]:
    """The graphs of a model file; DspFault(EINVALIDFORMAT) when it is none.

    The file is an .npz: of graph G the arrays ``gG/weights_0``, ``gG/bias_0`` and so on, and
    ``gG/multiplier`` and ``gG/shift`` with an entry for each layer but the last. Names without a
    prefix are graph 0.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name if "/" in name else f"g0/{name}": file[name] for name in file.files}
        count = 1 + max(int(name[1:].partition("/")[0]) for name in arrays)
        return [_Graph(_layers(arrays, f"g{number}/")) for number in range(count)]
    except DspFault:
        raise
    except Exception as error:
        raise DspFault("EINVALIDFORMAT", str(error)) from None


def _layers(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> list[_Layer]:
    multipliers = [int(value) for value in arrays[f"{prefix}multiplier"]] + [0]
    shifts = [int(value) for value in arrays[f"{prefix}shift"]] + [0]
    layers = [
        _Layer(arrays[f"{prefix}weights_{i}"], arrays[f"{prefix}bias_{i}"], multiplier, shift)
        for i, (multiplier, shift) in enumerate(zip(multipliers, shifts, strict=True))
    ]
    for before, after in itertools.pairwise(layers):
        if before.weights.shape[1] != after.weights.shape[0]:
            raise ValueError("the layers do not fit each other")
    return layers


class QnnModelSkel(IdlSkel):
    """The module of qnn_model.idl."""

    interface = idl.load("qnn_model.idl")
    MAX_MODELS = 4
    MAX_GRAPHS = 8

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._lock = threading.Lock()
        self._models: dict[int, list[_Graph]] = {}
        self._next = 1

    def _graph(self, model: int, graph: int) -> _Graph:
        with self._lock:
            graphs = self._models.get(model)
        if graphs is None:
            raise DspFault("ENOSUCHINSTANCE", f"model {model} is not loaded")
        if graph >= len(graphs):
            raise DspFault("EBADITEM", f"model {model} has no graph {graph}")
        return graphs[graph]

    def model_load(self, path: str) -> tuple[int, int]:
        graphs = read_model(self.process.read_file(path))
        if len(graphs) > self.MAX_GRAPHS:
            raise DspFault("EBADSIZE", f"{len(graphs)} graphs")
        with self._lock:
            if len(self._models) >= self.MAX_MODELS:
                raise DspFault("EOUTOFHANDLES", f"{len(self._models)} models are loaded")
            number = self._next
            self._next += 1
            self._models[number] = graphs
        return number, len(graphs)

    def tensor_counts(self, model: int, graph: int) -> tuple[int, int]:
        found = self._graph(model, graph)
        return found.inputs, found.outputs

    def set_input(self, model: int, graph: int, index: int, data: bytes) -> None:
        found = self._graph(model, graph)
        if index >= found.inputs:
            raise DspFault("EBADITEM", f"input {index}")
        width = found.layers[0].weights.shape[0]
        if not data or len(data) % width:
            raise DspFault("EBADSIZE", f"{len(data)} bytes for rows of {width}")
        if not found.busy.acquire(blocking=False):
            raise DspFault("EITEMBUSY")
        found.input = np.frombuffer(data, np.uint8).reshape(-1, width)
        found.output = None
        found.busy.release()

    def execute(self, model: int, graph: int) -> None:
        found = self._graph(model, graph)
        if not found.busy.acquire(blocking=False):
            raise DspFault("EITEMBUSY")
        try:
            found.run()
        finally:
            found.busy.release()

    def get_output(self, model: int, graph: int, index: int, capacity: int) -> tuple[bytes, int]:
        found = self._graph(model, graph)
        if index >= found.outputs:
            raise DspFault("EBADITEM", f"output {index}")
        if found.output is None:
            raise DspFault("EBADSTATE", "the graph was not executed")
        data = found.output.tobytes()
        return data[:capacity], len(data)

    def model_unload(self, model: int) -> None:
        with self._lock:
            if self._models.pop(model, None) is None:
                raise DspFault("ENOSUCHINSTANCE", f"model {model} is not loaded")
