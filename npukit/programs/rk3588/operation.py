# SPDX-License-Identifier: MIT
"""What all operations have in common, and running one on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError

from .launch import Rk3588Device, core_share, run
from .program import Program
from .tensor import ATOM, Tensor

Array = npt.NDArray[Any]


class Operation(Protocol):
    """Made from shapes and quantizations, without a device; never changed."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def output(self) -> Tensor: ...

    @property
    def constants(self) -> npt.NDArray[np.uint8]:
        """The image of weights, biases and the like; it may be empty."""
        ...

    def program(self, inputs: Sequence[int], constants: int, output: int) -> Program:
        """The tasks, a chain, for buffers at these DMA addresses (16-byte aligned, 32 bits).

        ProgramError: an address that is neither, or a shape that some register cannot hold.
        """
        ...


@runtime_checkable
class Divisible(Operation, Protocol):
    """An operation whose work several cores can share."""

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """1 to ``cores`` programs that together do what ``program`` does, in any order."""
        ...


class Divided:
    """The half of a ``Divisible`` that follows from the other: one core's program is the whole."""

    __slots__ = ()

    def program(self: Divisible, inputs: Sequence[int], constants: int, output: int) -> Program:
        """The tasks, a chain, as of ``Operation``."""
        return self.programs(inputs, constants, output, 1)[0]


class WithoutConstants(Divided):
    """One that has none: where they would be is not looked at."""

    __slots__ = ()

    @property
    def constants(self) -> npt.NDArray[np.uint8]:
        """Empty."""
        return np.zeros(0, np.uint8)


def check_addresses(op: Operation, inputs: Sequence[int], constants: int, output: int) -> None:
    if len(inputs) != len(op.inputs):
        raise ProgramError(
            message=f"{len(inputs)} input addresses for an operation on {len(op.inputs)} tensors"
        )
    sizes = [tensor.size for tensor in op.inputs]
    places = [*zip(inputs, sizes, strict=True), (constants, len(op.constants))]
    for address, size in [*places, (output, op.output.size)]:
        if address % ATOM or not 0 <= address <= (1 << 32) - size:
            raise ProgramError(
                message=f"{size} bytes cannot be at {address:#x}: DMA addresses are 16-byte "
                "aligned and below 4 GiB"
            )


def execute(
    device: Rk3588Device,
    op: Operation,
    *inputs: Array,
    cores: int | None = None,
    timeout: float = 6.0,
) -> Array:
    """The result (height, width, channels) of ``op`` on ``inputs``.

    ``cores`` (None: all) share the work of a Divisible operation; others take one. ``timeout`` in
    seconds. ProgramError for inputs of another shape or dtype, WaitTimeout, and what the device
    raises.
    """
    share = core_share(device, cores)
    if len(inputs) != len(op.inputs):
        raise ProgramError(message=f"{len(inputs)} inputs for an operation on {len(op.inputs)}")
    images = [tensor.pack(values) for tensor, values in zip(op.inputs, inputs, strict=True)]
    images.append(op.constants)
    with contextlib.ExitStack() as stack:
        buffers = []
        for image in images:
            # A buffer of nothing cannot be had; an operation without constants reads none.
            buffer = stack.enter_context(device.alloc(max(image.nbytes, ATOM)))
            with buffer.access("w") as memory:
                memory[: image.nbytes] = image.reshape(-1).view(np.uint8)
            buffers.append(buffer)
        output = stack.enter_context(device.alloc(op.output.size))
        *places, constants = (buffer.dma_address for buffer in buffers)
        if isinstance(op, Divisible):
            programs = op.programs(places, constants, output.dma_address, share)
        else:
            programs = [op.program(places, constants, output.dma_address)]
        run(device, programs, buffers, [output], timeout=timeout)
        return op.output.unpack(output.array()[: op.output.size]).copy()
