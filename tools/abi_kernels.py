# SPDX-License-Identifier: MIT
"""Check npukit's ABI against the kernels that Debian ships, on both architectures.

    python tools/abi_kernels.py                 check; say so when the packages cannot be had
    python tools/abi_kernels.py --require       and fail then
    python tools/abi_kernels.py --suite sid     another suite than trixie-backports

The packages (about 100 MB an architecture) come through this machine's apt sources. The image, the
configuration and the few modules that matter are kept in the user's cache, not the packages.
Exit status: 0 agreed, or not to be had; 1 a difference, or not to be had with --require.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from debian import Archive, Unavailable, cache_directory, unpack

from npukit.verify import SUBJECTS, Result, Verdict, check
from npukit.verify.snapshot import parse_version

_EVERYWHERE = ("drm", "dma_buf", "udmabuf", "sync_file")
EXPECTED = {
    "amd64": ("amdxdna", "ivpu", "habanalabs", "dma_heap", *_EVERYWHERE),
    "arm64": ("ethosu", "fastrpc", *_EVERYWHERE),
}
"""What Debian builds for each architecture since COMPLETE_SINCE: BTF must speak of it."""
COMPLETE_SINCE = (7, 3)
SUITES = ("trixie-backports", "sid")

_PARTS = ("linux-modules-{}", "linux-binary-{}", "linux-base-{}")
_WHOLE = ("linux-image-{}",)
"""Since 7.x an image's files are spread over three packages; before, one had them all."""


def kernel(archive: Archive, architecture: str, suite: str) -> Path:
    """A directory with the newest kernel of ``suite``: its image, configuration and modules.

    Unavailable when it cannot be had, with the reason.
    """
    meta = archive.newest(f"linux-image-{architecture}", architecture, suite)
    found = re.search(rf"linux-image-([\w.+~-]+-{architecture})\b", meta.get("Depends", ""))
    if found is None:
        raise Unavailable(f"linux-image-{architecture} of {suite} names no kernel")
    release, version = found[1], meta["Version"]
    target = cache_directory() / "kernels" / release
    if (target / "complete").is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)
    for package in _packages(archive, release, architecture, suite):
        deb = archive.get(package, version, architecture, suite)
        unpack(deb, target, _wanted)
        # The image's packages are large and fetched once: what matters is unpacked.
        if deb.is_relative_to(archive.cache):
            deb.unlink()
    target.mkdir(parents=True, exist_ok=True)
    (target / "complete").touch()
    return target


def obtain(archive: Archive, architecture: str, suites: Sequence[str]) -> tuple[Path | None, str]:
    """A kernel of the first suite that gives one, else one of an earlier run; and what was got, or
    why nothing was."""
    reasons = []
    for suite in suites:
        try:
            directory = kernel(archive, architecture, suite)
            return directory, f"Linux {directory.name} ({suite})"
        except Unavailable as reason:
            reasons.append(f"{suite}: {reason}")
    earlier = sorted((cache_directory() / "kernels").glob(f"*-{architecture}/complete"))
    if earlier:
        directory = earlier[-1].parent
        return directory, f"Linux {directory.name} of an earlier run ({'; '.join(reasons)})"
    return None, f"not checked: {'; '.join(reasons)}"


def _packages(archive: Archive, release: str, architecture: str, suite: str) -> list[str]:
    try:
        archive.newest(_PARTS[0].format(release), architecture, suite)
    except Unavailable:
        return [name.format(release) for name in _WHOLE]
    return [name.format(release) for name in _PARTS]


def _wanted(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    modules = {subject.module for subject in SUBJECTS.values() if subject.module}
    module = re.fullmatch(r"(.+)\.ko(\.\w+)?", name)
    if module:
        return module[1].replace("-", "_") in modules
    return re.fullmatch(r"(vmlinuz|config)(-.*)?", name) is not None


def failures(results: list[Result], expected: tuple[str, ...]) -> list[str]:
    """Differences, and interfaces that a witness should have spoken of and did not."""
    lines = []
    for result in results:
        where = f"{result.driver} ({result.witness})"
        if result.verdict is Verdict.DIFFERS:
            lines += [f"{where}: {difference}" for difference in result.differences]
            continue
        silent = result.verdict is Verdict.UNCHECKED and result.witness != "snapshot"
        if silent and result.driver in expected:
            lines.append(f"{where}: {result.reason}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--require", action="store_true", help="fail when nothing can be checked")
    parser.add_argument("--suite", choices=SUITES, help="default: the first that can be had")
    parser.add_argument("--debs", type=Path, help="a directory that holds the packages")
    options = parser.parse_args()
    archive = Archive(options.debs)
    suites = [options.suite] if options.suite else SUITES
    failed = False
    for architecture, expected in EXPECTED.items():
        directory, said = obtain(archive, architecture, suites)
        print(f"abi-kernels: {architecture}: {said}")
        if directory is None:
            failed |= options.require
            continue
        results = check(expected, kernel=directory)
        for result in results:
            said = result.reason or f"{result.facts} facts"
            print(f"  {result.driver:10} {result.witness:8} {result.verdict.value}: {said}")
        complete = parse_version(directory.name) >= COMPLETE_SINCE
        lines = failures(results, expected if complete else ())
        for line in lines:
            print(f"  FAILED {line}")
        failed |= bool(lines)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
