# SPDX-License-Identifier: MIT
"""Interfaces of DSP modules, written in a part of Qualcomm's IDL, and Python stubs for them.

    echo = idl.load("echo.idl")             # of this package; idl.parse() takes text of your own
    with echo.open(device) as module:
        copy = module.echo(b"abc", 3)       # in: the value; rout sequence: its capacity

What the language has here: ``interface NAME [: remote_handle64] { ... };`` of methods that return
``long`` and take ``in``, ``rout`` and ``inrout`` parameters: the integers of IDL under both their
names (``long`` is 32 bits, ``long long`` 64), ``octet``, ``char``, ``boolean``, ``float``,
``double``, ``string`` and ``sequence<>`` of a number; ``typedef`` of these; comments. All else is
an IdlError that names the line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from types import TracebackType
from typing import Any, Self

import numpy as np

from npukit.abi.aee import code_of
from npukit.devices.fastrpc import FastRpcDevice
from npukit.devices.fastrpc_errors import HexagonError
from npukit.ioctl import DeviceLost

SCALARS = {
    "int8": "b", "uint8": "B", "octet": "B", "byte": "B", "char": "B", "boolean": "B",
    "int16": "h", "short": "h", "uint16": "H", "unsigned short": "H",
    "int32": "i", "long": "i", "uint32": "I", "unsigned long": "I",
    "int64": "q", "long long": "q", "uint64": "Q", "unsigned long long": "Q",
    "float": "f", "double": "d",
}  # fmt: skip
"""IDL name -> character of the struct module. ``long`` has 32 bits, as on the DSP."""

FIRST_METHOD64 = 2
"""A remote_handle64 interface has open and close as its methods 0 and 1."""


class IdlError(ValueError):
    """The text is no IDL that npukit reads; the message names the line."""


@dataclass(frozen=True, slots=True)
class Type:
    """``item`` is a character of the struct module, "s" for a string; ``sequence`` of those."""

    name: str
    item: str
    sequence: bool = False

    @property
    def itemsize(self) -> int:
        return 1 if self.item == "s" else np.dtype(self.item).itemsize

    @property
    def is_buffer(self) -> bool:
        """It travels in a buffer of its own, its length among the primitives."""
        return self.sequence or self.item == "s"


@dataclass(frozen=True, slots=True)
class Parameter:
    """``direction`` is in, rout or inrout."""

    name: str
    type: Type
    direction: str

    @property
    def goes_in(self) -> bool:
        return self.direction != "rout"

    @property
    def comes_out(self) -> bool:
        return self.direction != "in"

    def __str__(self) -> str:
        return f"{self.direction} {self.type.name} {self.name}"


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    number: int
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        return f"long {self.name}({', '.join(map(str, self.parameters))})"


@dataclass(frozen=True)
class Interface:
    """An interface: its methods by name, in their order. ``handle64``: of remote_handle64."""

    name: str
    handle64: bool
    methods: dict[str, Method]

    @functools.cached_property
    def by_number(self) -> dict[int, Method]:
        return {method.number: method for method in self.methods.values()}

    def uri(self, domain: str = "cdsp") -> str:
        """The module that a DSP loads for it: lib<name>_skel.so, by qaic's convention."""
        entry = f"{self.name}_skel_handle_invoke" if self.handle64 else f"{self.name}_skel_invoke"
        return f"file:///lib{self.name}_skel.so?{entry}&_modver=1.0&_dom={domain}"

    def open(self, device: FastRpcDevice, uri: str | None = None) -> Module:
        """Load the module and return its stub. HexagonError as the DSP refuses it."""
        return Module(self, device, device.open_module(uri or self.uri(device.domain)))


class Module:
    """An open module of a DSP, with one Python method for each of its interface.

    An ``in`` or ``inrout`` parameter is given as its value, a ``rout`` string or sequence as its
    capacity (items; or a writable buffer, or a DmaBuffer, to be filled in place), a ``rout`` number
    not at all. What comes out is returned: nothing, one value, or a tuple in the IDL's order. A
    sequence comes as bytes (of octets) or as an array. HexagonError: the method's own result.

    Synchronization: any number of threads, where the module allows it.
    """

    def __init__(self, interface: Interface, device: FastRpcDevice, handle: int) -> None:
        self.interface = interface
        self.device = device
        self.handle = handle
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        method = vars(self)["interface"].methods.get(name)
        if method is None:
            raise AttributeError(f"interface {self.interface.name} has no method {name!r}")
        return functools.partial(self._call, method)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.interface.methods]

    def _call(self, method: Method, *arguments: Any) -> Any:
        from .marshal import pack_call, unpack_results

        ins, outs = pack_call(method, arguments)
        filled = self.device.invoke(
            self.handle, method.number, ins, outs, name=f"{self.interface.name}.{method.name}"
        )
        results = unpack_results(method, arguments, filled)
        if not results:
            return None
        return results[0] if len(results) == 1 else results

    def close(self) -> None:
        """Unload the module. Idempotent; nothing to do when its process is gone."""
        if self._closed:
            return
        self._closed = True
        try:
            self.device.close_module(self.handle)
        except DeviceLost:
            pass
        except HexagonError as error:
            if error.code != code_of("EBADSTATE"):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.interface.name} at handle {self.handle:#x} of {self.device!r}>"


def load(name: str) -> Interface:
    """The interface in a file of this package: "echo.idl" or "qnn_model.idl"."""
    return parse(resources.files(__package__).joinpath(name).read_text("utf-8"))


def parse(text: str) -> Interface:
    """The one interface that ``text`` declares; IdlError when it cannot be read."""
    return _Parser(text).interface()


_TOKEN = re.compile(r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<word>[A-Za-z_]\w*)|(?P<mark>.)", re.S)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [
            (match.group(), text.count("\n", 0, match.start()) + 1)
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "space"
        ]
        self._at = 0
        self._types = {name: Type(name, item) for name, item in SCALARS.items()}
        self._types["string"] = Type("string", "s")

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _error(self, text: str) -> IdlError:
        line = self._tokens[min(self._at, len(self._tokens) - 1)][1] if self._tokens else 1
        return IdlError(f"line {line}: {text}")

    def _next(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise self._error(f"{expected or 'more'!r} is expected, not {token or 'the end'!r}")
        self._at += 1
        return token

    def _name(self) -> str:
        token = self._peek()
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise self._error(f"a name is expected, not {token or 'the end'!r}")
        return self._next()

    def interface(self) -> Interface:
        while self._peek() == "typedef":
            self._typedef()
        self._next("interface")
        name = self._name()
        handle64 = self._peek() == ":"
        if handle64:
            self._next()
            self._next("remote_handle64")
        self._next("{")
        methods: dict[str, Method] = {}
        for method in self._methods(FIRST_METHOD64 if handle64 else 0):
            if method.name in methods:
                raise self._error(f"method {method.name!r} is declared twice")
            methods[method.name] = method
        self._next("}")
        self._next(";")
        if self._peek():
            raise self._error(f"nothing is expected after the interface, not {self._peek()!r}")
        return Interface(name, handle64, methods)

    def _methods(self, number: int) -> Iterator[Method]:
        while self._peek() not in ("}", ""):
            if self._peek() == "typedef":
                self._typedef()
                continue
            if self._peek() != "long":
                raise self._error(f"a method returns long, not {self._peek()!r}")
            self._next()
            name = self._name()
            self._next("(")
            parameters: list[Parameter] = []
            while self._peek() != ")":
                if parameters:
                    self._next(",")
                parameters.append(self._parameter())
            self._next(")")
            self._next(";")
            yield Method(name, number, tuple(parameters))
            number += 1

    def _typedef(self) -> None:
        self._next("typedef")
        kind = self._type()
        self._types[self._name()] = kind
        self._next(";")

    def _parameter(self) -> Parameter:
        direction = self._next()
        if direction not in ("in", "rout", "inrout"):
            raise self._error(f"in, rout or inrout is expected, not {direction!r}")
        kind = self._type()
        if kind.item == "s" and direction == "inrout":
            raise self._error("an inrout string is not supported")
        return Parameter(self._name(), kind, direction)

    def _type(self) -> Type:
        word = self._next()
        if word == "sequence":
            self._next("<")
            item = self._type()
            self._next(">")
            if item.is_buffer:
                raise self._error(f"a sequence of {item.name} is not supported")
            return Type(f"sequence<{item.name}>", item.item, sequence=True)
        while f"{word} {self._peek()}" in self._types:
            word = f"{word} {self._next()}"
        kind = self._types.get(word)
        if kind is None:
            raise self._error(f"no type {word!r} is known")
        return kind
