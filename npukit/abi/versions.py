# SPDX-License-Identifier: MIT
"""How an interface differs between kernels, drivers and vendors.

A module of npukit.abi states one header as Linux 7.3 has it. Beside the names of the header stand

    SINCE     name -> the first Linux release that has it. The module's own name stands for the
              whole interface; what is not listed came with it, or before Linux 6.1.
    VARIANTS  name -> what an older kernel, another driver or a vendor has instead: a Variant.

and two functions that put them together:

    abi.fastrpc.for_kernel((6, 12)).fastrpc_ioctl_capability
    abi.fastrpc.variant("multimode").FASTRPC_IOCTL_MULTIMODE_INVOKE

Requests and structure sizes are dated by strace's tables, which exist for every release, the other
names by the headers of 6.1 to 6.13, 6.19, 7.2 and 7.3. A name first found in 6.19 or 7.2 may be a
few releases older than SINCE says; it is never younger.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

from npukit.ioctl import AbiMismatch

Version = tuple[int, ...]
"""A Linux release, (6, 12); further numbers are ignored."""


class Variant:
    """A namespace of names that mean something else in another version of an interface.

    Its docstring says what differs.
    """

    UNTIL: ClassVar[Version | None] = None
    """Kernels before this release have it; None: another driver or a vendor has."""
    LACKS: ClassVar[frozenset[str]] = frozenset()
    """Names that it does not have."""
    HEADER: ClassVar[str | None] = None
    """The module of npukit.abi that states its names, where they have a header of their own."""
    WHOLE: ClassVar[bool] = False
    """That header is all there is; nothing of the interface that this is a variant of holds."""

    @classmethod
    def names(cls) -> dict[str, Any]:
        header = vars(import_module(f"{__package__}.{cls.HEADER}")) if cls.HEADER else {}
        return c_names(header) | c_names(vars(cls))


class View:
    """An interface as one kernel, driver or vendor has it: the names are attributes.

    ``names`` maps all of them, in the header's order. A name that the interface lacks raises
    AttributeError, which says since when there is one.
    """

    def __init__(self, title: str, names: Mapping[str, Any], absent: Mapping[str, str]) -> None:
        self.title = title
        self.names = names
        self._absent = absent

    def __getattr__(self, name: str) -> Any:
        own = vars(self)  # empty while copy or pickle make a new instance
        if name in own.get("names", ()):
            return own["names"][name]
        reason = own.get("_absent", {}).get(name, "is not a name of this interface")
        raise AttributeError(f"{own.get('title')}: {name} {reason}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.names)} names>"


def kernel_views(module: str) -> Callable[[Version], View]:
    """``for_kernel`` of the module of that name."""

    def for_kernel(version: Version) -> View:
        """The interface as a Linux release has it, (6, 12) for example.

        AbiMismatch when that release does not have it at all.
        """
        if len(version) < 2:
            raise ValueError(f"{version} is not a Linux release: (6, 12) is one")
        major, minor = version[:2]
        whole = sys.modules[module]
        short = module.rpartition(".")[2]
        since = whole.SINCE.get(short, (0, 0))
        if (major, minor) < since:
            raise AbiMismatch(
                errno.ENOSYS,
                f"Linux {major}.{minor} has no {short} interface",
                hint=f"it came with Linux {_text(since)}",
            )
        return _before((major, minor + 1), whole, f"{short} of Linux {major}.{minor}")

    return for_kernel


def variant_views(module: str) -> Callable[[str], View]:
    """``variant`` of the module of that name."""

    def variant(name: str) -> View:
        """The interface as one of VARIANTS has it; ValueError when there is none of that name."""
        whole = sys.modules[module]
        short = module.rpartition(".")[2]
        chosen = whole.VARIANTS.get(name)
        title = f"{short}, variant {name}"
        if chosen is None:
            known = ", ".join(whole.VARIANTS) or "none"
            raise ValueError(f"{short} has no variant {name!r}; known: {known}")
        if chosen.UNTIL is not None:
            return _before(chosen.UNTIL, whole, title)
        names = {} if chosen.WHOLE else c_names(vars(whole))
        names = {n: v for n, v in names.items() if n not in chosen.LACKS}
        absent = dict.fromkeys(chosen.LACKS, "is not in this variant")
        return View(title, names | chosen.names(), absent)

    return variant


def _before(release: Version, whole: Any, title: str) -> View:
    """The interface as kernels before ``release`` have it."""
    absent = {
        name: f"came with Linux {_text(since)}"
        for name, since in whole.SINCE.items()
        if since >= release
    }
    names = {n: v for n, v in c_names(vars(whole)).items() if n not in absent}
    dated = [each for each in whole.VARIANTS.values() if each.UNTIL is not None]
    # Of two changes to one name the earlier counts for kernels before both: it is laid on top.
    for variant in sorted(dated, key=lambda each: each.UNTIL, reverse=True):
        if release <= variant.UNTIL:
            names |= {n: v for n, v in variant.names().items() if n not in absent}
    return View(title, names, absent)


def c_names(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """What a namespace has of a header: constants, structures, requests, macros with arguments."""
    return {name: value for name, value in namespace.items() if _from_header(name, value)}


def _from_header(name: str, value: Any) -> bool:
    if name.startswith("_") or isinstance(value, bool):
        return False
    if isinstance(value, type):
        return issubclass(value, ctypes.Structure | ctypes.Union) and hasattr(value, "_size_")
    if isinstance(value, int):
        return True
    return name.isupper() and getattr(value, "__module__", "").startswith(f"{__package__}.")


def _text(version: Version) -> str:
    return ".".join(map(str, version))
