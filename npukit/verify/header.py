# SPDX-License-Identifier: MIT
"""What the C compiler makes of a kernel header.

A probe asks for each structure's size, each field's offset and size and each macro's value, in the
way of the kernel's own asm-offsets: the answers are constants in inline assembly and are read from
the compiler's assembly output. So nothing is run, a cross compiler will do, and a name that the
header does not know costs an error on its own line, which is left out at the second attempt.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from .errors import FormatError
from .interface import Field, Interface, Layout

_TIMEOUT = 60.0
_ANSWER = re.compile(r"npukit (\d+)" + r" [$#]?(\d+)" * 4)
_ERROR = re.compile(r"^npukit-probe:(\d+):(?:\d+:)? (?:fatal )?error:", re.MULTILINE)
_OTHER_ERROR = re.compile(r"^(?!npukit-probe:)(.*?: (?:fatal )?error: .*)$", re.MULTILINE)


class Compiler:
    """A C compiler, and the header directory that it looks in before its own.

    ``include`` may be an include directory (it holds linux/ or drm/, or the header itself) or the
    top of a kernel source tree; None means the installed headers. FormatError when there is no
    compiler or no such directory.
    """

    def __init__(self, include: Path | None = None, command: str | None = None) -> None:
        names = [command] if command else [os.environ.get("CC"), "cc", "gcc", "clang"]
        found = next((path for name in names if name and (path := shutil.which(name))), None)
        if found is None:
            raise FormatError("no C compiler: install gcc, or set CC")
        self.command = found
        self.directories: list[Path] = []
        if include is not None:
            if not include.is_dir():
                raise FormatError("no such directory", path=str(include))
            raw = [include / "include/uapi", include / "include/generated/uapi"]
            usual = [path for path in (include / "usr/include", *raw) if path.is_dir()]
            self.directories = usual or [include]

    @property
    def source(self) -> str:
        """Where its headers come from, for people."""
        return str(self.directories[0]) if self.directories else "installed headers"

    def present(self, headers: Iterable[str]) -> set[str]:
        """Those of ``headers`` that are there to be included."""
        if self.directories:
            return {
                header
                for header in headers
                if any((directory / header).is_file() for directory in self.directories)
            }
        # In quotes, because "linux" by itself is a macro.
        asked = "".join(f'#if __has_include(<{h}>)\n"npukit {h}"\n#endif\n' for h in headers)
        return set(re.findall(r'^"npukit (\S+)"', self._run("-E", asked).stdout, re.MULTILINE))

    def version(self) -> tuple[int, int] | None:
        """The kernel version that the headers state; None when they do not."""
        # The compiler's own would answer for a directory that has none.
        if self.directories and not self.present(["linux/version.h"]):
            return None
        output = self._run("-E", "#include <linux/version.h>\nnpukit LINUX_VERSION_CODE\n").stdout
        found = re.search(r"^npukit\s+(\d+)", output, re.MULTILINE)
        return (int(found[1]) >> 16, int(found[1]) >> 8 & 0xFF) if found else None

    def _run(self, stage: str, text: str) -> subprocess.CompletedProcess[str]:
        # Headers that were not exported for user space still carry __user.
        arguments = [self.command, "-x", "c", "-w", "-P", "-ffreestanding", "-D__user="]
        for directory in self.directories:
            arguments += ["-isystem", str(directory)]
        try:
            return subprocess.run(
                [*arguments, stage, "-o", "-", "-"],
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                env={**os.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FormatError(f"the C compiler failed: {error}", path=self.command) from error

    def evaluate(self, headers: Iterable[str], expressions: list[str]) -> list[int | None]:
        """The value of each constant C expression, as a signed 64-bit number; None where it does
        not compile or is not an integer.

        FormatError when a header itself does not compile.
        """
        skipped: set[int] = set()
        # Names that the header does not know fail at first, those built upon them next.
        while True:
            outcome = self._run("-S", _probe(headers, expressions, skipped))
            if outcome.returncode == 0:
                break
            bad = {int(line) - 1 for line in _ERROR.findall(outcome.stderr)} - skipped
            if not bad:
                other = _OTHER_ERROR.search(outcome.stderr)
                reason = other[1] if other else outcome.stderr.strip()[:200]
                raise FormatError(f"does not compile: {reason}", path=", ".join(headers))
            skipped |= bad
        answers: dict[int, int] = {}
        for line, *parts in _ANSWER.findall(outcome.stdout):
            value = sum(int(part) << 16 * place for place, part in enumerate(parts))
            answers[int(line)] = value - (value >> 63 << 64)
        return [answers.get(line) for line in range(len(expressions))]


def _probe(headers: Iterable[str], expressions: list[str], skipped: set[int]) -> str:
    # Some headers leave it to their user to include what O_CLOEXEC and _IOWR come from.
    lines = ["#include <asm/fcntl.h>", "#include <linux/ioctl.h>"]
    lines += [f"#include <{header}>" for header in headers]
    lines.append("void npukit_probe(void) {")
    # Some compilers do not print an operand of more than 31 bits: four of 16 it is.
    for line, expression in enumerate(expressions):
        if line not in skipped:
            parts = (f'"i"((long long)({expression})>>{shift}&65535)' for shift in (0, 16, 32, 48))
            answer = f'".ascii \\"npukit {line} %0 %1 %2 %3\\""'
            lines.append(f'#line {line + 1} "npukit-probe"')
            lines.append(f"asm volatile({answer} :: {', '.join(parts)});")
    return "\n".join([*lines, "}", ""])


def interfaces(compiler: Compiler, wanted: Mapping[str, Interface]) -> dict[str, Interface | str]:
    """What each header (key) says about the names in its interface, or why it does not compile.

    The headers must be there. A field's type is not asked for: it is taken from the question.
    """
    questions = [question for interface in wanted.values() for question in _questions(interface)]
    try:
        values = iter(compiler.evaluate(wanted, questions))
    except FormatError as error:
        if len(wanted) == 1:
            return dict.fromkeys(wanted, str(error))
        # One header that does not compile must not silence the others.
        return {
            header: answer
            for one, interface in wanted.items()
            for header, answer in interfaces(compiler, {one: interface}).items()
        }
    return {header: _answers(interface, values) for header, interface in wanted.items()}


def _askable(layout: Layout) -> Iterator[Field]:
    """C has no offset of a bit-field to ask for."""
    return (member for member in layout.flat().values() if not member.bits)


def _questions(interface: Interface) -> Iterator[str]:
    for layouts in interface.layouts.values():
        for layout in layouts:
            ctype = f"{layout.kind} {layout.name}"
            yield f"sizeof({ctype})"
            for member in _askable(layout):
                yield f"__builtin_offsetof({ctype}, {member.name})"
                access = f"(({ctype} *)0)->{member.name}"
                # The size of a flexible array is no constant, that of its element is.
                for depth in range(len(member.dims) + 1):
                    if depth < len(member.dims) and not member.dims[depth]:
                        yield "0"
                    else:
                        yield f"sizeof({access}{'[0]' * depth})"
    yield from interface.constants


def _answers(interface: Interface, values: Iterator[int | None]) -> Interface:
    result = Interface()
    for tag, layouts in interface.layouts.items():
        found = []
        for layout in layouts:
            size = next(values)
            members = []
            for member in _askable(layout):
                offset = next(values)
                sizes = [next(values) for _ in range(len(member.dims) + 1)]
                element = sizes[-1]
                if offset is None or element is None:
                    continue
                dims = tuple((outer or 0) // (inner or 1) for outer, inner in pairwise(sizes))
                members.append(replace(member, offset=offset, size=element, dims=dims, members=()))
            members += [member for member in layout.flat().values() if member.bits]
            if size is not None:
                found.append(Layout(layout.name, layout.kind, size, tuple(members)))
        if found:
            result.layouts[tag] = tuple(found)
    for name in interface.constants:
        value = next(values)
        if value is not None:
            result.constants[name] = value
    return result
