# SPDX-License-Identifier: MIT
"""Structures that read like the kernel header they mirror.

A class keeps the C tag as its name and the C names of its fields, and states its size:

    class drm_rocket_submit(Struct):
        _size_ = 24
        _fields_ = [
            ("jobs", c_uint64),
            ("job_count", c_uint32),
            ("job_struct_size", c_uint32),
            ("reserved", c_uint64),
        ]
        _pointers_ = {"jobs": Pointer(drm_rocket_job, count="job_count", stride="job_struct_size")}

The stated size is checked against what ctypes lays out, once, when ``_fields_`` is set.
"""

from __future__ import annotations

import ctypes
import keyword
import numbers
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from _ctypes import _PyCStructType as _CStructType
    from _ctypes import _UnionType as _CUnionType
else:
    _CStructType, _CUnionType = type(ctypes.Structure), type(ctypes.Union)

_HIDDEN = re.compile(r"_*(pad|padding|reserved|rsvd|resv)\d*$")
_HEX = re.compile(r"(addr|address|vaddr(in|out)|ptr|flags|mask|offset|regcmd|base)\d*$")


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a pointer that travels in an integer field points to.

    ``target`` is a ctypes type. ``count`` names the field that holds the number of elements (None:
    one element, or a C string where the target is c_char), ``stride`` the field that holds an
    element's size in bytes (None: the target's size). ``direction`` says who fills the memory: "in"
    is read by the kernel, "out" written, "inout" both.
    """

    target: Any
    count: str | None = None
    stride: str | None = None
    direction: str = "in"


def _alias(name: str) -> property:
    return property(
        lambda self: getattr(self, name),
        lambda self, value: setattr(self, name, value),
        doc=f"The field ``{name}``, whose name Python reserves.",
    )


def _finish(cls: Any) -> None:
    """Check the stated size and add what the header's names need, once the fields are known."""
    stated = cls.__dict__.get("_size_")
    actual = ctypes.sizeof(cls)
    if stated is None:
        raise TypeError(f"{cls.__name__} does not state its size: _size_ = {actual}?")
    if stated != actual:
        raise TypeError(f"{cls.__name__} states {stated} bytes but is laid out in {actual}")
    names = [field[0] for field in cls._fields_]
    for name in names:
        if keyword.iskeyword(name):
            setattr(cls, name + "_", _alias(name))
    named = {part for p in cls._pointers_.values() for part in (p.count, p.stride)}
    for name in {*cls._pointers_, *named} - {None}:
        if not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} has no field {name!r}")
    if cls._tail_ and (cls._fields_[-1][0], True) != (cls._tail_[0], hasattr(cls, cls._tail_[1])):
        raise TypeError(f"{cls.__name__} does not end in the tail {cls._tail_[0]!r} that it states")


class _Declared:
    """A metaclass's part: finish a class when its fields are set, at once or later."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:  # noqa: N805
        super().__init__(name, bases, namespace)  # type: ignore[call-arg]
        if "_fields_" in namespace:
            _finish(cls)

    def __setattr__(cls, name: str, value: Any) -> None:  # noqa: N805
        super().__setattr__(name, value)
        if name == "_fields_":
            _finish(cls)


class _StructType(_Declared, _CStructType):
    pass


class _UnionType(_Declared, _CUnionType):
    pass


class _Readable:
    """What structures and unions share: a readable form, a dictionary, equality, flexible tails."""

    _size_: ClassVar[int]
    _fields_: ClassVar[Any]
    _anonymous_: ClassVar[Any] = ()
    _pointers_: ClassVar[dict[str, Pointer]] = {}
    _tail_: ClassVar[tuple[str, str] | None] = None
    """(flexible array field, field that counts it)."""

    @classmethod
    def fields(cls) -> list[str]:
        """Names of all fields, in order; those of an anonymous member stand in its place."""
        names: list[str] = []
        for name, ctype, *_ in cls._fields_:
            names += ctype.fields() if name in cls._anonymous_ else [name]
        return names

    @classmethod
    def with_tail(cls, count: int, **fields: Any) -> Self:
        """A structure whose flexible array has ``count`` elements; the count field is set."""
        if cls._tail_ is None:
            raise TypeError(f"{cls.__name__} has no flexible array")
        if count < 0:
            raise ValueError(f"a tail of {count} elements")
        counter = cls._tail_[1]
        instance = _tailed(cls, count)()
        setattr(instance, counter, count)
        for name, value in fields.items():
            _set(instance, name, value)
        return instance  # type: ignore[no-any-return]

    def asdict(self) -> dict[str, Any]:
        """All fields as Python values: structures as dictionaries, arrays as lists or bytes."""
        return {name: _plain(getattr(self, name)) for name in self.fields()}

    def __repr__(self) -> str:
        shown = (
            f"{name}={_show(name, getattr(self, name), name in self._pointers_)}"
            for name in self.fields()
            if not _HIDDEN.match(name)
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return bytes(self) == bytes(other)  # type: ignore[call-overload,no-any-return]

    __hash__ = None  # type: ignore[assignment]


class Struct(_Readable, ctypes.Structure, metaclass=_StructType):
    """Base of every C structure."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__()
        _fill(self, values, fields)


class Union(_Readable, ctypes.Union, metaclass=_UnionType):
    """Base of every C union."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__()
        _fill(self, values, fields)


def _fill(instance: Any, values: tuple[Any, ...], fields: dict[str, Any]) -> None:
    names = [field[0] for field in instance._fields_]
    if len(values) > len(names):
        raise TypeError(f"{type(instance).__name__} has {len(names)} fields, not {len(values)}")
    for name, value in (*zip(names, values, strict=False), *fields.items()):
        _set(instance, name, value)


def _set(instance: Any, name: str, value: Any) -> None:
    """Set a field. Unlike ctypes, an unknown name or a value that does not fit is an error."""
    descriptor = getattr(type(instance), name, None)
    if descriptor is None or not hasattr(descriptor, "__set__"):
        raise TypeError(f"{type(instance).__name__} has no field {name!r}")
    array = getattr(instance, name)
    if isinstance(array, ctypes.Array) and isinstance(value, (tuple, list, bytearray, bytes)):
        if len(value) > len(array):
            raise ValueError(f"{type(instance).__name__}.{name} has {len(array)} elements")
        for index, element in enumerate(value):
            array[index] = element
            _check(f"{type(instance).__name__}.{name}[{index}]", array[index], element)
        return
    setattr(instance, name, value)
    _check(f"{type(instance).__name__}.{name}", getattr(instance, name), value)


def _check(where: str, stored: Any, given: Any) -> None:
    """ctypes cuts an integer to the field's width without a word."""
    if isinstance(given, numbers.Integral) and stored != given:
        raise ValueError(f"{where} cannot hold {int(given):#x}")


_tail_types: dict[tuple[Any, int], Any] = {}


def _tailed(cls: Any, count: int) -> Any:
    found = _tail_types.get((cls, count))
    if found is None:
        name, array, *_ = cls._fields_[-1]
        fields = [*cls._fields_[:-1], (name, array._type_ * count)]
        probe = type("probe", (ctypes.Structure,), {"_fields_": fields})
        descriptors = set(cls.fields())
        namespace = {
            **{
                name: value
                for name, value in vars(cls).items()
                if name == "__doc__" or (name not in descriptors and not name.startswith("__"))
            },
            "_size_": ctypes.sizeof(probe),
            "_fields_": fields,
        }
        found = _tail_types[cls, count] = type(cls)(cls.__name__, (cls.__mro__[1],), namespace)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, _Readable):
        return value.asdict()
    if isinstance(value, ctypes.Array):
        return [_plain(element) for element in value]
    return value


def _show(name: str, value: Any, pointer: bool) -> str:
    if isinstance(value, ctypes.Array) and value._type_ is ctypes.c_uint8:
        return f"<{bytes(value).hex()}>"
    if isinstance(value, ctypes.Array):
        return "[" + ", ".join(_show(name, element, pointer) for element in value) + "]"
    if isinstance(value, int) and value >= 0 and (pointer or _HEX.search(name)):
        return hex(value)
    return repr(value)
