# SPDX-License-Identifier: MIT
"""Raw FastRPC requests on a simulated kernel: what the driver answers, value and errno."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from npukit.abi import fastrpc as abi
from npukit.ioctl.kernel import round_to_page
from npukit.sim import SimKernel
from npukit.sim.cdsp import SHELL, Invocation, Process
from npukit.sim.fastrpc import FastRpcSim

SECURE, OPEN = "/dev/fastrpc-cdsp-secure", "/dev/fastrpc-cdsp"
TRY_URI = "file:///libtry_skel.so?try_skel_handle_invoke"


def machine(label: str = "cdsp", **options: Any) -> tuple[SimKernel, FastRpcSim]:
    """A machine with one DSP, made with options that a name cannot give."""
    kernel = SimKernel(["dma_heap"])
    device = FastRpcSim(kernel, label, **options)
    kernel.devices.append(device)
    return kernel, device


class TrySkel:
    """A module whose calls a test defines."""

    def __init__(self, do: Callable[[Invocation], None]) -> None:
        self.do = do

    def invoke(self, call: Invocation) -> None:
        self.do(call)


class Session:
    """An open node. ``ask`` gives (value, errno) and never raises."""

    def __init__(self, kernel: SimKernel, path: str = SECURE, create: bool = True) -> None:
        self.kernel = kernel
        self.fd = kernel.open(path, os.O_RDWR | os.O_CLOEXEC)
        if create:
            assert self.create() == (0, 0)

    def ask(self, request: Any, arg: Any = None) -> tuple[int, int]:
        return self.kernel.ioctl(self.fd, request, arg)

    def alloc(self, size: int) -> int:
        arg = abi.fastrpc_alloc_dma_buf(size=size)
        assert self.ask(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, arg) == (0, 0)
        return int(arg.fd)

    def create(self, image: bytes = SHELL, attrs: int = 0, **fields: int) -> tuple[int, int]:
        """INIT_CREATE with ``image`` in a dma-buf; ``fields`` override."""
        size = round_to_page(max(len(image), 1))
        fd = self.alloc(size)
        mapping = self.kernel.mmap(fd, size)
        memoryview(mapping)[: len(image)] = image
        arg = {"filelen": len(image), "filefd": fd, "attrs": attrs, "file": mapping.address}
        try:
            return self.ask(
                abi.FASTRPC_IOCTL_INIT_CREATE, abi.fastrpc_init_create(**(arg | fields))
            )
        finally:
            self.kernel.munmap(mapping)
            self.kernel.close(fd)

    def invoke(
        self, handle: int, sc: int, rows: Sequence[tuple[int, int, int]] = (), attr: int = 0
    ) -> tuple[int, int]:
        """``rows`` are (address, length, fd)."""
        table = (abi.fastrpc_invoke_args * max(len(rows), 1))()
        for row, (address, length, fd) in zip(table, rows, strict=False):
            row.ptr, row.length, row.fd, row.attr = address, length, fd, attr
        call = abi.fastrpc_invoke(handle, sc, ctypes.addressof(table))
        return self.ask(abi.FASTRPC_IOCTL_INVOKE, call)

    def call(
        self, handle: int, method: int, ins: Sequence[bytes] = (), outs: Sequence[int] = ()
    ) -> tuple[int, int, list[bytes]]:
        """(value, errno, out buffers), all by copy."""
        buffers = [ctypes.create_string_buffer(data, max(len(data), 1)) for data in ins]
        results = [ctypes.create_string_buffer(max(size, 1)) for size in outs]
        rows = [
            (ctypes.addressof(buffer), length, -1)
            for buffer, length in zip((*buffers, *results), (*map(len, ins), *outs), strict=True)
        ]
        sc = abi.REMOTE_SCALARS_MAKE(method, len(ins), len(outs))
        value, code = self.invoke(handle, sc, rows)
        filled = [result.raw[:size] for result, size in zip(results, outs, strict=True)]
        return value, code, filled

    def open_module(self, uri: str) -> tuple[int, int, str]:
        """(handle, the DSP's result, its text)."""
        name = uri.encode() + b"\0"
        value, code, (numbers, text) = self.call(
            0, 0, [struct.pack("<II", len(name), 255), name], [8, 255]
        )
        assert (value, code) == (0, 0)
        handle, result = struct.unpack("<II", numbers)
        return handle, result, text.split(b"\0")[0].decode()

    def try_module(self, device: FastRpcSim, do: Callable[[Invocation], None]) -> int:
        """The handle of a module that does ``do``."""

        def make(process: Process) -> TrySkel:
            return TrySkel(do)

        device.dsp.register(TRY_URI, make)
        handle, result, text = self.open_module(TRY_URI)
        assert result == 0, text
        return handle

    def close(self) -> None:
        self.kernel.close(self.fd)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Later:
    """A call on a thread of its own; ``result`` waits for it."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._answer: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answer.append(do()))
        self._thread.start()

    def result(self) -> Any:
        self._thread.join()
        return self._answer[0]
