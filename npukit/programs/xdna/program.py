# SPDX-License-Identifier: MIT
"""Programs and kernels: an xclbin on an open XDNA device, and instruction streams run with it.

    with NpuProgram.load(device, data) as program:
        kernel = program.kernel(instructions, KernelContract(
            Binding("a", (1024,), np.int32, "r"),
            Binding("out", (1024,), np.int32, "w"),
        ))
        a, out = kernel.alloc_all()
        ...
        kernel(a, out)

Hardware contexts are few and dear to make, so a device keeps those of its programs and gives up the
one that was used longest ago. Buffers that a command uses stay open until its end is confirmed; if
it cannot be ended they are quarantined: neither freed nor counted as free for as long as the device
is open.
"""

from __future__ import annotations

import contextlib
import errno
import math
import operator
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from npukit.devices.amdxdna import (
    CMD_BYTES,
    AmdxdnaBuffer,
    AmdxdnaDevice,
    BoKind,
    HwContext,
    Submission,
    check_timeout,
    footprint,
)
from npukit.ioctl import DeviceBusy, DeviceClosed, DeviceLost, NpuError, ProgramError, WaitTimeout

from . import ert, registers
from .ert import State
from .txn import Transaction, explain
from .xclbin import ComputeUnit, Pdi, Xclbin

Mode = Literal["r", "w", "rw"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer argument: what the kernel expects to find there and whether it writes it.

    ValueError for a negative shape, a dtype of Python objects or an unknown mode; TypeError for
    a shape of other than integers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    mode: Mode = "rw"

    def __post_init__(self) -> None:
        shape = tuple(map(operator.index, self.shape))
        if np.dtype(self.dtype).hasobject:
            raise ValueError(f"{self.name}: {np.dtype(self.dtype)} is no data")
        if min(shape, default=1) < 0:
            raise ValueError(f"{self.name}: the shape {shape} is negative")
        if self.mode not in ("r", "w", "rw"):
            raise ValueError(f"{self.name}: the mode {self.mode!r} is none of r, w and rw")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def writes(self) -> bool:
        return "w" in self.mode


class KernelContract:
    """The bindings of a kernel, in the order of its buffer arguments.

    ValueError for none, for two of one name, or an empty shape.
    """

    def __init__(self, *bindings: Binding) -> None:
        if not bindings or len({binding.name for binding in bindings}) != len(bindings):
            raise ValueError("a contract has at least one binding, each of its own name")
        for binding in bindings:
            if binding.nbytes == 0:
                raise ValueError(f"{binding}: a contract is about some bytes")
        self.bindings = bindings
        # Asked for at each launch.
        self._sizes = [binding.nbytes for binding in bindings]

    def __repr__(self) -> str:
        return f"KernelContract({', '.join(map(repr, self.bindings))})"

    def check(self, buffers: Sequence[AmdxdnaBuffer]) -> None:
        """ProgramError unless each binding has a data buffer that is large enough, and no written
        buffer is named twice."""
        if len(buffers) != len(self.bindings):
            names = ", ".join(binding.name for binding in self.bindings)
            raise ProgramError(message=f"{len(buffers)} buffers are given for {names}")
        seen: dict[int, Binding] = {}
        for binding, size, buffer in zip(self.bindings, self._sizes, buffers, strict=True):
            if buffer.kind is not BoKind.SHARE:
                raise ProgramError(
                    message=f"{binding.name}: {buffer!r} is no data buffer (SHARE); the NPU would "
                    "do nothing, or stop"
                )
            if buffer.size < size:
                raise ProgramError(
                    message=f"{binding.name} needs {size} bytes, {buffer!r} is smaller"
                )
            other = seen.setdefault(buffer.handle, binding)
            if other is not binding and (other.writes or binding.writes):
                raise ProgramError(
                    message=f"{other.name} and {binding.name} are one buffer, which is written"
                )


class Reservation:
    """A part of a budget, until ``release``."""

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget = budget
        self.size = size
        self._held = True

    def release(self) -> None:
        """Give it back. Idempotent."""
        self._budget._give(self)

    close = release
    """So that a device can hold it in quarantine."""


class MemoryBudget:
    """So many bytes, for the buffers of the programs that it is given to.

    A buffer is charged what it takes: whole pages, and of the heap, in which slices begin at
    multiples of 32 KiB, all up to the next. ValueError for a negative limit, TypeError for one
    that is no integer.

    Synchronization: any thread.
    """

    def __init__(self, limit: int) -> None:
        if operator.index(limit) < 0:
            raise ValueError(f"a budget of {limit} bytes")
        self.limit = limit
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes reserved, those of quarantined buffers included."""
        return self._used

    def reserve(self, size: int, what: str = "a buffer") -> Reservation:
        """Take ``size`` bytes; NpuError (ENOMEM) when that would be over the limit.

        ValueError for a negative size, TypeError for one that is no integer.
        """
        if operator.index(size) < 0:
            raise ValueError(f"a reservation of {size} bytes")
        with self._lock:
            if self._used + size > self.limit:
                raise NpuError(
                    errno.ENOMEM,
                    "the memory budget is used up",
                    hint=f"{what} needs {size} bytes; {self.limit - self._used} of "
                    f"{self.limit} are left",
                )
            self._used += size
        return Reservation(self, size)

    def _give(self, reservation: Reservation) -> None:
        with self._lock:
            if reservation._held:
                reservation._held = False
                self._used -= reservation.size


class _Shared:
    """What the programs of one device have in common."""

    def __init__(self, device: AmdxdnaDevice) -> None:
        self.lock = threading.RLock()
        self.programs: weakref.WeakValueDictionary[tuple[str, int], _Resident] = (
            weakref.WeakValueDictionary()
        )
        self.live: OrderedDict[int, weakref.ref[_Resident]] = OrderedDict()
        """Those that have a context, the one used longest ago first."""
        self.limit = device.contexts_max

    def acquire(self, program: _Resident) -> HwContext:
        """The program's context, made if need be; others give theirs up for it."""
        with self.lock:
            if program._context is not None and not program._context.closed:
                self.live.move_to_end(id(program))
                return program._context
            while len(self.live) >= self.limit:
                if not self._evict():
                    raise DeviceBusy(
                        errno.EBUSY,
                        path=program.device.path,
                        hint=f"all {self.limit} hardware contexts run commands",
                    )
            while True:
                try:
                    program._context = program._make_context()
                    break
                except DeviceBusy:
                    # Other processes have the rest.
                    if not self._evict():
                        raise
            self.live[id(program)] = weakref.ref(program)
            return program._context

    def _evict(self) -> bool:
        """End the context that was used longest ago and runs nothing; False when there is none."""
        for key, reference in list(self.live.items()):
            program = reference()
            if program is not None:
                program._reap()
            if program is None or not program._runs:
                del self.live[key]
                if program is not None:
                    program._drop_context()
                return True
        return False


_shared: weakref.WeakKeyDictionary[AmdxdnaDevice, _Shared] = weakref.WeakKeyDictionary()
_shared_lock = threading.Lock()


def _shared_of(device: AmdxdnaDevice) -> _Shared:
    with _shared_lock:
        found = _shared.get(device)
        if found is None:
            found = _shared[device] = _Shared(device)
        return found


class _Resident:
    """A container on a device: what all who loaded it share. It is closed with the last of them."""

    def __init__(self, device: AmdxdnaDevice, xclbin: Xclbin, budget: MemoryBudget | None) -> None:
        self.device = device
        self.xclbin = xclbin
        self.budget = budget
        self.users: weakref.WeakSet[NpuProgram] = weakref.WeakSet()
        self._shared = _shared_of(device)
        self._context: HwContext | None = None
        self._runs: set[Run] = set()
        self._commands: list[_Command] = []
        self._reservations: list[Reservation] = []
        self._closed = False
        self._check()
        device.dependents.add(self)

    def _check(self) -> None:
        partition = self.xclbin.partition
        path = self.device.path
        if partition is None:
            raise ProgramError(path=path, hint="the container has no AIE_PARTITION")
        if not 1 <= partition.column_width <= self.device.columns:
            raise ProgramError(
                path=path,
                hint=f"the design takes {partition.column_width} columns, this NPU has "
                f"{self.device.columns}",
            )
        self.columns = partition.column_width
        self.ops_per_cycle = partition.ops_per_cycle
        units = self.xclbin.compute_units
        if not units:
            raise ProgramError(path=path, hint="the container has no compute unit")
        if len(units) > ert.MAX_CUS:
            raise ProgramError(
                path=path, hint=f"{len(units)} compute units; the most is {ert.MAX_CUS}"
            )
        self._images: list[tuple[Pdi, int]] = []
        for unit in units:
            if unit.pdi is None:
                raise ProgramError(path=path, hint=f"no PDI serves the compute unit {unit.name}")
            self._images.append((unit.pdi, unit.kernel.functional))
        if self.budget is not None:
            # Units of one image share its slice.
            images = {pdi.digest: len(pdi.image) for pdi, _ in self._images if len(pdi.image)}
            size = sum(footprint(size, BoKind.DEV) for size in images.values())
            self._reservations.append(self.budget.reserve(size, "the program's PDIs"))

    def _make_context(self) -> HwContext:
        context = self.device.context(self.columns, ops_per_cycle=self.ops_per_cycle)
        try:
            context.configure([(pdi.image, function) for pdi, function in self._images])
        except BaseException:
            context.close()
            raise
        return context

    def _drop_context(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def alloc(self, size: int, kind: BoKind = BoKind.SHARE) -> AmdxdnaBuffer:
        if self.budget is None:
            return self.device.alloc(size, kind)
        reservation = self.budget.reserve(footprint(size, kind))
        try:
            buffer = self.device.alloc(size, kind)
        except BaseException:
            reservation.release()
            raise
        buffer.when_closed(reservation.release)
        return buffer

    def _command(self) -> _Command:
        with self._shared.lock:
            return self._commands.pop() if self._commands else _Command(self)

    def _reap(self) -> None:
        """Let go of runs that have ended and for which nobody waited."""
        for run in list(self._runs):
            if run.seq >= 0:
                with contextlib.suppress(NpuError):
                    run.wait(0)

    def leave(self, user: NpuProgram) -> None:
        """``user`` closes. What it left running goes on while others use the context."""
        with self._shared.lock:
            self.users.discard(user)
            if self.users:
                self._reap()
            else:
                self.close()

    def close(self) -> None:
        """End what runs, then give everything back. Idempotent."""
        with self._shared.lock, contextlib.ExitStack() as stack:
            if self._closed:
                return
            self._closed = True
            for reservation in self._reservations:
                stack.callback(reservation.release)
            stack.callback(self._drop_context)
            for command in self._commands:
                stack.callback(command.close)
            for user in list(self.users):
                stack.callback(user.close)
            for run in list(self._runs):
                stack.callback(run.abort)
            stack.callback(self._shared.live.pop, id(self), None)


class NpuProgram:
    """An xclbin on a device, as one user has it. Made by ``load``.

    All who load the same container share its hardware context, and each closes its own program:
    that closes its kernels, and with the last of them goes the context and what runs in it.

    Synchronization: any thread; closing it while another is inside a call of it is the caller's
    error.
    """

    def __init__(self, resident: _Resident) -> None:
        self.device = resident.device
        self.xclbin = resident.xclbin
        self.budget = resident.budget
        self.columns = resident.columns
        self.identity = resident.xclbin.digest
        """SHA-256 of the file."""
        self._resident = resident
        self._kernels: weakref.WeakSet[NpuKernel] = weakref.WeakSet()
        self._closed = False
        resident.users.add(self)

    @classmethod
    def load(
        cls,
        device: AmdxdnaDevice,
        xclbin: Xclbin | bytes | bytearray | memoryview,
        *,
        budget: MemoryBudget | None = None,
    ) -> NpuProgram:
        """Bring a container onto the device, or share the same one that is there already.

        ProgramError for a container that this NPU cannot take, or one that changed while it was
        loaded; DeviceBusy when no hardware context can be had; ENOMEM when ``budget`` is over;
        TypeError for a path, instead of the file's bytes.
        """
        container = xclbin if isinstance(xclbin, Xclbin) else Xclbin(xclbin)
        identity = container.digest
        shared = _shared_of(device)
        with shared.lock:
            key = (identity, id(budget))
            resident = shared.programs.get(key)
            if resident is not None and not resident._closed:
                return cls(resident)
            resident = _Resident(device, container, budget)
            try:
                shared.acquire(resident)
                # The digest is kept by the container; the file may have changed under it.
                if Xclbin(container.data).digest != identity:
                    raise ProgramError(
                        path=device.path, hint="the container changed while it was loaded"
                    )
            except BaseException:
                resident.close()
                raise
            shared.programs[key] = resident
            return cls(resident)

    def __repr__(self) -> str:
        return f"<NpuProgram {self.identity[:12]} of {len(self.xclbin.compute_units)} units>"

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed")
        self.device._check_open()

    def alloc(self, size: int, kind: BoKind = BoKind.SHARE) -> AmdxdnaBuffer:
        """A buffer that counts against the budget until it is closed."""
        self._check_open()
        return self._resident.alloc(size, kind)

    def kernel(
        self,
        instructions: bytes | memoryview | Transaction,
        contract: KernelContract,
        name: str | None = None,
    ) -> NpuKernel:
        """An instruction stream to run on compute unit ``name`` (None: the only one there is).

        ProgramError for a stream that is empty, no whole words, or does not hold together; that
        names tiles outside the partition; or that patches more buffers than the contract has.
        """
        self._check_open()
        return NpuKernel(self, instructions, contract, name)

    def close(self) -> None:
        """Close its kernels; the last one that shares the container also ends what runs in it, and
        gives everything back. Idempotent."""
        with self._resident._shared.lock, contextlib.ExitStack() as stack:
            if self._closed:
                return
            self._closed = True
            for kernel in list(self._kernels):
                stack.callback(kernel.close)
            stack.callback(self._resident.leave, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Command:
    """A packet's buffer and the request that submits it, used one run after the other."""

    def __init__(self, resident: _Resident) -> None:
        self.buffer = resident.alloc(CMD_BYTES, BoKind.CMD)
        self.memory = memoryview(self.buffer.map()).cast("B")
        self.submission = Submission(self.buffer)

    def state(self) -> State:
        done = self.memory[0] & 15 == State.COMPLETED
        return State.COMPLETED if done else ert.state_of(self.memory)

    def close(self) -> None:
        self.memory.release()
        self.buffer.close()


class NpuKernel:
    """An instruction stream on a compute unit. Call it with one buffer for each binding.

    The buffers must be coherent for the NPU (``with buffer.access("w")``); what it wrote is
    coherent for the CPU within ``buffer.access("r")``.
    """

    def __init__(
        self,
        program: NpuProgram,
        instructions: bytes | memoryview | Transaction,
        contract: KernelContract,
        name: str | None,
    ) -> None:
        self.program = program
        self.contract = contract
        self.unit: ComputeUnit = program.xclbin.compute_unit(name)
        self._closed = True
        if not isinstance(instructions, Transaction):
            size = memoryview(instructions).nbytes
            if size == 0 or size % 4:
                raise ProgramError(
                    message=f"{size} bytes of instructions: they are whole words, and some"
                )
            instructions = Transaction(instructions)
        self.stream = instructions
        self._check()
        code = self.stream.to_bytes()
        self._code = program.alloc(len(code), BoKind.DEV)
        self._closed = False
        try:
            self._code.write(code)
            self._packet = self._pack(code)
        except BaseException:
            self.close()
            raise
        program._kernels.add(self)

    def __repr__(self) -> str:
        return f"<NpuKernel {self.unit.name}, {len(self.stream)} operations>"

    def _check(self) -> None:
        given = len(self.contract.bindings)
        declared = sum(a.is_buffer and a.name != "instr" for a in self.unit.kernel.arguments)
        if given > declared:
            raise ProgramError(
                message=f"{self.unit.name} has {declared} buffer arguments, the contract {given}"
            )
        needed = self.stream.arguments()
        if needed > given:
            raise ProgramError(
                message=f"the stream patches argument {needed - 1}, the contract has {given}"
            )
        columns = self.program.columns
        for number, op in enumerate(self.stream):
            place = op.register if op.patch is None else op.patch.register
            column = registers.split(place)[0] if place is not None else 0
            if op.wait is not None:
                column = op.wait.column + max(op.wait.columns, 1) - 1
            if column >= columns:
                raise ProgramError(
                    message=f"operation {number} reaches column {column}; the design has {columns}"
                )

    def _pack(self, code: bytes) -> bytes:
        """The packet but for the addresses of the buffers, which end it."""
        arguments = [a.name for a in self.unit.kernel.arguments]
        values = dict.fromkeys(arguments, 0)
        fixed = {
            "opcode": ert.OPCODE_TXN,
            "instr": self._code.dma_address,
            "ninstr": len(code) // 4,
        }
        if not values.keys() >= fixed.keys():
            raise ProgramError(
                message=f"{self.unit.name} is no kernel for streams: it takes {arguments}"
            )
        packet = ert.start_cu(self.unit.index, ert.register_map(self.unit, {**values, **fixed}))
        offsets = [
            8 + argument.offset
            for argument in self.unit.kernel.arguments
            if argument.is_buffer and argument.name != "instr"
        ][: len(self.contract.bindings)]
        self._places = [(struct.Struct("<Q"), offset) for offset in offsets]
        return packet

    def alloc_all(self) -> list[AmdxdnaBuffer]:
        """A buffer for each binding."""
        made: list[AmdxdnaBuffer] = []
        try:
            # One by one, so that those made are known when one fails.
            made.extend(self.program.alloc(binding.nbytes) for binding in self.contract.bindings)
        except BaseException:
            for buffer in made:
                buffer.close()
            raise
        return made

    def __call__(self, *buffers: AmdxdnaBuffer, timeout: float | None = 6.0) -> None:
        """Run and wait; see ``start`` and ``Run.wait``.

        A run that takes too long is aborted, and so is one whose wait ends otherwise (Ctrl-C):
        nobody would be left to wait for it.
        """
        if timeout is not None:
            check_timeout(timeout)
        run = self.start(*buffers)
        try:
            run.wait(timeout)
        except BaseException:
            run.abort()
            raise

    def start(self, *buffers: AmdxdnaBuffer) -> Run:
        """Queue a run. ProgramError unless the buffers keep the contract; DeviceClosed for a
        closed one."""
        if self._closed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed")
        self.program._check_open()
        resident = self.program._resident
        self.contract.check(buffers)
        device = resident.device
        for buffer in buffers:
            device._check_buffer(buffer)
        command = resident._command()
        memory = command.memory
        memory[: len(self._packet)] = self._packet
        for (layout, offset), buffer in zip(self._places, buffers, strict=True):
            layout.pack_into(memory, offset, buffer.dma_address)
        with resident._shared.lock:
            try:
                context = resident._shared.acquire(resident)
            except BaseException:
                resident._commands.append(command)
                raise
            run = Run(self, command, buffers, context)
            resident._runs.add(run)
        try:
            handles = [self._code.handle, *(buffer.handle for buffer in buffers)]
            # A buffer that is read twice is named once.
            run.seq = command.submission.send(context, list(dict.fromkeys(handles)))
        except BaseException as error:
            with resident._shared.lock:
                ended = run._done
                if isinstance(error, (DeviceBusy, DeviceClosed)):
                    # Refused before the driver took it.
                    run._settle(aborted=True)
                else:
                    # It may be queued all the same (the answer could not be copied out, say).
                    run.abort()
            if ended and isinstance(error, NpuError):
                # Another thread's abort took the context away.
                run._raise()
            raise
        return run

    def close(self) -> None:
        """Give the instructions back, once no run uses them. Idempotent."""
        if not self._closed:
            self._closed = True
            self._code.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Run:
    """A command on its way. It holds its buffers until its end is confirmed.

    Synchronization: any thread; several may wait for it, and one abort it meanwhile.
    """

    def __init__(
        self,
        kernel: NpuKernel,
        command: _Command,
        buffers: Sequence[AmdxdnaBuffer],
        context: HwContext,
    ) -> None:
        self.kernel = kernel
        self._resident = kernel.program._resident
        self.seq = -1
        self._context = context
        self._command = command
        self._buffers = (kernel._code, *buffers)
        for buffer in self._buffers:
            buffer.hold()
        command.buffer.hold()
        self._done = False
        self.state: State | None = None
        """How it ended; None while it runs."""

    @property
    def done(self) -> bool:
        """Whether its end is confirmed."""
        return self._done

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has completed.

        WaitTimeout after ``timeout`` seconds: it still runs. DeviceLost when it was aborted, or
        hung and the driver reset the context; NpuError when the firmware failed it or the driver
        could not start it. Both name the place in the stream where that is known. ValueError for a
        timeout that is negative or NaN.
        """
        if not self._done:
            try:
                self._context.wait(self.seq, timeout)
            except NpuError as error:
                # An abort that ends the context under the wait says how the run ended.
                with self._resident._shared.lock:
                    if not self._done and not (
                        isinstance(error, WaitTimeout) and self._is_done_already()
                    ):
                        raise
            self._settle()
        self._raise()

    def _is_done_already(self) -> bool:
        """Timeline point 0 stands for the newest one, so the first command of a context is awaited
        with all that followed; its packet says whether it is done itself."""
        return self.seq == 0 and self._command.state() in (State.COMPLETED, *ert.FAILED)

    def _settle(self, aborted: bool = False) -> None:
        """Its fence has signalled, or its context is gone: note how it ended and let go.

        Only the first to come does: after it the packet is another run's.
        """
        resident = self._resident
        with resident._shared.lock:
            if self._done:
                return
            state = self._command.state()
            if state is State.COMPLETED:
                self._account = ""
            elif aborted and state not in ert.FAILED:
                state, self._account = State.ABORT, "state ABORT: its context was ended"
            else:
                self._account = self._explain(state)
            self.state = state
            self._done = True
            for buffer in (*self._buffers, self._command.buffer):
                buffer.release()
            resident._runs.discard(self)
            if aborted or resident._closed:
                # Its own thread may be about to submit the packet, in vain.
                self._command.close()
            else:
                resident._commands.append(self._command)

    def _explain(self, state: State) -> str:
        record = ert.health(self._command.memory)
        text = f"state {state.name}"
        if state is State.NEW:
            return f"{text}: the driver could not start the packet (dmesg says why)"
        if record is None:
            return text
        text += f": {record}"
        sentences = explain(self.kernel.stream)
        if record.txn_op_idx < len(sentences):
            text += f"; that is: {sentences[record.txn_op_idx]}"
        return text

    def _raise(self) -> None:
        if self.state is State.COMPLETED:
            return
        lost = self.state in (State.TIMEOUT, State.ABORT)
        cls = DeviceLost if lost else NpuError
        raise cls(
            errno.ENODEV if lost else errno.EIO,
            f"{self.kernel.unit.name} did not complete",
            path=self.kernel.program.device.path,
            hint=self._account,
        )

    def abort(self) -> bool:
        """End it together with all that runs in its hardware context, by ending that: also what
        others run who loaded the same container.

        True when the end is confirmed. Else its buffers are quarantined: they stay open and count
        against the budget until the device is closed.
        """
        resident = self._resident
        shared = resident._shared
        with shared.lock:
            if self._done:
                return True
            context, resident._context = resident._context, None
            shared.live.pop(id(resident), None)
            runs = list(resident._runs)
            try:
                if context is not None:
                    context.close()
            except NpuError:
                # The context stays, with the images of its units, and what they are charged.
                resident.device.quarantine += [*runs, *resident._reservations]
                resident._reservations = []
                resident._runs.clear()
                return False
            for run in runs:
                run._settle(aborted=True)
            return self._done

    def close(self) -> None:
        """Called by the device, which closes: nothing looks at the packet any more."""
        self._command.memory.release()


def quarantined(device: AmdxdnaDevice) -> list[AmdxdnaBuffer]:
    """The buffers of runs and contexts that could not be ended."""
    held: dict[int, Any] = {}
    for item in device.quarantine:
        used = (*item._buffers, item._command.buffer) if isinstance(item, Run) else (item,)
        held.update({b.handle: b for b in used if isinstance(b, AmdxdnaBuffer)})
    return list(held.values())


__all__ = [
    "Binding",
    "KernelContract",
    "MemoryBudget",
    "NpuKernel",
    "NpuProgram",
    "Reservation",
    "Run",
    "quarantined",
]
