# SPDX-License-Identifier: MIT
"""Bring AMD's xclbinutil, aiebu-asm and aiebu-dump here, as witnesses for the tests.

    PATH="$(python tools/amd_tools.py):$PATH" make test

They are packages of Debian's newest suite, which needs a newer libc than this machine may have: all
are unpacked into the user's cache, and started through their own loader. Prints the directory to
put into PATH; nothing, and the reason on standard error, when they cannot be had.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from debian import Archive, Unavailable, cache_directory, unpack

SUITE = "sid"
PACKAGES = ("libxrt-utils", "libxrt-utils-npu")
TOOLS = ("xclbinutil", "aiebu-asm", "aiebu-dump")
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def tools() -> Path:
    """A directory with the tools. Unavailable when they cannot be had, with the reason."""
    machine = os.uname().machine
    if machine not in _LOADERS:
        raise Unavailable(f"Debian has no XRT for {machine}")
    root = cache_directory() / "amd-tools"
    if (root / "complete").is_file():
        return root / "bin"
    shutil.rmtree(root, ignore_errors=True)
    for deb in Archive().closure(PACKAGES, SUITE):
        unpack(deb, root, _wanted)
        deb.unlink()
    libraries = root / "usr" / "lib" / f"{machine}-linux-gnu"
    loader = libraries / _LOADERS[machine]
    (root / "bin").mkdir()
    for name in TOOLS:
        program = next(iter(root.glob(f"usr/**/{name}")), None)
        if program is None or not loader.is_file():
            raise Unavailable(f"{name} or its loader is not in {', '.join(PACKAGES)} of {SUITE}")
        command = shlex.join([str(loader), "--library-path", str(libraries), str(program)])
        (root / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (root / "bin" / name).chmod(0o755)
    (root / "complete").touch()
    return root / "bin"


def _wanted(path: str) -> bool:
    return path.rsplit("/", 1)[-1] in TOOLS or ".so" in path


if __name__ == "__main__":
    try:
        print(tools())
    except Unavailable as reason:
        print(f"amd-tools: not to be had: {reason}", file=sys.stderr)
