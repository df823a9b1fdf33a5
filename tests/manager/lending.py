# SPDX-License-Identifier: MIT
"""A service that lends buffers, with a clock and a queue that a test moves by hand."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from npukit.devices import DmaHeap, Udmabuf
from npukit.devices.wrapfd import Wrapfd
from npukit.ioctl import Kernel, LinuxKernel
from npukit.manager.allocator import Allocator, Heap, Session
from npukit.manager.backends import Backend, DmaBufBackend, MemfdBackend, WrapBackend
from npukit.manager.buffers import AllocRequest, Buffer, BufferClient, BufferType, FileSegment
from npukit.manager.types import UNKNOWN, Importance
from npukit.sim import SimKernel
from npukit.sim.wrapfd import WrapfdSim

BACKENDS = ["memfd", "wrapfd", "wrapfd-1", "udmabuf", "dma_heap"]
"""wrapfd-1: the first generation, whose rules are those of all but the newest."""
TAKES_BACK = [name for name in BACKENDS if name not in ("udmabuf", "dma_heap")]
WEIGHTS, CACHE = BufferType.MODEL_WEIGHTS, BufferType.CACHE
EVERY_TYPE = [kind for kind in BufferType if kind is not BufferType.UNKNOWN]


def machine(name: str) -> Kernel:
    """A kernel that has what the back-end needs."""
    if name == "memfd":
        return LinuxKernel()
    kernel = SimKernel(["dma_heap", "udmabuf"])
    generation = "1" if name == "wrapfd-1" else "3"
    kernel.devices.append(WrapfdSim(kernel, ("/dev/wrapfd",), generation))
    return kernel


def make_backend(name: str, kernel: Kernel) -> Backend:
    if name == "memfd":
        return MemfdBackend(kernel)
    source = Udmabuf(kernel) if name == "udmabuf" else DmaHeap(kernel=kernel)
    if not name.startswith("wrapfd"):
        return DmaBufBackend(source)
    try:
        return WrapBackend(Wrapfd(kernel), source)
    except BaseException:
        source.close()
        raise


class Lending:
    """The allocator, its clock and its queue; ``events`` is what clients were told, in order."""

    def __init__(
        self,
        name: str = "memfd",
        kernel: Kernel | None = None,
        limit: int | None = None,
        **how: Any,
    ) -> None:
        self.name = name
        self.kernel = kernel or machine(name)
        self.now = 0.0
        self.queue: deque[Callable[[], None]] = deque()
        self.freed: list[int] = []
        self.events: list[tuple[Any, ...]] = []
        self.backend = make_backend(name, self.kernel)
        self.allocator = Allocator(
            [Heap(self.backend, [0], EVERY_TYPE, limit)],
            clock=lambda: self.now,
            submit=self.queue.append,
            on_freed=self.freed.append,
            **how,
        )
        self._names = itertools.count(1)

    def client(self, principal: str = "A", importance: Importance = UNKNOWN) -> Client:
        return Client(self, principal, importance)

    def work(self) -> None:
        """Do all work that was queued."""
        while self.queue:
            self.queue.popleft()()

    def close(self) -> None:
        self.work()
        self.allocator.close()

    def __enter__(self) -> Lending:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Client:
    """A BufferClient in this process, whose callbacks are written down."""

    def __init__(self, lending: Lending, principal: str, importance: Importance) -> None:
        self.lending = lending
        self.principal = principal
        self.buffers = BufferClient(kernel=lending.kernel)
        self.session: Session = lending.allocator.connect(
            self.buffers, principal, pid=1, importance=importance
        )
        self.buffers.connect(self.session)

    def request(self, cookie: Any, size: int = 1 << 20, **fields: Any) -> AllocRequest:
        fields = {"device": 0, "type": WEIGHTS, **fields}
        events = self.lending.events
        return AllocRequest(
            size=size,
            cookie=cookie,
            on_alloc=lambda code, buffer, cookie: events.append(("alloc", cookie, code, buffer)),
            on_preempt=lambda buffer, cookie: events.append(("preempt", cookie)),
            **fields,
        )

    def alloc(self, cookie: Any = "a", size: int = 1 << 20, **fields: Any) -> Buffer:
        """One buffer, with the event of its arrival taken off the list."""
        self.buffers.alloc_async([self.request(cookie, size, **fields)])
        self.lending.work()
        kind, came, code, buffer = self.lending.events.pop()
        assert (kind, came, code) == ("alloc", cookie, 0)
        assert isinstance(buffer, Buffer)
        return buffer

    def load(self, buffer: Buffer, segment: FileSegment) -> None:
        events = self.lending.events
        buffer.load_async(
            segment, lambda code, buffer: events.append(("load", buffer.request.cookie, code))
        )

    def close(self) -> None:
        self.buffers.close()
        self.session.close()
