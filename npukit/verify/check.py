# SPDX-License-Identifier: MIT
"""Ask every witness at hand about every interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from . import image, witnesses
from .btf import Btf
from .errors import FormatError
from .kernel_files import KernelFiles
from .result import Result, unchecked
from .snapshot import Version, parse_version
from .subjects import SUBJECTS, Subject


def check(
    drivers: Iterable[str] = (),
    *,
    kernel: Path | None = None,
    headers: Path | None = None,
    ko: Path | None = None,
    root: Path = Path("/"),
) -> list[Result]:
    """Whether npukit's idea of ``drivers`` (names of npukit.abi modules; none: all) is right.

    Without another source, ask the running kernel (its files below ``root``), the installed headers
    and the stored snapshot. ``kernel`` asks one that does not run: a directory or image file, see
    KernelFiles.offline. ``headers`` asks a directory of headers. ``ko`` asks one module file, with
    the base for its BTF from ``kernel``, from the system that the file lies in, or from the running
    kernel if it was built for that. ValueError for an unknown driver, FormatError when a source
    that was asked for is not one.
    """
    named = [_subject(name) for name in drivers]
    if ko is not None:
        return _module(named, ko, kernel, root)
    chosen = named or list(SUBJECTS.values())
    if headers is not None:
        if not headers.is_dir():
            raise FormatError("no such directory", path=str(headers))
        return witnesses.header(chosen, headers)
    if kernel is not None:
        return _kernel(chosen, KernelFiles.offline(kernel))
    results = _kernel(chosen, KernelFiles.running(root)) + witnesses.header(chosen, None)
    order = {subject.name: index for index, subject in enumerate(chosen)}
    return sorted(results, key=lambda result: order[result.driver])


def _subject(name: str) -> Subject:
    if name not in SUBJECTS:
        raise ValueError(f"no interface {name!r}; there are {', '.join(SUBJECTS)}")
    return SUBJECTS[name]


def _version(release: str | None) -> Version | None:
    try:
        return parse_version(release) if release else None
    except ValueError:
        return None


def _kernel(chosen: list[Subject], files: KernelFiles) -> list[Result]:
    version = _version(files.release)
    return [
        result
        for subject in chosen
        for result in (
            *witnesses.kernel(subject, files, version),
            witnesses.stored(subject, version),
        )
    ]


def _module(chosen: list[Subject], path: Path, kernel: Path | None, root: Path) -> list[Result]:
    module = image.Module(path)
    name = path.name.split(".ko")[0].replace("-", "_")
    if not chosen:
        chosen = [subject for subject in SUBJECTS.values() if subject.module == name]
    if not chosen:
        known = ", ".join(sorted({each.module for each in SUBJECTS.values() if each.module}))
        raise FormatError(f"not the module of a driver that npukit knows ({known})", path=str(path))
    release = module.release
    version = _version(release)
    results = []
    for subject in chosen:
        try:
            types = module.btf(_base(path, release, kernel, root))
            results.append(
                witnesses.btf(subject, types, version, "the module has none of its types")
            )
        except (FormatError, OSError) as error:
            results.append(unchecked(subject.name, "btf", str(path), str(error)))
        if subject.table:
            results.append(witnesses.module_table(subject, module, version))
    return results


def _base(path: Path, release: str | None, kernel: Path | None, root: Path) -> Btf | None:
    """The BTF of the kernel that a module was built for."""
    if kernel is not None:
        return KernelFiles.offline(kernel).base
    for directory in path.resolve().parents:
        if directory.parent.name == "modules":
            base = KernelFiles.offline(directory).base
            if base is not None:
                return base
    running = KernelFiles.running(root)
    return running.base if release and running.release == release else None
