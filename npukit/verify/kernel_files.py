# SPDX-License-Identifier: MIT
"""Where a kernel keeps its types, modules and configuration: a running one, or a directory."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from functools import cached_property
from pathlib import Path

from . import image
from .btf import Btf
from .errors import FormatError

_IMAGES = ("vmlinux", "vmlinuz", "Image", "bzImage")
_MODULE = re.compile(r"(.+)\.ko(\.xz|\.zst|\.gz)?$")
_OPTION = re.compile(r"^(?:CONFIG_(\w+)=(.*)|# CONFIG_(\w+) is not set)$", re.MULTILINE)
_MAX_CONFIG = 8 << 20
_MAX_ENTRIES = 200_000
"""Files that are looked at below a directory."""


def read_config(path: Path) -> dict[str, str]:
    """A kernel configuration, plain or gzip: option, without CONFIG_, to "y", "m", a value, or "n".

    FormatError when it is too large or corrupt; OSError when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            plain = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            text = plain.read(_MAX_CONFIG + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(f"corrupt kernel configuration: {error}", path=str(path)) from error
    if len(text) > _MAX_CONFIG:
        raise FormatError("too large for a kernel configuration", path=str(path))
    return {
        found[1] or found[3]: (found[2] or "").strip('"') if found[1] else "n"
        for found in _OPTION.finditer(text.decode("utf-8", "replace"))
    }


class KernelFiles:
    """A kernel's files. What is not there is None or empty; what is corrupt is a FormatError."""

    def __init__(
        self,
        name: str,
        release: str | None,
        *,
        images: list[Path],
        modules: Path | None,
        btf: Path | None = None,
        configs: list[Path] | None = None,
    ) -> None:
        self.name = name
        """What to call it in a report."""
        self.release = release
        """As uname gives it; None when it is not known."""
        self._images = images
        self._modules = modules
        self._btf = btf
        self._configs = configs or []

    @classmethod
    def running(cls, root: Path = Path("/")) -> KernelFiles:
        """The kernel that runs, its files below ``root``."""
        release = _release(root / "proc/sys/kernel/osrelease") or ""
        modules = _first(root / "lib/modules" / release, root / "usr/lib/modules" / release)
        btf = root / "sys/kernel/btf"
        configs = [root / "proc/config.gz", root / f"boot/config-{release}"]
        return cls(
            f"the running kernel {release}" if release else "the running kernel",
            release or None,
            images=[],
            modules=modules if release else None,
            btf=btf if (btf / "vmlinux").exists() else None,
            configs=[*configs, *([modules / "config"] if modules else [])],
        )

    @classmethod
    def offline(cls, path: Path) -> KernelFiles:
        """A kernel at ``path``: its image file, /lib/modules/RELEASE, a build tree, or the root of
        a system or unpacked package.

        FormatError when it holds several kernels or none.
        """
        if path.is_file():
            return cls(str(path), None, images=[path], modules=None)
        if not path.is_dir():
            raise FormatError("no such file or directory", path=str(path))
        trees = [path / "lib/modules", path / "usr/lib/modules"]
        release: str | None
        installed = {
            entry.name: entry
            for tree in trees
            if tree.is_dir()
            for entry in sorted(tree.iterdir())
            if entry.is_dir()
        }
        if len(installed) > 1:
            listed = ", ".join(installed)
            raise FormatError(f"holds several kernels ({listed}): give one's own", path=str(path))
        if installed:
            release, modules = next(iter(installed.items()))
        else:
            modules, release = path, None
            stated = path / "include/config/kernel.release"
            # /lib/modules/RELEASE itself is told by its name.
            if path.resolve().parent.name == "modules":
                release = path.resolve().name
            else:
                release = _release(stated)
        places = [path, modules, path / "arch/x86/boot", path / "arch/arm64/boot", path / "boot"]
        if release:
            # The system that the modules lie in: lib/modules/RELEASE or usr/lib/modules/RELEASE.
            places += [above / "boot" for above in list(modules.resolve().parents)[2:4]]
        names = [*_IMAGES, *(f"{name}-{release}" for name in _IMAGES if release)]
        images = [place / name for place in places for name in names if (place / name).is_file()]
        configs = [modules / "config", path / ".config"]
        configs += [place / f"config-{release}" for place in places]
        files = cls(str(path), release, images=images, modules=modules, configs=configs)
        if not images and not files._module_paths:
            raise FormatError("holds neither a kernel image nor modules", path=str(path))
        return files

    @cached_property
    def config(self) -> dict[str, str] | None:
        """The configuration; None when none is there."""
        for path in self._configs:
            try:
                return read_config(path)
            except OSError:
                continue
        return None

    @cached_property
    def base(self) -> Btf | None:
        """The kernel's own BTF; None when there is neither BTF nor an image."""
        if self._btf:
            return image.kernel_btf(self._btf / "vmlinux")
        return image.kernel_btf(self._images[0]) if self._images else None

    @cached_property
    def _module_paths(self) -> dict[str, Path]:
        """Module files by module name."""
        paths: dict[str, Path] = {}
        if self._modules is None:
            return paths
        seen = 0
        for directory, _, names in os.walk(self._modules):
            seen += len(names)
            if seen > _MAX_ENTRIES:
                break
            for name in names:
                if found := _MODULE.fullmatch(name):
                    paths.setdefault(found[1].replace("-", "_"), Path(directory, name))
        return paths

    def modules(self) -> list[str]:
        """Names of all modules that there are files of."""
        return list(self._module_paths)

    def module_file(self, name: str) -> Path | None:
        """The file of a module."""
        return self._module_paths.get(name) if name else None

    def module_btf(self, name: str) -> Btf | None:
        """A module's BTF: of the loaded module, else of its file; None when there is neither."""
        loaded = self._btf / name if self._btf else None
        if loaded and loaded.is_file():
            return Btf(image.read(loaded), self.base, path=str(loaded))
        path = self.module_file(name)
        return image.Module(path).btf(self.base) if path else None


def _release(path: Path) -> str | None:
    """A kernel release that a file states; None when there is none that could name a directory."""
    try:
        text = path.read_bytes()[:256].decode("ascii", "replace").strip()
    except OSError:
        return None
    return text if re.fullmatch(r"\w[\w.+~-]*", text, re.ASCII) else None


def _first(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_dir()), None)
