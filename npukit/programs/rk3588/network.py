# SPDX-License-Identifier: MIT
"""Operations that feed each other: placed in memory once, run on one input after another.

    net = Network([Step(conv, ("image",), "features"), Step(pool, ("features",), "means")])
    with net.load(device) as model:
        means = model.run({"image": x})["means"]

Nothing but the network's inputs and outputs is ever copied: what one operation writes is what the
next one reads, in an arena (see planner) that only the NPU touches.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.devices.rknpu import RknpuDevice
from npukit.ioctl import ProgramError

from .cost import cost
from .launch import Code, Rk3588Device, core_share
from .operation import Divisible, Operation
from .planner import ALIGN, Block, Plan, place
from .program import Program
from .tensor import ATOM, Tensor, align

Array = npt.NDArray[Any]

MAX_TASKS = 4095
"""Of a chain: the PC counts with 12 bits, and the rknpu driver starts longer ones in pieces."""

SUBMISSION = 1e-4
"""Seconds: an ioctl, an interrupt, and two threads to wake. No measurement of an RK3588 is known;
this is meant to be rather too much."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operation and the names of the values that it reads and writes."""

    op: Operation
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Part:
    """A value that lies within another one: its channels from ``channel`` on, at every pixel.

    Steps that write all parts of a value concatenate it; a step that reads a part takes a slice.
    """

    whole: str
    channel: int = 0


@dataclass(frozen=True, slots=True)
class _Value:
    """``tensor`` as the step sees it that uses most surfaces, from ``surface`` of ``root`` on."""

    tensor: Tensor
    root: str
    surface: int
    steps: tuple[int, ...]
    """Those that use it."""

    @property
    def offset(self) -> int:
        """Bytes from the start of ``root``."""
        return self.surface * self.tensor.area * ATOM

    def surfaces(self, stored: int | None = None) -> set[int]:
        """Of ``root``: those that hold channels, or the ``stored`` ones."""
        used = -(-self.tensor.channels // self.tensor.lanes)
        return set(range(self.surface, self.surface + (stored or used)))


class Network:
    """Steps in the order in which they run, checked against each other; made without a device.

    ``parts`` names values that lie within others. Values that no step writes are the inputs.

    ProgramError: a value that is read before it is written, or is written over while it is needed,
    or that two steps see in different shapes or quantizations; a part that is not within its value.
    """

    def __init__(self, steps: Iterable[Step], parts: Mapping[str, Part] | None = None) -> None:
        self.steps = tuple(steps)
        self._values = self._find_values(parts or {})
        written = {self._values[step.output].root for step in self.steps}
        self.inputs = tuple(
            name
            for name, value in self._values.items()
            if value.root == name and name not in written
        )
        read = {
            (value.root, surface)
            for step in self.steps
            for value in map(self._values.__getitem__, step.inputs)
            for surface in value.surfaces()
        }
        self.outputs = tuple(
            step.output
            for step in self.steps
            for value in [self._values[step.output]]
            if not any((value.root, surface) in read for surface in value.surfaces())
        )
        """What no step reads, not even in part."""
        self._check_order()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Each value with all the surfaces that some step uses."""
        return {name: value.tensor for name, value in self._values.items()}

    def _find_values(self, parts: Mapping[str, Part]) -> dict[str, _Value]:
        tensors: dict[str, Tensor] = {}
        uses: dict[str, list[int]] = defaultdict(list)
        for index, step in enumerate(self.steps):
            if len(step.inputs) != len(step.op.inputs):
                raise ProgramError(
                    message=f"step {index} names {len(step.inputs)} inputs; its operation has "
                    f"{len(step.op.inputs)}"
                )
            named = zip(step.inputs, step.op.inputs, strict=True)
            for name, tensor in (*named, (step.output, step.op.output)):
                known = tensors.setdefault(name, tensor)
                if replace(known, surfaces=tensor.surfaces) != tensor:
                    raise ProgramError(
                        message=f"step {index} sees {name!r} as {_form(tensor)}, step "
                        f"{uses[name][0]} as {_form(known)}"
                    )
                uses[name].append(index)
                if tensor.surfaces > known.surfaces:
                    tensors[name] = tensor
        values = {}
        for name, tensor in tensors.items():
            root, channel = name, 0
            for _ in parts:
                if root in parts:
                    channel += parts[root].channel
                    root = parts[root].whole
            whole = tensors.get(root)
            if (
                whole is None
                or root in parts
                or replace(tensor, channels=0, surfaces=0) != replace(whole, channels=0, surfaces=0)
                or channel % tensor.lanes
                or not 0 <= channel <= whole.channels - tensor.channels
            ):
                seen = "no value of a step" if whole is None else _form(whole)
                raise ProgramError(
                    message=f"{name!r}, {_form(tensor)}, cannot be at channel {channel} of "
                    f"{root!r}, {seen}: parts have their value's height, width and quantization, "
                    f"and begin at a multiple of {tensor.lanes} channels"
                )
            values[name] = _Value(tensor, root, channel // tensor.lanes, tuple(uses[name]))
        return values

    def _check_order(self) -> None:
        """Every value is whole when it is read, and stays so: also where groups are filled up."""
        done: dict[str, set[int]] = {}
        for step in self.steps:
            value = self._values[step.output]
            done.setdefault(value.root, set())
        for index, step in enumerate(self.steps):
            for name in step.inputs:
                value = self._values[name]
                if not value.surfaces() <= done.get(value.root, value.surfaces()):
                    raise ProgramError(message=f"step {index} reads {name!r} before it is written")
            value = self._values[step.output]
            if value.surfaces(step.op.output.surfaces) & done[value.root]:
                raise ProgramError(
                    message=f"step {index} writes {step.output!r} over what is written already"
                    + (f" of {value.root!r}" if value.root != step.output else "")
                )
            done[value.root] |= value.surfaces()

    def plan(
        self, outputs: Iterable[str] | None = None, *, reuse: bool = True
    ) -> tuple[dict[str, int], Plan]:
        """The arena: the offset of each value in it, and its size.

        Inputs and ``outputs`` (None: ``self.outputs``) have memory of their own. Without ``reuse``
        all others have, too, but in the arena.
        """
        outside = self._outside(self.outputs if outputs is None else outputs)
        names = [name for name, value in self._values.items() if value.root not in outside]
        last = len(self.steps) - 1
        blocks = []
        for name in names:
            value = self._values[name]
            steps = value.steps if reuse else (0, last)
            root = None if value.root == name else names.index(value.root)
            size = self._size(name) if root is None else value.tensor.size
            align = ALIGN if root is None else ATOM
            blocks.append(Block(size, min(steps), max(steps), align, root, value.offset))
        plan = place(blocks)
        return dict(zip(names, plan.offsets, strict=True)), plan

    def _outside(self, outputs: Iterable[str]) -> list[str]:
        """The roots that have a buffer of their own: those of inputs and outputs."""
        outputs = tuple(outputs)
        unknown = [name for name in outputs if name not in self._values]
        if unknown:
            raise ProgramError(message=f"no step writes {', '.join(map(repr, unknown))}")
        return list(dict.fromkeys(self._values[name].root for name in (*self.inputs, *outputs)))

    def _size(self, root: str) -> int:
        """Bytes that steps read or write in a root or its parts."""
        values = [value for value in self._values.values() if value.root == root]
        return max(value.offset + value.tensor.size for value in values)

    def load(
        self,
        device: Rk3588Device,
        *,
        outputs: Iterable[str] | None = None,
        cores: int | None = None,
        submission: float = SUBMISSION,
    ) -> Model:
        """Place all in the memory of ``device``, ready to run; to be closed before the device.

        ``outputs`` are the values that ``Model.run`` gives (None: ``self.outputs``).

        Under rknpu, ``cores`` (None: all) share an operation that can be divided where that gains,
        as ``cost`` estimates it, more than the ``submission`` seconds that a submission takes:
        only the end of a submission says that all cores are done, so each such operation is one.
        The operations between them follow each other in a chain on one core. Under rocket an
        operation is a job, all jobs are one submission, and one core runs them.

        ProgramError: an operation that cannot be placed there; and what the device raises.
        """
        return Model(self, device, outputs, cores, submission)


class Model:
    """A network in a device's memory; made by ``Network.load``. One thread at a time.

    Under rknpu values share the arena. Rocket reports no failed job, so there each keeps its memory
    until the end, where every task's output is checked for a change.
    """

    def __init__(
        self,
        network: Network,
        device: Rk3588Device,
        outputs: Iterable[str] | None,
        cores: int | None,
        submission: float,
    ) -> None:
        share = core_share(device, cores)
        rknpu = isinstance(device, RknpuDevice)
        self.network = network
        self.outputs = network.outputs if outputs is None else tuple(outputs)
        offsets, self.plan = network.plan(self.outputs, reuse=rknpu)
        with contextlib.ExitStack() as stack:

            def allocate(size: int) -> Any:
                # Memory of nothing cannot be had.
                return stack.enter_context(device.alloc(max(size, ATOM)))

            self._arena = allocate(self.plan.size)
            self._buffers = {
                root: allocate(network._size(root)) for root in network._outside(self.outputs)
            }
            self._constants, constants = _load_constants(network, allocate)
            addresses = {
                name: self._arena.dma_address + offset for name, offset in offsets.items()
            } | {
                name: self._buffers[value.root].dma_address + value.offset
                for name, value in network._values.items()
                if value.root in self._buffers
            }
            divided = []
            for step in network.steps:
                places = [addresses[name] for name in step.inputs]
                arguments = (places, constants[id(step.op)], addresses[step.output])
                divided.append(_divide(step.op, arguments, share if rknpu else 1, submission))
            # Rocket resets a job after half a second, so there each operation is one.
            chains = _chains(divided) if rknpu else divided
            self._code = stack.enter_context(Code(device, chains))
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        steps = self._code.steps
        tasks = sum(len(program.tasks) for step in steps for program in step)
        kind = "submission" if isinstance(self._code.device, RknpuDevice) else "job"
        return (
            f"<Model of {len(self.network.steps)} operations: {tasks} tasks in {len(steps)} "
            f"{kind}{'s' if len(steps) > 1 else ''}, arena of {self.plan.size} bytes "
            f"({self.plan.peak} live at once), {self._constants.size} bytes of constants>"
        )

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._stack.close()

    def run(self, inputs: Mapping[str, Array], *, timeout: float = 6.0) -> dict[str, Array]:
        """The outputs (height, width, channels) for these inputs; ``timeout`` in seconds.

        ProgramError for inputs that are missing, unknown, or of another shape or dtype;
        WaitTimeout, DeviceLost, and what the device raises.
        """
        network = self.network
        if not isinstance(inputs, Mapping):
            raise ProgramError(message=f"inputs by name are needed: {{{network.inputs[0]!r}: ...}}")
        if set(inputs) != set(network.inputs):
            raise ProgramError(
                message=f"inputs {', '.join(inputs) or 'none'}; the network has "
                f"{', '.join(network.inputs)}"
            )
        images = {
            name: network._values[name].tensor.pack(values) for name, values in inputs.items()
        }
        for name, image in images.items():
            with self._buffers[name].access("w", timeout) as memory:
                memory[: image.nbytes] = image.reshape(-1).view(np.uint8)
        reads = [self._constants, *(self._buffers[name] for name in network.inputs)]
        roots = dict.fromkeys(network._values[name].root for name in self.outputs)
        writes = [self._buffers[root] for root in roots if root not in network.inputs]
        self._code.run(reads, writes, [self._arena], timeout=timeout)
        return {name: self._read(name) for name in self.outputs}

    def _read(self, name: str) -> Array:
        value = self.network._values[name]
        memory = self._buffers[value.root].array(offset=value.offset, shape=value.tensor.size)
        return value.tensor.unpack(memory)


def _load_constants(network: Network, allocate: Callable[[int], Any]) -> tuple[Any, dict[int, int]]:
    """All constants in one buffer; their addresses by the identity of the operation."""
    images = {id(step.op): step.op.constants for step in network.steps}
    ends = list(accumulate((align(image.nbytes, ALIGN) for image in images.values()), initial=0))
    buffer = allocate(ends[-1])
    with buffer.access("w") as memory:
        for image, start in zip(images.values(), ends, strict=False):
            memory[start : start + image.nbytes] = image
    starts = (buffer.dma_address + start for start in ends)
    return buffer, dict(zip(images, starts, strict=False))


def _divide(
    op: Operation, arguments: tuple[list[int], int, int], cores: int, submission: float
) -> list[Program]:
    """A program for each of several cores, if that gains more than ``submission`` seconds."""
    whole = op.program(*arguments)
    if cores == 1 or not isinstance(op, Divisible):
        return [whole]
    parts = op.programs(*arguments, cores)
    gain = cost(whole).seconds - max(cost(part).seconds for part in parts)
    return parts if gain > submission else [whole]


def _chains(divided: Iterable[list[Program]]) -> list[list[Program]]:
    """Neighbours that one core runs become one chain; a chain has at most MAX_TASKS."""
    steps: list[list[Program]] = []
    run: list[Program] = []
    for programs in divided:
        tasks = sum(len(program.tasks) for program in (*run, *programs))
        if run and (len(programs) > 1 or tasks > MAX_TASKS):
            steps.append([Program.join(run)])
            run = []
        if len(programs) > 1:
            steps.append(programs)
        else:
            run += programs
    return [*steps, [Program.join(run)]] if run else steps


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tensor.shape} with {tensor.quantization}"
