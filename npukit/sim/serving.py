# SPDX-License-Identifier: MIT
"""Serve a simulated machine (``npukit sim serve``), and run a program that reaches it by a
preloaded library (``npukit sim run --door preload``)."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import _seccomp, namespace
from .kernel import SimKernel
from .preload import ServedKernel
from .run import CANNOT_RUN, DEFAULT_DEVICES, UNLISTED, execute, fill_standard_files, forward
from .socket import serve

SOCKET_VARIABLE = "NPUKIT_SIM"
"""Names the server's socket to the library."""

_MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine of an ELF file -> the architecture that Linux calls so."""
_EMULATOR = re.compile(r"qemu-(x86_64|aarch64)(-static)?")
_CROSS_LIBC = "/usr/{}-linux-gnu"
"""Where Debian keeps another architecture's libc, and qemu-user does not look by itself."""


def library_path(machine: str = "") -> Path:
    """The library to preload into programs of an architecture, this machine's by default.

    It is there for this machine's; for others where it was built (``make preload-aarch64``).
    """
    return Path(__file__).with_name(f"preload-{machine or platform.machine()}.so")


def serve_until_told(
    path: str,
    devices: Sequence[str] = DEFAULT_DEVICES,
    *,
    strict: bool = False,
    report: bool = False,
) -> None:
    """Serve a machine at the Unix socket ``path`` until SIGINT or SIGTERM.

    Any number of programs with the library, and of ``SocketKernel(path)``, are its processes. What
    one of them held is freed when it ends. OSError when there can be no socket at ``path``.
    """
    kernel = ServedKernel(devices, strict=strict, report=report)
    _prepare()
    told = {signal.SIGINT, signal.SIGTERM}
    # Before there are threads, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, told)
    try:
        with serve(kernel, path):
            nodes = ", ".join(path for device in kernel.devices for path in device.paths)
            # Programs may have another working directory.
            print(f"serving {nodes}", f"{SOCKET_VARIABLE}={os.path.abspath(path)}", sep="\n")
            print(f"LD_PRELOAD={library_path()}", flush=True)
            signal.sigwait(told)
        _end(kernel)
    finally:
        kernel.shut_down()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, told)


def run_preloaded(
    command: Sequence[str],
    devices: Sequence[str] = DEFAULT_DEVICES,
    *,
    strict: bool = False,
    report: bool = False,
    namespaces: bool = True,
    library: str | None = None,
) -> int:
    """run(), with the program reaching its machine by a preloaded library.

    A program for AArch64 runs under qemu-user on another machine. ``library`` overrides what is
    preloaded. Where a mount namespace is allowed, /dev and /sys show the devices; else only the
    nodes' full paths are known. ValueError when there is no simulated device of such a name.
    """
    kernel = ServedKernel(devices, strict=strict, report=report, name="npukit sim run")
    try:
        plan = _plan(command, library)
        if isinstance(plan, str):
            kernel.say(plan)
            return CANNOT_RUN
        with tempfile.TemporaryDirectory(prefix="npukit-") as folder:
            path = os.path.join(folder, "machine")
            return _run(kernel, plan, path, namespaces)
    finally:
        kernel.shut_down()


class Plan(NamedTuple):
    command: list[str]
    variables: dict[str, str]


def _plan(command: Sequence[str], library: str | None) -> Plan | str:
    """How to run the program with a library; or why that cannot be."""
    program = shutil.which(command[0])
    # What is no program is for exec to say.
    found = _program_of(program) if program is not None else None
    here = platform.machine()
    machine, static = (here, False) if found is None else found
    run = list(command)
    emulator = _EMULATOR.fullmatch(os.path.basename(command[0]))
    if emulator is not None:
        # The library is for what it emulates.
        machine = emulator[1]
    elif static:
        return (
            f"{command[0]} is statically linked: no library can be preloaded into it; "
            "--door seccomp runs it"
        )
    elif machine != here:
        name = f"qemu-{machine}"
        if shutil.which(name) is None:
            return f"{command[0]} is for {machine}, and there is no {name} (package qemu-user)"
        run.insert(0, name)
    file = Path(library) if library is not None else library_path(machine)
    if not file.exists():
        return (
            f"{file} is missing: it is built with the package, for aarch64 by make preload-aarch64"
        )
    variables = {}
    if emulator is None and machine == here:
        old = os.environ.get("LD_PRELOAD", "")
        variables["LD_PRELOAD"] = f"{file.absolute()}:{old}" if old else str(file.absolute())
    else:
        # For the program, not for the emulator.
        variables["QEMU_SET_ENV"] = f"LD_PRELOAD={file.absolute()}"
        prefix = _CROSS_LIBC.format(machine)
        if "QEMU_LD_PREFIX" not in os.environ and os.path.isdir(prefix):
            variables["QEMU_LD_PREFIX"] = prefix
    return Plan(run, variables)


def _program_of(path: str) -> tuple[str, bool] | None:
    """(architecture, whether it is linked statically) of a program, or of a script's interpreter;
    None when this is not known."""
    for _ in range(5):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            head = file.read(64)
            if head[:2] == b"#!":
                words = (head + file.readline()).partition(b"\n")[0][2:].split()
                path = os.fsdecode(words[0]) if words else ""
                continue
            if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
                return None
            (machine,) = struct.unpack_from("<H", head, 18)
            start, size, count = (
                struct.unpack_from(form, head, place)[0]
                for form, place in (("<Q", 32), ("<H", 54), ("<H", 56))
            )
            file.seek(start)
            table = file.read(size * count)
            kinds = {struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), size)}
            program_interpreter = 3
            name = _MACHINES.get(machine, f"machine {machine}")
            return name, program_interpreter not in kinds
        return None
    return None


def _run(kernel: ServedKernel, plan: Plan, path: str, namespaces: bool) -> int:
    _prepare()
    handled = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP}
    fill_standard_files()
    # What comes before we know what to do with it has to wait.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    go, begin = os.pipe2(os.O_CLOEXEC)
    # Before there is a thread.
    pid = os.fork()
    running: int | None = pid
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(begin)
        _become(kernel, plan, path, namespaces, go)
    os.close(go)
    old = {number: signal.getsignal(number) for number in handled}
    # A terminal sends these to the program as well, which decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: forward(running, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _seccomp.adopt_orphans()
    status = CANNOT_RUN
    try:
        try:
            server = serve(kernel, path)
        except OSError as error:
            os.close(begin)
            os.waitpid(pid, 0)
            kernel.say(f"no socket can be at {path}: {error.strerror}")
            return status
        with server:
            os.write(begin, b"!")
            os.close(begin)
            # The program's processes that its own have left are ours now.
            while True:
                try:
                    ended, code = os.waitpid(-1, 0)
                except ChildProcessError:
                    break
                if ended == running:
                    running = None
                    exit_code = os.waitstatus_to_exitcode(code)
                    status = exit_code if exit_code >= 0 else 128 - exit_code
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    _end(kernel)
    return status


def _become(kernel: SimKernel, plan: Plan, path: str, namespaces: bool, go: int) -> None:
    """Turn this forked process into the program."""
    if namespaces:
        try:
            namespace.make_private()
            for node in namespace.furnish(kernel.devices):
                os.close(node)
        except OSError as error:
            text = (
                "npukit sim run: no mount namespace on this machine "
                f"({error.strerror}): {UNLISTED}\n"
            )
            os.write(2, text.encode())
    os.environ.update(plan.variables)
    os.environ[SOCKET_VARIABLE] = path
    # Until the server is there; if it never is, the other end is closed.
    if os.read(go, 1):
        execute(plan.command)
    os._exit(CANNOT_RUN)


def _prepare() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _seccomp.survive_truncation()


def _end(kernel: ServedKernel) -> None:
    with kernel.lock:
        kernel.sweep()
    if kernel.report is not None:
        print("\n".join([f"{kernel.name}: report", *kernel.report.lines()]), file=sys.stderr)


__all__ = ["library_path", "run_preloaded", "serve_until_told"]
