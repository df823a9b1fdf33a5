# SPDX-License-Identifier: MIT
"""Bring Mesa's TensorFlow Lite delegate, with its rocket driver, and TensorFlow Lite here.

    NPUKIT_TEFLON="$(python tools/mesa_teflon.py)" make test

They are packages of Debian's newest suite, built for AArch64 alone: they and all that they depend
on are unpacked into the user's cache, to run under qemu-user. Prints the directory; nothing, and
the reason on standard error, when they cannot be had.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from debian import Archive, Unavailable, cache_directory, unpack

SUITE = "sid"
PACKAGES = ("mesa-teflon-delegate:arm64", "libtensorflow-lite2.14.1:arm64")
_NEEDED = ("usr/lib/teflon/libteflon.so", "usr/lib/*/libtensorflow-lite.so.*", "usr/lib/ld-*")


def teflon() -> Path:
    """A directory with the libraries, laid out as a root. Unavailable when they cannot be had, with
    the reason."""
    root = cache_directory() / "mesa-teflon"
    if (root / "complete").is_file():
        return root
    shutil.rmtree(root, ignore_errors=True)
    debs = Archive().closure(PACKAGES, SUITE)
    for deb in debs:
        unpack(deb, root, _wanted)
        deb.unlink()
    for pattern in _NEEDED:
        if next(root.glob(pattern), None) is None:
            raise Unavailable(f"{pattern} is not in {', '.join(PACKAGES)} of {SUITE}")
    # Where programs name their loader.
    (root / "lib").symlink_to("usr/lib")
    (root / "complete").write_text("".join(f"{deb.stem}\n" for deb in debs))
    return root


def _wanted(path: str) -> bool:
    return ".so" in path.rsplit("/", 1)[-1]


if __name__ == "__main__":
    try:
        print(teflon())
    except Unavailable as reason:
        print(f"mesa-teflon: not to be had: {reason}", file=sys.stderr)
