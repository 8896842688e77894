"""Rows to records and back: a frozen msgspec struct whose fields are named as the columns.

What a field's type asks for: an enum is made from its value, a bool from 0 or 1, a text, number or bytes is taken as
it is, and anything else (a list, a dict, another struct) is JSON in a text column. A NULL is None.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from control_plane.store.errors import StoreMisuse

RecordT = TypeVar("RecordT", bound=msgspec.Struct)
_Convert = Callable[[Any], Any]
_AS_THEY_ARE = (str, int, float, bytes, Any, object)
_encoder = msgspec.json.Encoder()


class RowDecoder(Generic[RecordT]):
    """Makes records of one type out of rows with these columns. Raises `StoreMisuse` where they do not fit."""

    __slots__ = ("_conversions", "_name", "_names", "_positional", "_record")

    def __init__(self, record: type[RecordT], columns: Sequence[str]) -> None:
        fields = msgspec.structs.fields(record)
        by_name = {field.name: field for field in fields}
        unknown = [column for column in columns if column not in by_name]
        missing = [field.name for field in fields if field.required and field.name not in columns]
        if unknown or missing or len(set(columns)) != len(columns):
            raise StoreMisuse(
                f"the columns ({', '.join(columns)}) do not fit {record.__name__}: "
                f"not among its fields: {', '.join(unknown) or 'none'}; not selected: {', '.join(missing) or 'none'}"
            )
        hints = get_type_hints(record)
        self._record: Callable[..., RecordT] = record
        self._name = record.__name__
        self._names = tuple(columns)
        self._positional = _positional(record, columns)
        self._conversions = tuple(
            (index, column, convert)
            for index, column in enumerate(columns)
            if (convert := _conversion(hints[column])) is not None
        )

    def __call__(self, row: Sequence[Any]) -> RecordT:
        """The record of one row. Raises `StoreMisuse` naming the column whose value does not fit."""
        if self._conversions:
            row = self._converted(row)
        if self._positional:
            return self._record(*row)
        return self._record(**dict(zip(self._names, row, strict=True)))

    def _converted(self, row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for index, column, convert in self._conversions:
            value = values[index]
            if value is not None:
                try:
                    values[index] = convert(value)
                except (ValueError, KeyError, msgspec.MsgspecError):
                    # The value may be a secret: the column is named, not what it holds.
                    raise StoreMisuse(f"{self._name}.{column}: the stored value does not fit its type") from None
        return values


def _positional(record: type[msgspec.Struct], columns: Sequence[str]) -> bool:
    """Whether the columns are the record's first arguments, in order: by position is the fastest way to make it."""
    arguments = [
        name
        for name, parameter in inspect.signature(record).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    return list(columns) == arguments[: len(columns)]


def _conversion(hint: Any) -> _Convert | None:
    kind = _without_none(hint)
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    if kind is bool:
        return bool
    if kind in _AS_THEY_ARE or get_origin(kind) is Literal:
        return None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.value: member for member in kind}.__getitem__
    return msgspec.json.Decoder(kind).decode


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        others = [arg for arg in get_args(hint) if arg is not type(None)]
        return others[0] if len(others) == 1 else Union[tuple(others)]  # noqa: UP007
    return hint


def params_of(record: msgspec.Struct) -> dict[str, object]:
    """The record as parameters named as its fields: the counterpart of `into`."""
    return {name: _stored(getattr(record, name)) for name in record.__struct_fields__}


def _stored(value: Any) -> object:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    return json_text(value)


def json_text(value: Any) -> str:
    """A value as the JSON text of a column."""
    return _encoder.encode(value).decode()
