# SPDX-License-Identifier: MIT
"""The four witnesses, each a function that says whether a source agrees with npukit.

They take what npukit says from ``ours`` and never look at one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from npukit.abi import drm
from npukit.ioctl import AbiMismatch

from . import header as headers
from . import image, ioctl_table, snapshot
from .btf import Btf
from .errors import FormatError
from .interface import Comparison, Difference, Interface, compare, of_module
from .kernel_files import KernelFiles
from .result import Result, judge, unchecked
from .snapshot import Version
from .subjects import Subject


def ours(subject: Subject, version: Version | None) -> Interface:
    """What npukit says about an interface in a Linux version; None: the newest that it knows.

    AbiMismatch when that version does not have the interface.
    """
    return _own(subject, of_module(names_of(subject, version)))


def names_of(subject: Subject, version: Version | None) -> Mapping[str, Any]:
    """The names of an ABI module, as that Linux version has them."""
    module = import_module(f"npukit.abi.{subject.name}")
    if version is None or not hasattr(module, "for_kernel"):
        return vars(module)
    names: Mapping[str, Any] = module.for_kernel(version).names
    return names


def variants(subject: Subject) -> dict[str, Interface]:
    """The forms in which other drivers and vendors have the interface, by their names."""
    module = import_module(f"npukit.abi.{subject.name}")
    return {
        name: _own(subject, of_module(module.variant(name).names))
        for name, variant in getattr(module, "VARIANTS", {}).items()
        if not isinstance(variant, str) and variant.UNTIL is None
    }


def _own(subject: Subject, interface: Interface) -> Interface:
    """Without what the module borrowed from drm.h to compute its request numbers."""
    if subject.name != "drm":
        for name in vars(drm):
            interface.constants.pop(name, None)
    return interface


def _best(
    subject: Subject, mine: Interface, theirs: Interface, *, exact_dims: bool = True
) -> tuple[Comparison, tuple[str, ...]]:
    """The comparison with npukit's own form, or with a variant that fits better."""
    best = compare(mine, theirs, exact_dims=exact_dims)
    notes: tuple[str, ...] = ()
    for name, variant in variants(subject).items() if best.differences else ():
        other = compare(variant, theirs, exact_dims=exact_dims)
        if len(other.differences) < len(best.differences):
            best, notes = other, (f"this is the variant {name!r}",)
    return best, notes


def header(subjects: Iterable[Subject], directory: Path | None) -> list[Result]:
    """Ask the C compiler about the headers in ``directory`` (None: the installed ones)."""
    subjects = list(subjects)
    try:
        compiler = headers.Compiler(directory)
        version = compiler.version()
        present = compiler.present(name for subject in subjects for name in subject.headers)
    except FormatError as error:
        return [
            unchecked(each.name, "header", str(directory or ""), str(error)) for each in subjects
        ]
    source = compiler.source
    if version:
        source += f" (Linux {version[0]}.{version[1]})"
    results = {}
    wanted: dict[str, tuple[Subject, Interface]] = {}
    for subject in subjects:
        found = next((name for name in subject.headers if name in present), None)
        if found is None:
            reason = f"no {' or '.join(subject.headers)} there"
            results[subject.name] = unchecked(subject.name, "header", source, reason)
            continue
        try:
            wanted[found] = (subject, ours(subject, version if subject.mainline else None))
        except AbiMismatch as error:
            results[subject.name] = unchecked(subject.name, "header", source, str(error.strerror))
    said = headers.interfaces(compiler, {name: mine for name, (_, mine) in wanted.items()})
    for name, (subject, mine) in wanted.items():
        answer = said[name]
        if isinstance(answer, str):
            results[subject.name] = unchecked(subject.name, "header", source, answer)
        else:
            compared, notes = _best(subject, mine, answer)
            reason = "knows none of npukit's names"
            results[subject.name] = judge(
                subject.name, "header", source, compared, reason=reason, notes=notes
            )
    return [results[subject.name] for subject in subjects]


def btf(subject: Subject, types: Btf, version: Version | None, absence: str) -> Result:
    """Compare with a kernel's or module's type information; ``absence`` is why it may say nothing.

    Structures that the driver declares and never uses are not in it.
    """
    try:
        mine = ours(subject, version if subject.mainline else None)
        theirs = types.interface(mine.layouts, mine.constants)
    except AbiMismatch as error:
        return unchecked(subject.name, "btf", types.path, str(error.strerror))
    except FormatError as error:
        return unchecked(subject.name, "btf", types.path, str(error))
    compared, notes = _best(subject, mine, theirs, exact_dims=False)
    # Macros are no types: their absence says nothing.
    compared.absent = [name for name in compared.absent if name in mine.layouts]
    return judge(subject.name, "btf", types.path, compared, reason=absence, notes=notes)


def module_table(subject: Subject, module: image.Module, version: Version | None) -> Result:
    """Compare with the request table of a DRM driver's module."""
    path = str(module.path)
    try:
        mine = ours(subject, version if subject.mainline else None)
        tables = ioctl_table.tables(module.elf)
    except AbiMismatch as error:
        return unchecked(subject.name, "module", path, str(error.strerror))
    except FormatError as error:
        return unchecked(subject.name, "module", path, str(error))
    entries = [entry for table in tables.values() for entry in table]
    requests = {name: value for name, value in mine.constants.items() if _is_request(name)}
    compared = Comparison()
    for entry in entries:
        name = "DRM_IOCTL_" + entry.name.removeprefix("DRM_IOCTL_")
        if name not in requests:
            compared.unknown.append(name)
        elif requests[name] == entry.number:
            compared.facts += 1
        else:
            compared.differences.append(
                Difference(name, "value", hex(requests[name]), hex(entry.number))
            )
        requests.pop(name, None)
    compared.absent += requests
    if subject.partial:
        compared.unknown = []
    guarded = tuple(
        f"DRM_IOCTL_{entry.name.removeprefix('DRM_IOCTL_')} needs {entry.guard}"
        for entry in entries
        if entry.guard not in ("none", "RENDER_ALLOW") and subject.name != "drm"
    )
    reason = "its module has no DRM request table"
    return judge(subject.name, "module", path, compared, reason=reason, notes=guarded)


def _is_request(name: str) -> bool:
    return name.startswith("DRM_IOCTL_") and name != "DRM_IOCTL_BASE"


def stored(subject: Subject, version: Version | None) -> Result:
    """Compare with the stored headers that are nearest to ``version`` (None: the newest)."""
    if not subject.mainline:
        return unchecked(subject.name, "snapshot", "", "torvalds' kernel has no such header")
    known = {each: snapshot.load(each).headers for each in snapshot.versions()}
    having = [each for each, said in known.items() if subject.headers[0] in said]
    older = [each for each in having if version is None or each <= version]
    chosen = older[-1] if older else having[0]
    source = f"headers of Linux {chosen[0]}.{chosen[1]}"
    try:
        mine = ours(subject, chosen)
    except AbiMismatch as error:
        return unchecked(subject.name, "snapshot", source, str(error.strerror))
    compared = compare(mine, known[chosen][subject.headers[0]])
    if subject.partial:
        compared.unknown = []
    return judge(subject.name, "snapshot", source, compared, reason="has none of npukit's names")


def kernel(subject: Subject, files: KernelFiles, version: Version | None) -> list[Result]:
    """The BTF and module witnesses of a kernel's files."""
    results = [_kernel_btf(subject, files, version)]
    if subject.table:
        path = files.module_file(subject.module)
        if path is None:
            results.append(unchecked(subject.name, "module", files.name, _absence(subject, files)))
        else:
            try:
                results.append(module_table(subject, image.Module(path), version))
            except (FormatError, OSError) as error:
                results.append(unchecked(subject.name, "module", str(path), str(error)))
    return results


def _kernel_btf(subject: Subject, files: KernelFiles, version: Version | None) -> Result:
    try:
        types = files.module_btf(subject.module) or files.base
    except (FormatError, OSError) as error:
        return unchecked(subject.name, "btf", files.name, str(error))
    if types is None:
        reason = "there is no BTF: CONFIG_DEBUG_INFO_BTF is not set, or no image is at hand"
        return unchecked(subject.name, "btf", files.name, reason)
    return btf(subject, types, version, _absence(subject, files))


def _absence(subject: Subject, files: KernelFiles) -> str:
    """Why a kernel says nothing about an interface."""
    config = files.config
    if config is None:
        return f"{files.name} does not have it, and no configuration is there to say why"
    value = config.get(subject.config, "n")
    if value == "n":
        return f"{files.name} was built without CONFIG_{subject.config}"
    if value == "m":
        return f"the module {subject.module} is not among the files of {files.name}"
    return f"CONFIG_{subject.config} is built in: its types are not apart, or not used"
