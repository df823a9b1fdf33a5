# SPDX-License-Identifier: MIT
"""The requests and structures of all modules: names, numbers, pointers, and how they print."""

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from abi.witnesses import HEADERS, is_layout, modules

from npukit.abi import adsprpc, fastrpc, fastrpc_multimode, udmabuf, wrapfd
from npukit.abi.versions import View, c_names
from npukit.ioctl import AbiMismatch, Ioctl, Pointer, decode


def views() -> Iterator[tuple[str, dict[str, Any]]]:
    """All modules, and all variants of each."""
    for module in modules():
        short = module.__name__.rpartition(".")[2]
        yield short, c_names(vars(module))
        for name in getattr(module, "VARIANTS", ()):
            yield f"{short}: {name}", dict(module.variant(name).names)


VIEWS = dict(views())
REQUESTS = [
    pytest.param(name, request, id=f"{title}: {name}")
    for title, names in VIEWS.items()
    for name, request in names.items()
    if isinstance(request, Ioctl)
]
CLASSES = list(
    {
        id(value): pytest.param(value, id=f"{title}: {name}")
        for title, names in VIEWS.items()
        for name, value in names.items()
        if is_layout(value)
    }.values()
)


def test_all_modules_are_seen() -> None:
    assert {*HEADERS.values(), fastrpc_multimode, adsprpc, wrapfd} <= set(modules())
    assert len(REQUESTS) > 300
    assert len(CLASSES) > 200


@pytest.mark.parametrize(("name", "request_"), REQUESTS)
def test_a_request_knows_itself(name: str, request_: Ioctl) -> None:
    assert request_.name == name.removesuffix("_0_8")
    assert 0 < request_ < 1 << 32
    if request_.name.startswith("DMA_BUF_SET_NAME"):
        return  # the argument is a string, whatever size the number states
    size = ctypes.sizeof(request_.struct) if request_.struct is not None else 0
    assert decode(request_).size == size
    assert (decode(request_).direction == 0) == (request_.struct is None)


def test_only_these_answer_with_the_value_of_the_call() -> None:
    values = {
        request.name
        for names in VIEWS.values()
        for request in names.values()
        if isinstance(request, Ioctl) and request.returns == "value"
    }
    assert values == {
        "FASTRPC_IOCTL_INVOKE",
        "FASTRPC_IOCTL_INVOKE2",
        "FASTRPC_IOCTL_INVOKE_ATTRS",
        "FASTRPC_IOCTL_INVOKE_CRC",
        "FASTRPC_IOCTL_INVOKE_FD",
        "FASTRPC_IOCTL_INVOKE_PERF",
        "FASTRPC_IOCTL_MULTIMODE_INVOKE",
        "UDMABUF_CREATE",
        "UDMABUF_CREATE_LIST",
        "WRAPFD_DEV_IOC_REWRAP",
        "WRAPFD_DEV_IOC_WRAP",
    }
    assert fastrpc.FASTRPC_IOCTL_INVOKE.returns == "value"
    assert udmabuf.UDMABUF_CREATE.returns == "value"


@pytest.mark.parametrize(
    "name",
    [
        "DRM_IOCTL_AMDXDNA_CREATE_BO",  # EAGAIN: grow the heap first
        "DRM_IOCTL_AMDXDNA_EXEC_CMD",
        "DRM_IOCTL_AMDXDNA_WAIT_CMD",  # a timeout that counts from the call
        "DRM_IOCTL_HL_WAIT_CS",
        "DRM_IOCTL_QAIC_WAIT_BO",
        "DRM_IOCTL_ROCKET_SUBMIT",
        "FASTRPC_IOCTL_INVOKE",  # the DSP may have done the work
        "WRAPFD_DEV_IOC_REWRAP",
    ],
)
def test_what_may_not_be_repeated(name: str) -> None:
    found = [names[name] for names in VIEWS.values() if name in names]
    assert found
    assert not any(request.restart for request in found)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_structure_prints(cls: Any) -> None:
    instance = cls()
    assert repr(instance).startswith(f"{cls.__name__}(")
    assert list(instance.asdict()) == list(dict.fromkeys(cls.fields()))
    ctypes.memset(ctypes.addressof(instance), 0xFF, ctypes.sizeof(cls))
    assert repr(instance).endswith(")")
    assert instance == cls.from_buffer_copy(bytes(instance))


@pytest.mark.parametrize("cls", CLASSES)
def test_pointers_name_fields_that_count(cls: Any) -> None:
    for name, pointer in cls._pointers_.items():
        assert isinstance(pointer, Pointer)
        assert pointer.direction in ("in", "out", "inout")
        assert ctypes.sizeof(pointer.target) >= 0
        assert getattr(cls, name).size == 8
        instance = cls()
        for counter in (pointer.count, pointer.stride):
            assert counter is None or getattr(instance, counter) == 0


def test_counts_that_stand_elsewhere() -> None:
    call = fastrpc.fastrpc_invoke(sc=fastrpc.REMOTE_SCALARS_MAKEX(0, 2, 3, 1, 2, 4))
    assert call.nscalars == 10
    legacy = adsprpc.fastrpc_ioctl_invoke_fd(inv=adsprpc.fastrpc_ioctl_invoke(sc=0x00020200))
    assert legacy.nscalars == 4
    assert legacy._pointers_["fds"].count == "nscalars"


STRACE = shutil.which("strace")


def strace_release() -> tuple[int, int]:
    """strace X.Y carries the requests of Linux X.Y."""
    assert STRACE
    text = subprocess.run([STRACE, "-V"], capture_output=True, text=True, check=True).stdout
    major, minor = re.findall(r"version (\d+)\.(\d+)", text)[0]
    return int(major), int(minor)


def strace_names(numbers: list[int]) -> list[str]:
    """How strace writes each request of a program that makes them on /dev/null."""
    assert STRACE
    script = (
        "import ctypes, os, sys\n"
        "os.dup2(os.open('/dev/null', os.O_RDWR), 777)\n"
        "ioctl = ctypes.CDLL(None).ioctl\n"
        "for number in sys.argv[1:]: ioctl(777, ctypes.c_ulong(int(number)), None)\n"
    )
    command = [STRACE, "-qq", "-e", "trace=ioctl", sys.executable, "-SEc", script]
    done = subprocess.run(
        [*command, *map(str, numbers)], capture_output=True, text=True, timeout=60, check=False
    )
    names = re.findall(r"^ioctl\(777, (_IOC\([^)]*\)|[^,)]*)", done.stderr, re.M)
    if not names:
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()[-200:]}")
    return names


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_numbers_are_those_that_strace_names() -> None:
    release = strace_release()
    # The last release that the modules know of is 7.3, and strace has no ethosu.
    known: list[View] = []
    for module in HEADERS.values():
        try:
            if not module.__name__.endswith("ethosu"):
                known.append(module.for_kernel(min(release, (7, 3))))
        except AbiMismatch:
            pass
    requests = [
        request
        for view in known
        for request in view.names.values()
        if isinstance(request, Ioctl)
        # The alias of DMA_BUF_SET_NAME_A or _B, by the machine's word, is none of strace's names.
        and request.name != "DMA_BUF_SET_NAME"
    ]
    printed = strace_names([int(request) for request in requests])
    assert len(printed) == len(requests)
    wrong = {
        request.name: text
        for request, text in zip(requests, printed, strict=True)
        if request.name not in text.split(" or ")
    }
    assert wrong == {}
    assert len(requests) > 30


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_strace_takes_apart_what_it_does_not_know() -> None:
    requests = [r for r in vars(wrapfd).values() if isinstance(r, Ioctl)]
    for request, text in zip(requests, strace_names([int(r) for r in requests]), strict=True):
        number = decode(request)
        parts = [part.strip() for part in text.removeprefix("_IOC(").removesuffix(")").split(",")]
        assert parts[0].count("_IOC_WRITE") == number.direction & 1
        assert [int(part, 0) for part in parts[1:]] == [number.type, number.nr, number.size]
