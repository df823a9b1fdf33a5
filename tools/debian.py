# SPDX-License-Identifier: MIT
"""Packages of Debian's archive, of any suite and architecture, for the tools of this folder.

The archive is the one that this machine's apt is set up for; apt does the work, with lists, cache
and state of its own, so the machine's are not touched and root is not needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHITECTURES = ("amd64", "arm64")
_FREE = 1 << 30
"""Bytes that must be free in the cache: an image's packages and what is unpacked of them."""


class Unavailable(Exception):
    """The package cannot be had here; the text says why."""


def cache_directory() -> Path:
    """Where downloads are kept, outside of the checkout."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "npukit"


class Archive:
    """Debian's archive, as far as this machine reaches it; ``debs`` is a folder to look in first.

    Synchronization: one at a time in one cache directory.
    """

    def __init__(self, debs: Path | None = None) -> None:
        self.debs = debs
        self.cache = cache_directory() / "debian"
        self._ready: str | None = None

    def get(self, package: str, version: str, architecture: str, suite: str) -> Path:
        """The .deb, downloaded unless it is there already. Unavailable when it cannot be had."""
        pattern = f"{package}_{version.replace(':', '%3a')}_*.deb"
        for directory in filter(None, (self.debs, self.cache / "debs")):
            for found in sorted(directory.glob(pattern)):
                if found.stem.endswith((f"_{architecture}", "_all")):
                    return found
        self._use(suite)
        debs = self.cache / "debs"
        debs.mkdir(exist_ok=True)
        self._apt("apt-get", "download", f"{package}:{architecture}={version}", cwd=debs)
        downloaded = list(debs.glob(pattern))
        if not downloaded:
            raise Unavailable(f"apt downloaded no {pattern}")
        return downloaded[0]

    def closure(self, packages: Sequence[str], suite: str) -> list[Path]:
        """The .debs of ``packages`` and of all they depend on.

        For this machine's architecture, or the one at a name's end (``:arm64``).
        """
        self._use(suite)
        install = ("apt-get", "--yes", "--no-install-recommends", "install", *packages)
        listed = self._apt(*install, "--print-uris", "--quiet=2")
        names = re.findall(r"^'\S+' (\S+\.deb)", listed, re.MULTILINE)
        self._apt(*install, "--download-only")
        return [self.cache / "archives" / name for name in names]

    def newest(self, package: str, architecture: str, suite: str) -> dict[str, str]:
        """The control fields of a package's newest version in a suite."""
        self._use(suite)
        text = self._apt("apt-cache", "policy", f"{package}:{architecture}")
        candidate = re.search(r"Candidate: (\S+)", text)
        if candidate is None or candidate[1] == "(none)":
            raise Unavailable(f"{suite} has no {package} for {architecture}")
        text = self._apt("apt-cache", "show", f"{package}:{architecture}={candidate[1]}")
        return dict(re.findall(r"^([\w-]+): (.*)$", text.split("\n\n")[0], re.MULTILINE))

    def _use(self, suite: str) -> None:
        if self._ready == suite:
            return
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unavailable(f"{tool} is not installed: Debian's packages come through apt")
        self.cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.cache).free
        if free < _FREE:
            raise Unavailable(f"{self.cache} has {free >> 20} MiB free, {_FREE >> 20} are needed")
        for part in ("lists/partial", "archives/partial"):
            (self.cache / part).mkdir(parents=True, exist_ok=True)
        (self.cache / "status").touch()
        reasons = []
        for uri in _repositories():
            signed = f"Signed-By: {_KEYRING}\n" if _KEYRING.is_file() else ""
            (self.cache / "debian.sources").write_text(
                f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\n"
                f"Architectures: {' '.join(_ARCHITECTURES)}\n{signed}"
            )
            try:
                self._apt("apt-get", "update", "--error-on=any")
            except Unavailable as reason:
                reasons.append(str(reason))
                continue
            self._ready = suite
            return
        raise Unavailable("; ".join(reasons) or "apt has no sources")

    def _apt(self, *command: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::sourcelist": self.cache / "debian.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.cache / "lists",
            "Dir::State::status": self.cache / "status",
            "Dir::Cache": self.cache,
            "APT::Sandbox::User": "",
            "Acquire::Retries": 2,
        }
        arguments = [f"-o{name}={value}" for name, value in options.items()]
        arguments += [f"-oAPT::Architectures::={name}" for name in _ARCHITECTURES]
        tool, *rest = command
        return _run([tool, *arguments, *rest], cwd)


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        outcome = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=900, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if outcome.returncode:
        lines = (outcome.stderr or outcome.stdout).strip().splitlines() or ["failed"]
        message = next((line for line in lines if line.startswith("E:")), lines[-1])
        raise Unavailable(f"{command[0]}: {message}")
    return outcome.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _repositories() -> list[str]:
    """Addresses of the archives in apt's configuration, those of security updates left out."""
    text = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"])
    pairs = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    return list(dict.fromkeys(uri for uri, release in pairs if "security" not in release))


def unpack(deb: Path, target: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Unpack the regular files of a package whose path is ``wanted``; returns where they are.

    Symbolic links between wanted files are kept, so that headers include one another.
    """
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    done = []
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as tar:
        for member in tar:
            if (member.isfile() or member.issym()) and wanted(member.name):
                tar.extract(member, target, filter="data")
                done.append(target / member.name)
    return done
