# SPDX-License-Identifier: MIT
"""A client of the module of qnn_model.idl: quantized networks on a DSP.

with QnnRuntime(device) as runtime, runtime.load("digits_int8.npz") as model:
    model.set_input(0, images)
    model.execute()
    logits = model.get_output(0, np.int32)
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from npukit.abi import aee
from npukit.devices.fastrpc import FastRpcDevice
from npukit.devices.fastrpc_errors import HexagonError
from npukit.ioctl import DeviceBusy, NpuError

from . import idl

MAX_MODELS = 4
MAX_GRAPHS = 8
FIRST_OUTPUT_BYTES = 64 << 10
"""Bytes asked for of an output whose size is not known yet."""


class ModelNotLoaded(NpuError):
    """The runtime has no such model, or not any more."""


class BadTensorIndex(NpuError, IndexError):
    """The graph has no such input or output, or the model no such graph."""


class ModelBusy(DeviceBusy):
    """The graph executes already; an execution at a time."""


class TooManyModels(NpuError):
    """All places for models are taken: unload one."""


class QnnRuntime:
    """The open module. ``uri`` is where another build of it is found."""

    def __init__(self, device: FastRpcDevice, uri: str | None = None) -> None:
        self.device = device
        self._module = idl.load("qnn_model.idl").open(device, uri)

    def load(self, path: str) -> Model:
        """Load a model from a file of the host, by a name that the session's Host finds.

        TooManyModels beyond 4; HexagonError: no such file, or none that the module reads.
        """
        with self._explained(f"model {path!r}", {"EOUTOFHANDLES": TooManyModels}):
            number, graphs = self._module.model_load(path)
        return Model(self, number, graphs)

    @contextlib.contextmanager
    def _explained(self, what: str, classes: dict[str, type[NpuError]]) -> Iterator[None]:
        """Raise the module's own results as what they mean."""
        try:
            yield
        except HexagonError as error:
            for name, cls in classes.items():
                if error.code == aee.code_of(name):
                    raise cls(
                        _ERRNOS[cls],
                        f"{what}: {_TEXTS[cls]}",
                        path=self.device.path,
                        request=error.request,
                        hint=f"the DSP answers {error.name}",
                    ) from error
            raise

    def close(self) -> None:
        """Unload the module, and all its models with it. Idempotent."""
        self._module.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_ERRNOS: dict[type[NpuError], int] = {
    ModelNotLoaded: errno.ENOENT,
    BadTensorIndex: errno.ERANGE,
    ModelBusy: errno.EBUSY,
    TooManyModels: errno.ENOSPC,
}
_TEXTS: dict[type[NpuError], str] = {
    ModelNotLoaded: "is not loaded",
    BadTensorIndex: "is not there",
    ModelBusy: "executes already",
    TooManyModels: f"{MAX_MODELS} models are loaded, which is the most",
}
_CALL: dict[str, type[NpuError]] = {
    "ENOSUCHINSTANCE": ModelNotLoaded,
    "EBADITEM": BadTensorIndex,
    "EITEMBUSY": ModelBusy,
}


class Model:
    """A loaded model; ``graphs`` is how many it has.

    Synchronization: any number of threads; a graph executes for one at a time (ModelBusy).
    """

    def __init__(self, runtime: QnnRuntime, number: int, graphs: int) -> None:
        self.runtime = runtime
        self.number = number
        self.graphs = graphs
        self._module = runtime._module
        self._unloaded = False

    def __repr__(self) -> str:
        return f"<model {self.number} of {self.graphs} graphs>"

    @contextlib.contextmanager
    def _explained(self, what: str, graph: int = 0, index: int = 0) -> Iterator[None]:
        text = f"model {self.number}, {what}"
        try:
            if graph < 0 or index < 0:
                raise BadTensorIndex(
                    _ERRNOS[BadTensorIndex],
                    f"{text}: {_TEXTS[BadTensorIndex]}",
                    path=self.runtime.device.path,
                )
            with self.runtime._explained(text, _CALL):
                yield
        except BadTensorIndex as error:
            error.hint = ": ".join(filter(None, (error.hint, self._contents(graph))))
            raise

    def _contents(self, graph: int) -> str:
        if not 0 <= graph < self.graphs:
            return f"the model has {self.graphs} graphs"
        inputs, outputs = self._module.tensor_counts(self.number, graph)
        return f"the graph has {inputs} inputs and {outputs} outputs"

    def tensor_counts(self, graph: int = 0) -> tuple[int, int]:
        """(inputs, outputs) of a graph."""
        with self._explained(f"graph {graph}", graph):
            counts: tuple[int, int] = self._module.tensor_counts(self.number, graph)
        return counts

    def set_input(self, index: int, data: npt.NDArray[Any], graph: int = 0) -> None:
        """Give an input its data: whole rows, as the network was trained to read them."""
        with self._explained(f"graph {graph}, input {index}", graph, index):
            self._module.set_input(
                self.number, graph, index, np.ascontiguousarray(data).view(np.uint8).ravel()
            )

    def execute(self, graph: int = 0) -> None:
        """Run a graph to its end. ModelBusy when it runs for another caller."""
        with self._explained(f"graph {graph}", graph):
            self._module.execute(self.number, graph)

    def get_output(
        self, index: int, dtype: npt.DTypeLike = np.int32, graph: int = 0
    ) -> npt.NDArray[Any]:
        """An output of the last execution, as a row of ``dtype``."""
        capacity = FIRST_OUTPUT_BYTES
        with self._explained(f"graph {graph}, output {index}", graph, index):
            data, size = self._module.get_output(self.number, graph, index, capacity)
            if size > capacity:
                data, size = self._module.get_output(self.number, graph, index, size)
        output: npt.NDArray[Any] = np.frombuffer(data[:size], dtype)
        return output

    def unload(self) -> None:
        """Give its place back. ModelNotLoaded when that was done before."""
        with self._explained("unload"):
            self._module.model_unload(self.number)
        self._unloaded = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._unloaded:
            self.unload()
