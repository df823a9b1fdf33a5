# SPDX-License-Identifier: MIT
"""The steps by which a Hexagon DSP is tried: what is done, and what must have come of it.

Some need files that vendors keep to themselves. A step that lacks one passes, says what is missing,
and those that build on it say that they were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice
from npukit.devices.fastrpc_errors import HexagonError
from npukit.devices.fastrpc_host import Host
from npukit.devices.shell import SHELL_FOLDERS
from npukit.ioctl import NoDevice

from . import idl
from .qnn_model import QnnRuntime

Check: TypeAlias = Callable[[FastRpcDevice], tuple[bool, str]]

BUFFER_BYTES = 1 << 20
KEY = 0x5A
MODEL = "digits_int8.npz"
ASKED = ("ARCH_VER", "UNSIGNED_PD_SUPPORT", "HVX_SUPPORT_128B", "VTCM_PAGE")


class _Run:
    """What the steps hand on to each other."""

    def __init__(
        self,
        shell: bytes | None,
        images: npt.NDArray[np.uint8],
        expected: npt.NDArray[np.int32],
        search: Sequence[str],
    ) -> None:
        self.shell = shell
        self.images = images
        self.expected = expected
        self.search = search
        self.missing = ""

    def capabilities(self, device: FastRpcDevice) -> tuple[bool, str]:
        answers = {name: device.capability(name) for name in ASKED}
        if set(answers.values()) == {None}:
            return True, "this DSP's firmware answers no such questions"
        return True, ", ".join(
            f"{name} {value:#x}" for name, value in answers.items() if value is not None
        )

    def start(self, device: FastRpcDevice) -> tuple[bool, str]:
        try:
            # Whoever tries a DSP wants what is installed; the line below says what that means.
            device.start(self.shell, verify=UNVERIFIED, host=Host(self.search))
        except NoDevice as error:
            self.missing = "left out: there is no process on the DSP"
            return True, f"left out: {error}"
        return True, f"an unsigned process on {device.domain}, its shell not verified"

    def memory(self, device: FastRpcDevice) -> tuple[bool, str]:
        pattern = np.random.default_rng(0).integers(0, 256, BUFFER_BYTES, np.uint8)
        with device.alloc(BUFFER_BYTES) as buffer:
            with buffer.write() as memory:
                memory[:] = pattern
            del memory
            if self.missing:
                with buffer.read() as memory:
                    same = bool(np.array_equal(memory, pattern))
                del memory
                return same, f"{buffer.size} bytes, written and read; not mapped to the DSP"
            address = buffer.map_to_dsp()
            try:
                echo = idl.load("echo.idl").open(device)
            except HexagonError as error:
                self.missing = f"left out: no module libecho_skel.so ({error.name})"
                return True, f"{buffer.size} bytes at {address:#x}; {self.missing}"
            with echo:
                echo.transform_mapped(address, buffer.size, KEY)
            with buffer.read() as memory:
                wrong = int(np.count_nonzero(memory != pattern ^ np.uint8(KEY)))
            del memory
        return wrong == 0, f"{BUFFER_BYTES} bytes at {address:#x}, {wrong} wrong"

    def model(self, device: FastRpcDevice) -> tuple[bool, str]:
        if self.missing:
            return True, self.missing
        try:
            runtime = QnnRuntime(device)
        except HexagonError as error:
            return True, f"left out: no module libqnn_model_skel.so ({error.name})"
        with runtime, runtime.load(MODEL) as model:
            model.set_input(0, self.images)
            model.execute()
            logits = model.get_output(0, np.int32).reshape(len(self.images), -1)
        same = int(np.count_nonzero((logits == self.expected).all(axis=1)))
        return same == len(self.images), (
            f"{same} of {len(self.images)} images equal the integer network in numpy"
        )


def steps(
    device: FastRpcDevice,
    shell: bytes | None,
    images: npt.NDArray[np.uint8],
    expected: npt.NDArray[np.int32],
) -> list[tuple[str, Check]]:
    """(name, check) of each step, to be made in order; a check gives (passed, what was seen).

    ``shell`` is the process image, None for the vendor's where it is installed. ``images`` are
    uint8 (M, 64), ``expected`` the int32 (M, 10) logits that the network of the package gives for
    them. The device is closed by the caller.
    """
    folders = [folder.format(domain=device.domain) for folder in SHELL_FOLDERS]
    run = _Run(shell, images, expected, [str(_data()), *folders])
    return [
        ("ask for capabilities", run.capabilities),
        ("start a process", run.start),
        ("allocate, map, transform on the DSP, read back", run.memory),
        ("classify handwritten digits", run.model),
    ]


def _data() -> Any:
    return resources.files("npukit").joinpath("data")
