# SPDX-License-Identifier: MIT
"""A simulated FastRPC driver (drivers/misc/fastrpc.c of Linux 7.3); the DSP itself is in cdsp.

Checks stand in the driver's order. What the DSP answers is handed on as the driver does it: a
result from -4095 to -1 becomes an errno, any other is the request's value.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from npukit import _fast
from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .cdsp import Dsp, DspBuffer, Invocation, MemoryFault
from .core import Area, Caller, Errno, KernelOops, SimDevice, SimFile
from .dma_buf import CharFile, DmaBufSim, PlainPages

MAX_CONTEXTS = 255
INIT_FILELEN_MAX = 2 << 20
INIT_FILE_NAMELEN_MAX = 128
MAX_DSP_ATTRIBUTES = 256
ALIGN = 128
MAX_FDLIST = 16
MAX_CRCLIST = 64
DMA_LIMIT = 1 << 32
"""Bytes that the 32-bit DMA mask of the driver can reach."""
_PAYLOAD_LIMIT = 1 << 30
_ROOT_PD, _USER_PD, _SENSORS_PD = 0, 1, 2
_MAX_ERRNO = 4095
_DOMAINS = {"adsp": 0, "mdsp": 1, "sdsp": 2, "cdsp": 3, "gdsp": 4}


@dataclass(frozen=True)
class Driver:
    """How drivers of different age differ."""

    info_offset: int = 8
    """Where GET_DSP_INFO writes its 4 bytes; 8: the whole structure comes back."""
    asks_domain: bool = False
    """GET_DSP_INFO refuses domains that it does not know."""
    outputs_on_error: bool = True
    """Out buffers come back also when the DSP's result is an error."""
    has_options: bool = True


LINUX_7_3 = Driver()
LINUX_6_1 = Driver(info_offset=0, asks_domain=True, has_options=False)


class _Result(Exception):
    """The DSP's answer is no success: what the request returns."""

    def __init__(self, value: int) -> None:
        super().__init__(hex(value & 0xFFFFFFFF))
        self.value = value


def _check(result: int) -> None:
    """Raise what an answer of the DSP becomes on its way through the kernel."""
    signed = ctypes.c_int32(result).value
    if -_MAX_ERRNO <= signed < 0:
        raise Errno(-signed)
    if signed:
        raise _Result(signed)


class FastRpcBuffer(DmaBufSim):
    """What ALLOC_DMA_BUFF makes, which must not outlive its session."""

    def __init__(self, session: FastRpcFile, backing: PlainPages) -> None:
        super().__init__(session.kernel, backing)
        self.session = session
        self.device = session.device

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        # dma_buf_mmap counts whole pages of the size as it was asked for.
        if offset % PAGE_SIZE:
            raise Errno(errno.EINVAL)
        if (offset + round_to_page(length)) // PAGE_SIZE > self.backing.size // PAGE_SIZE:
            raise Errno(errno.EINVAL)
        if offset:
            # dma_mmap_coherent gets the size of the mapping, not of the buffer.
            raise Errno(errno.ENXIO)
        return Area(self.backing.pieces(length, offset, flags), lambda: None)


class Map:
    """A dma-buf mapped for a session. ``address`` is where the DSP's process has it, once told."""

    def __init__(self, file: FastRpcFile, fd: int, buffer: DmaBufSim, length: int) -> None:
        self.file = file
        self.fd = fd
        self.buffer = buffer
        self.length = length
        self.size = round_to_page(buffer.backing.size)
        self.address = 0
        self.references = 1
        self._mapping: _fast.Mapping | None = None
        buffer.holders += 1
        file.maps.append(self)

    def view(self, offset: int, length: int) -> memoryview:
        """Memory as the DSP reaches it; MemoryFault when it is not all within the buffer."""
        if offset < 0 or offset + length > self.size:
            raise MemoryFault(f"{length} bytes at {offset:#x} of a dma-buf of {self.size}")
        if self._mapping is None:
            both = _fast.PROT_READ | _fast.PROT_WRITE
            self._mapping = self.buffer.backing.map_pages(self.size, 0, both, _fast.MAP_SHARED)
        return memoryview(self._mapping)[offset : offset + length]

    def put(self) -> None:
        self.references -= 1
        if self.references == 0:
            self.file.maps.remove(self)
            if self._mapping is not None:
                self._mapping.close()
            self.file.kernel.put(self.buffer)


class HeapPages:
    """Memory that MMAP gave to the heap of a DSP process."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size


class Context:
    """A message under way. The last of its three ends it: answer, interruption, crash."""

    def __init__(self, channel: Channel, file: FastRpcFile, slot: int) -> None:
        self.channel = channel
        self.file = file
        self.slot = slot
        self.done = False
        self.result = -1
        self.interrupted = False
        self.abandoned = False
        """Its session has ended; the answer alone keeps the slot."""
        self.fdlist: list[int] = []
        self.maps: list[Map] = []

    def complete(self, result: int, fdlist: list[int] | None = None) -> None:
        """The answer; the lock is held. A late one changes nothing."""
        if not self.done:
            self.done, self.result = True, result
            self.fdlist = (fdlist or [])[:MAX_FDLIST]
            if self.abandoned:
                self.free()
            self.file.kernel.changed.notify_all()

    def free(self) -> None:
        self.channel.contexts.pop(self.slot, None)
        for each in self.maps:
            each.put()
        self.maps = []


class Channel:
    """The connection to a DSP that runs. A restart makes another one."""

    def __init__(self, dsp: Dsp, sessions: int) -> None:
        self.dsp = dsp
        self.alive = True
        self.sessions: list[FastRpcFile | None] = [None] * sessions
        self.contexts: dict[int, Context] = {}
        self.attributes: list[int] | None = None
        self.parked: list[HeapPages] = []
        """Heap of interrupted calls, which nobody frees before a restart."""
        self.audio_started = False
        self._cursor = 0

    def context(self, file: FastRpcFile) -> Context:
        """A free slot, after the last one given; Errno(ENOSPC) when there is none."""
        for step in range(MAX_CONTEXTS):
            slot = (self._cursor + step) % MAX_CONTEXTS + 1
            if slot not in self.contexts:
                self._cursor = slot % MAX_CONTEXTS
                context = self.contexts[slot] = Context(self, file, slot)
                return context
        raise Errno(errno.ENOSPC)


class FastRpcFile(CharFile):
    """An open node: one session, one process on the DSP."""

    device: FastRpcSim

    def __init__(self, device: FastRpcSim, channel: Channel, slot: int, secure: bool) -> None:
        super().__init__(device.kernel, device)
        self.channel = channel
        self.slot = slot
        self.client_id = slot + 1
        self.secure_node = secure
        self.pd = _ROOT_PD
        self.poll_mode = False
        self.maps: list[Map] = []
        self.heap: list[HeapPages] = []

    # Talking to the DSP.

    def _message(self, ask: Callable[[], int]) -> None:
        """A message of the driver's own, awaited for 10 seconds at most."""
        if not self.channel.alive:
            raise Errno(errno.EPIPE)
        context = self.channel.context(self)
        if self.channel.dsp.silent:
            self.kernel.wait_for(lambda: context.done, self.device.message_timeout)
            if not context.done:
                # The slot stays taken: a late answer would find it.
                raise Errno(errno.ETIMEDOUT)
            result = context.result
        else:
            result = ask()
        context.free()
        _check(result)

    def _attach_map(self, fd: int, length: int, attr: int) -> Map:
        buffer = self._dma_buf(fd)
        if length > round_to_page(buffer.backing.size):
            raise Errno(errno.EINVAL)
        if attr & abi.FASTRPC_ATTR_SECUREMAP:
            # There is no other machine that the hypervisor could give the memory to.
            self.kernel.log.append(f"fastrpc: Failed to assign memory of dma-buf {fd}")
            raise Errno(errno.EINVAL)
        return Map(self, fd, buffer, length)

    def _create_map(self, fd: int, length: int, attr: int) -> Map:
        """A map that the session has already is used again, whatever its length."""
        buffer = self._dma_buf(fd)
        for each in self.maps:
            if each.fd == fd and each.buffer is buffer:
                each.references += 1
                return each
        return self._attach_map(fd, length, attr)

    def _dma_buf(self, fd: int) -> DmaBufSim:
        file = self.kernel.file(fd)
        if isinstance(file, DmaBufSim):
            return file
        os.close(self.kernel.current.take(fd))
        raise Errno(errno.EINVAL)

    # The requests.

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        handler = self.requests.get(request)
        if handler is None:
            raise Errno(errno.ENOTTY)
        if request == abi.FASTRPC_IOCTL_SET_OPTION and not self.device.driver.has_options:
            raise Errno(errno.ENOTTY)
        # A call holds its file: closing the descriptor does not end the session under it.
        self.holders += 1
        try:
            handler(self, caller, address)
        except _Result as result:
            return result.value
        finally:
            self.kernel.put(self)
        return 0

    def alloc(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_alloc_dma_buf)
        if not 0 < arg.size < DMA_LIMIT:
            raise Errno(errno.ENOMEM)
        pages = os.memfd_create("fastrpc")
        os.ftruncate(pages, round_to_page(arg.size))
        backing = PlainPages(pages, arg.size)
        buffer = FastRpcBuffer(self, backing)
        backing.put()
        arg.fd = buffer.install(cloexec=False)
        try:
            caller.copy_to_user(address, bytes(arg))
        except Errno:
            self.kernel.uninstall(arg.fd)
            raise

    def attach(self, caller: Caller, address: int, pd: int) -> None:
        self.pd = pd
        self._message(lambda: self.channel.dsp.attach(self.client_id, pd == _SENSORS_PD))

    def create(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_init_create)
        if (
            not self.secure_node
            and self.device.secure
            and not (self.device.unsigned_support and arg.attrs & abi.FASTRPC_MODE_UNSIGNED_MODULE)
        ):
            self.kernel.log.append(
                "fastrpc: Error: Untrusted application trying to offload to signed PD"
            )
            raise Errno(errno.ECONNREFUSED)
        if arg.filelen > INIT_FILELEN_MAX:
            raise Errno(errno.EINVAL)
        self.pd = _USER_PD
        image: Map | None = None
        if arg.filelen and arg.filefd:
            image = self._create_map(arg.filefd, arg.filelen, 0)
        elif arg.filelen:
            raise KernelOops("INIT_CREATE without a dma-buf makes the driver read the file's "
                             "address as if it were the kernel's own")  # fmt: skip
        try:
            offset = self._page_offset(caller, arg.file, arg.filelen) if image else 0
            data = bytes(image.view(offset, arg.filelen)) if image else b""
            self._message(lambda: self.channel.dsp.create(self.client_id, data, int(arg.attrs)))
        except MemoryFault as fault:
            self.device.fault(str(fault))
            raise Errno(errno.EPIPE) from None
        except (Errno, _Result):
            if image:
                image.put()
            raise

    def create_static(self, caller: Caller, address: int) -> None:
        if not self.device.remote_heap:
            self.kernel.log.append("fastrpc: remote heap memory region is not added")
            raise Errno(errno.ENOMEM)
        arg = _read(caller, address, abi.fastrpc_init_create_static)
        if arg.namelen > INIT_FILE_NAMELEN_MAX:
            raise Errno(errno.EINVAL)
        name = caller.copy_from_user(arg.name, arg.namelen)
        self.pd = _USER_PD
        first = not self.channel.audio_started
        self.channel.audio_started = True
        try:
            self._message(
                lambda: self.channel.dsp.create_static(
                    self.client_id, name, self.device.remote_heap if first else 0
                )
            )
        except (Errno, _Result):
            if first:
                self.channel.audio_started = False
            raise

    def mmap_heap(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_req_mmap)
        if arg.flags != abi.ADSP_MMAP_ADD_PAGES or arg.vaddrin:
            raise Errno(errno.EINVAL)
        if not 0 < arg.size < DMA_LIMIT:
            raise Errno(errno.ENOMEM)
        where: list[int] = []
        self._message(lambda: self.channel.dsp.add_pages(self.client_id, int(arg.size), where))
        arg.vaddrout = where[0]
        pages = HeapPages(where[0], int(arg.size))
        self.heap.append(pages)
        try:
            caller.copy_to_user(address, bytes(arg))
        except Errno:
            self._remove_pages(pages)
            raise

    def _remove_pages(self, pages: HeapPages) -> None:
        self._message(
            lambda: self.channel.dsp.remove_pages(self.client_id, pages.address, pages.size)
        )
        self.heap.remove(pages)

    def munmap_heap(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_req_munmap)
        for pages in self.heap:
            if (pages.address, pages.size) == (arg.vaddrout, arg.size):
                return self._remove_pages(pages)
        raise Errno(errno.EINVAL)

    def mem_map(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_mem_map)
        each = self._create_map(arg.fd, arg.length, 0)
        where: list[int] = []
        try:
            self._message(
                lambda: self.channel.dsp.map_memory(
                    self.client_id, arg.fd, arg.flags, functools.partial(each.view, 0),
                    each.length, where,
                )
            )  # fmt: skip
        except (Errno, _Result):
            each.put()
            raise
        each.address = arg.vaddrout = where[0]
        try:
            caller.copy_to_user(address, bytes(arg))
        except Errno:
            self._unmap(abi.fastrpc_mem_unmap(fd=arg.fd, vaddr=where[0]))
            raise

    def mem_unmap(self, caller: Caller, address: int) -> None:
        self._unmap(_read(caller, address, abi.fastrpc_mem_unmap))

    def _unmap(self, arg: abi.fastrpc_mem_unmap) -> None:
        for each in self.maps:
            if each.address == arg.vaddr and (arg.fd < 0 or each.fd == arg.fd):
                self._message(
                    lambda: self.channel.dsp.unmap_memory(self.client_id, each.fd, each.address)  # noqa: B023
                )
                return each.put()
        raise Errno(errno.EINVAL)

    def set_option(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_ioctl_set_option)
        if any(arg.reserved) or arg.request_id != abi.FASTRPC_POLL_MODE:
            raise Errno(errno.EINVAL)
        if not self.device.poll_support:
            raise Errno(errno.EOPNOTSUPP)
        if arg.value not in (abi.FASTRPC_POLL_MODE_DISABLE, abi.FASTRPC_POLL_MODE_ENABLE):
            raise Errno(errno.EINVAL)
        self.poll_mode = arg.value == abi.FASTRPC_POLL_MODE_ENABLE

    def get_dsp_info(self, caller: Caller, address: int) -> None:
        driver = self.device.driver
        arg = _read(caller, address, abi.fastrpc_ioctl_capability)
        # The word that is unused now was the domain: 1 is the modem, which has no attributes.
        if driver.asks_domain and (arg.unused >= 4 or arg.unused == 1):
            raise Errno(errno.ECHRNG)
        if arg.attribute_id >= MAX_DSP_ATTRIBUTES:
            raise Errno(errno.EOVERFLOW)
        if self.channel.attributes is None:
            table: list[int] = []
            try:
                self._message(lambda: self.channel.dsp.info(MAX_DSP_ATTRIBUTES - 1, table))
            except _Result as result:
                if result.value & 0xFFFFFFFF == 0x80000414:
                    raise Errno(errno.EOPNOTSUPP) from None
                raise
            # Attribute 0 is for user space to fill.
            self.channel.attributes = [0, *table]
        arg.capability = self.channel.attributes[arg.attribute_id]
        if driver.info_offset == 0:
            caller.copy_to_user(address, int(arg.capability).to_bytes(4, "little"))
        else:
            caller.copy_to_user(address, bytes(arg))

    def invoke(self, caller: Caller, address: int) -> None:
        arg = _read(caller, address, abi.fastrpc_invoke)
        row = abi.fastrpc_invoke_args
        count = abi.REMOTE_SCALARS_LENGTH(arg.sc)
        raw = caller.copy_from_user(arg.args, count * ctypes.sizeof(row)) if count else b""
        rows = list((row * count).from_buffer_copy(raw)) if count else []
        if not self.channel.alive:
            raise Errno(errno.EPIPE)
        if arg.handle == hexagon.HANDLE_KERNEL:
            self.kernel.log.append(
                f"fastrpc: user app trying to send a kernel RPC message ({arg.handle})"
            )
            raise Errno(errno.EPERM)
        context = self.channel.context(self)
        call = _Call(self, caller, context, arg, rows)
        try:
            call.gather()
            call.send()
        except MemoryFault as fault:
            # The DSP's own MMU faults, and that stops the whole DSP.
            self.device.fault(str(fault))
        except Errno:
            context.free()
            raise
        try:
            self.kernel.wait_for(
                lambda: context.done or context.interrupted, None, interruptible=True
            )
            if not context.done:
                raise Errno(errno.EINTR)
        except Errno:
            # The context stays until the DSP restarts, and so does the heap.
            context.interrupted = True
            self.channel.parked += self.heap
            self.heap.clear()
            raise
        try:
            if self.device.driver.outputs_on_error or context.result == 0:
                call.scatter()
        finally:
            for fd in context.fdlist:
                self._drop_listed(fd)
            context.free()
        _check(context.result)

    def _drop_listed(self, fd: int) -> None:
        for each in self.maps:
            if each.fd == fd and each.buffer is self.kernel.file(fd):
                return each.put()
        return None

    def _page_offset(self, caller: Caller, pointer: int, length: int) -> int:
        """Where in a dma-buf the driver takes ``pointer`` to be: the distance from the start of
        the mapping that holds it, which is wrong for a mapping that begins elsewhere."""
        start = vma_start(caller.pid, pointer)
        inside = pointer % PAGE_SIZE
        return inside if start is None else pointer - start

    def released(self) -> None:
        held = [
            file
            for file in self.kernel.files_of(self.device)
            if isinstance(file, FastRpcBuffer) and file.session is self
        ]
        if held:
            self.kernel.log.append(
                f"fastrpc: session closed before {len(held)} of its dma-bufs: freeing them will "
                "read freed memory"
            )
        # The result is not looked at, and a silent DSP delays the close.
        with contextlib.suppress(Errno, _Result):
            self._message(lambda: self.channel.dsp.release(self.client_id))
        self.channel.sessions[self.slot] = None
        stuck = [c for c in self.channel.contexts.values() if c.file is self and not c.done]
        if stuck:
            self.kernel.log.append(f"fastrpc: {len(stuck)} unanswered calls keep their slots")
        for context in [c for c in self.channel.contexts.values() if c.file is self]:
            for each in context.maps:
                each.put()
            context.maps = []
            context.abandoned = True
            if context.done:
                context.free()
        for each in list(self.maps):
            each.references = 1
            each.put()
        self.heap.clear()

    requests: ClassVar[dict[int, Callable[..., None]]] = {
        abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF: alloc,
        abi.FASTRPC_IOCTL_INVOKE: invoke,
        abi.FASTRPC_IOCTL_INIT_ATTACH: functools.partial(attach, pd=_ROOT_PD),
        abi.FASTRPC_IOCTL_INIT_ATTACH_SNS: functools.partial(attach, pd=_SENSORS_PD),
        abi.FASTRPC_IOCTL_INIT_CREATE: create,
        abi.FASTRPC_IOCTL_INIT_CREATE_STATIC: create_static,
        abi.FASTRPC_IOCTL_MMAP: mmap_heap,
        abi.FASTRPC_IOCTL_MUNMAP: munmap_heap,
        abi.FASTRPC_IOCTL_MEM_MAP: mem_map,
        abi.FASTRPC_IOCTL_MEM_UNMAP: mem_unmap,
        abi.FASTRPC_IOCTL_SET_OPTION: set_option,
        abi.FASTRPC_IOCTL_GET_DSP_INFO: get_dsp_info,
    }


class _Call:
    """One INVOKE: its buffers gathered for the DSP, and what came out scattered to the caller."""

    def __init__(
        self,
        file: FastRpcFile,
        caller: Caller,
        context: Context,
        arg: abi.fastrpc_invoke,
        rows: list[abi.fastrpc_invoke_args],
    ) -> None:
        self.file = file
        self.caller = caller
        self.context = context
        self.handle = int(arg.handle)
        self.sc = int(arg.sc)
        self.rows = rows
        self.ins = abi.REMOTE_SCALARS_INBUFS(self.sc)
        self.buffers = self.ins + abi.REMOTE_SCALARS_OUTBUFS(self.sc)
        self.maps: dict[int, Map] = {}
        self.payload = bytearray()
        self.places: dict[int, int] = {}
        """Buffer that is copied -> its place in the payload."""

    def gather(self) -> None:
        self._map()
        order = sorted(
            range(self.buffers),
            key=lambda i: (self.rows[i].ptr, -(self.rows[i].ptr + self.rows[i].length)),
        )
        pieces = self._overlaps(order)
        meta = 40 * len(self.rows) + 8 * MAX_FDLIST + 4 * MAX_CRCLIST + 4
        size = _align(meta)
        for index, start, end, offset in pieces:
            if self.rows[index].fd in (0, -1):
                size = (_align(size) if offset == 0 else size) + end - start
        if size > _PAYLOAD_LIMIT:
            raise Errno(errno.ENOMEM)
        self.payload = bytearray(size)
        at = meta
        for index, start, end, offset in pieces:
            length = self.rows[index].length
            if not length or index in self.maps:
                continue
            if offset == 0:
                at = _align(at)
            place = at - offset
            if place < 0 or place + length > size:
                # A copied range that lies partly in a shared one.
                raise KernelOops("INVOKE copies a buffer over the driver's own message: it "
                                 "overlaps a dma-buf argument")  # fmt: skip
            self.places[index] = place
            at += end - start
            if index < self.ins:
                data = self.caller.copy_from_user(self.rows[index].ptr, length)
                self.payload[place : place + length] = data

    def _map(self) -> None:
        for index, row in enumerate(self.rows):
            if row.fd in (0, -1) or row.length == 0:
                continue
            make = self.file._create_map if index < self.buffers else self.file._attach_map
            try:
                self.maps[index] = make(row.fd, row.length, row.attr)
            except Errno as error:
                self.file.kernel.log.append(f"fastrpc: Error Creating map -{error.code}")
                raise Errno(errno.EINVAL) from None
            if index < self.buffers:
                self.context.maps.append(self.maps[index])

    def _overlaps(self, order: list[int]) -> list[tuple[int, int, int, int]]:
        """(buffer, start and end of what only it brings, bytes that came before), by address."""
        pieces = []
        reach = 0
        for index in order:
            start = int(self.rows[index].ptr)
            end = start + int(self.rows[index].length)
            if start < reach:
                offset = reach - start
                first, last = (reach, end) if end > reach else (0, 0)
                reach = max(reach, end)
            else:
                offset, first, last = 0, start, end
                reach = end
            pieces.append((index, first, last, offset))
        return pieces

    def send(self) -> None:
        """Hand it to the DSP, which answers from a thread of its own."""
        whole = memoryview(self.payload)
        views: list[memoryview] = []
        handles: list[DspBuffer] = []
        for index, row in enumerate(self.rows):
            each = self.maps.get(index)
            length = int(row.length)
            if index >= self.buffers:
                view = each.view(0, each.size) if each else memoryview(b"")
                handles.append(DspBuffer(int(row.fd), view, int(row.ptr) & 0xFFFFFFFF, length))
            elif each:
                offset = self.file._page_offset(self.caller, row.ptr, length)
                views.append(each.view(offset, length))
            else:
                place = self.places.get(index, 0)
                views.append(whole[place : place + length])
        dsp = self.file.channel.dsp
        if dsp.silent:
            return
        kernel, context = self.file.kernel, self.context

        def complete(result: int, fdlist: list[int]) -> None:
            with kernel.lock:
                context.complete(result, fdlist)

        ins, outs = views[: self.ins], views[self.ins :]
        answer = dsp.invoke(
            self.file.client_id,
            Invocation(self.handle, self.sc, ins, outs, handles, complete),
        )
        if answer is not None:
            self.context.complete(answer)

    def scatter(self) -> None:
        for index in range(self.ins, self.buffers):
            if index not in self.maps and self.rows[index].length:
                place = self.places[index]
                data = bytes(self.payload[place : place + self.rows[index].length])
                self.caller.copy_to_user(self.rows[index].ptr, data)


def _align(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _read(caller: Caller, address: int, struct: Any) -> Any:
    return struct.from_buffer_copy(caller.copy_from_user(address, ctypes.sizeof(struct)))


def vma_start(pid: int, address: int) -> int | None:
    """Where the mapping of a process begins that holds ``address``."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            first, _, last = line.partition(b" ")[0].partition(b"-")
            if int(last, 16) > address:
                start = int(first, 16)
                return start if start <= address else None
    return None


class FastRpcSim(SimDevice):
    """The nodes of one DSP. ``label`` is the device tree's: cdsp, cdsp1, adsp, mdsp, sdsp, gdsp0.

    ``sessions`` is how many the device tree gives (14 at most), ``secure`` that it does not say
    ``qcom,non-secure-domain``, ``remote_heap`` the bytes of the ADSP's reserved memory.
    """

    name: str  # type: ignore[misc]
    major = 10

    def __init__(
        self,
        kernel: Any,
        label: str = "cdsp",
        *,
        sessions: int = 12,
        secure: bool = True,
        remote_heap: int = 0,
        driver: Driver = LINUX_7_3,
        poll_support: bool = True,
        message_timeout: float = 10.0,
    ) -> None:
        if label[:4] not in _DOMAINS:
            raise ValueError(f"{label!r} is no DSP that the driver knows")
        if not 1 <= sessions <= 14:
            raise ValueError(f"{sessions} sessions: the driver has 1 to 14")
        self.unsigned_support = label[:4] in ("cdsp", "gdsp")
        nodes = [f"/dev/fastrpc-{label}-secure", f"/dev/fastrpc-{label}"]
        if not self.unsigned_support:
            nodes = nodes[:1] if secure else nodes[1:]
        super().__init__(kernel, tuple(nodes))
        self.name = f"fastrpc-{label.rstrip('0123456789')}"
        self.label = label
        self.secure = secure
        self.remote_heap = remote_heap
        self.driver = driver
        self.poll_support = poll_support
        self.message_timeout = message_timeout
        self.session_count = sessions
        self.dsp = Dsp(kernel.log)
        self.channel: Channel | None = Channel(self.dsp, sessions)

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        channel = self.channel
        if channel is None:
            # The node went with the DSP.
            raise Errno(errno.ENOENT)
        if None not in channel.sessions:
            self.kernel.log.append("fastrpc: No session available")
            raise Errno(errno.EBUSY)
        slot = channel.sessions.index(None)
        file = FastRpcFile(self, channel, slot, path.endswith("-secure"))
        channel.sessions[slot] = file
        return file, os.memfd_create("fastrpc")

    def fault(self, text: str) -> None:
        """The DSP stops, and its firmware starts anew; the kernel's lock is held."""
        self.kernel.log.append(f"fastrpc: the DSP crashed: {text}")
        self._stop()
        self.channel = Channel(self.dsp, self.session_count)

    def _stop(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.alive = False
            for context in list(channel.contexts.values()):
                context.complete(-errno.EPIPE)
        self.dsp.reset()

    def crash(self, text: str = "injected", restart: bool = True) -> None:
        """Stop the DSP. Calls under way end with EPIPE, its nodes go; ``restart`` brings others."""
        with self.kernel.lock:
            self.fault(text)
            if not restart:
                self.channel = None

    def restart(self) -> None:
        """Start a DSP that was left stopped."""
        with self.kernel.lock:
            if self.channel is None:
                self.channel = Channel(self.dsp, self.session_count)

    def interrupt(self) -> int:
        """A signal for every process that waits in INVOKE; how many calls it ended."""
        with self.kernel.lock:
            waiting = [
                context
                for context in (self.channel.contexts.values() if self.channel else ())
                if not context.done and not context.interrupted
            ]
            for context in waiting:
                context.interrupted = True
            self.kernel.changed.notify_all()
            return len(waiting)
