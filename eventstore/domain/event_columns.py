"""`EventColumns`: the events of one class as Arrow columns, typed as its fields are, for pandas, polars, DuckDB and lakes.

Payloads are parsed by Arrow's JSON reader, all of a batch at once. An event goes through its class only where the payload alone
does not say what the class does: one of an older version, or without a field that has a default. So the columns hold what
`decode` would have returned.

A name that the class does not know is left out.

    field of the class                    column
    str, int, float, bool                 string, int64, float64, bool
    datetime, date                        timestamp in µs, UTC; date32
    Decimal                               decimal128(38, 18), or as `decimals` says
    UUID                                  string: lakes and Spark have no type that all of them read
    bytes                                 binary
    enum                                  string or int64: the member's value
    list or tuple of one of the first     list
    anything else                         string: its JSON

`X | None` is a column with nulls.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import io
import json
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

from eventstore.domain.encoding.annotations import field_hints, without_new_types
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.errors import DomainRefused, PayloadInvalid
from eventstore.extras import advice
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Event
from eventstore.stopped_clock import real_class

if TYPE_CHECKING:
    import pyarrow as pa

E = TypeVar("E")
ENVELOPE: Final = ("sequence", "aggregate_id", "version", "timestamp", "command_id")
"""The columns before those of the fields. A field of such a name has an underscore after it."""
_DEFAULT_DECIMAL: Final = DecimalColumn(38, 18)
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class _Column(NamedTuple):
    """A field: what the JSON reader is asked for, and what makes the column of that. `has_default`: a payload may lack it."""

    field: str
    json_type: Any
    made: Any
    convert: Callable[[Any], Any] | None
    nullable: bool
    has_default: bool
    is_json: bool = False


class EventColumns(Generic[E]):
    """Makes the columns of a class of events.

    Attributes:
        name: the type that its events have in the store: `read_all_arrow(types=[columns.name])`.
        schema: sequence, aggregate_id, version, timestamp and command_id, then a column for each field.
    """

    def __init__(self, cls: type[E], *, decimals: Mapping[str, DecimalColumn] | None = None) -> None:
        """`decimals`: precision and scale of fields that are Decimals.

        Raises:
            DomainRefused: it is not a class of events, or has no such field.
            ModuleNotFoundError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"columns need {error.name}; {advice('arrow')}", name=error.name) from None
        from eventstore.records.arrow_page import schema

        self._type = event_type(cls)
        self.name = self._type.name
        hints = field_hints(cls)
        if unknown := sorted(set(decimals or ()) - hints.keys()):
            raise DomainRefused(
                f"event {self.name!r} has no field {unknown[0]!r}; its fields are {', '.join(hints)}", field=unknown[0]
            )
        self._columns = [
            _column(pyarrow, each, hints[each.name], (decimals or {}).get(each.name))
            for each in dataclasses.fields(cast(Any, cls))
        ]
        stored = schema()
        self.schema: pa.Schema = pyarrow.schema(
            [stored.field(name) for name in ENVELOPE]
            + [
                pyarrow.field(f"{each.field}_" if each.field in ENVELOPE else each.field, each.made, nullable=each.nullable)
                for each in self._columns
            ]
        )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the events of the class in a batch of `read_all_arrow`; those of other classes are left out.

        Raises:
            PayloadInvalid: a payload is not of the class, or a value does not fit into its column: an int of more than 64 bits,
                a Decimal of more digits.
            UnknownEvent: an event of a version that the class has no upcast for.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = batch.filter(pc.equal(batch["type"], self.name))
        payloads: list[bytes] = rows["data"].to_pylist()
        for row in self._of_other_versions(rows):
            payloads[row] = self._current(rows, row)
        try:
            table = self._parsed(payloads)
        except pa.ArrowInvalid:  # one that the class may take nevertheless, or refuses with the reason
            payloads = [self._current(rows, row) for row in range(len(rows))]
            table = self._parsed_again(payloads)
        else:
            if lacking := self._lacking(table, payloads):
                for row in lacking:
                    payloads[row] = self._current(rows, row)
                table = self._parsed_again(payloads)
        try:
            made = [self._made(each, table, payloads) for each in self._columns]
        except PayloadInvalid:  # a spelling that only the class reads, or refuses with the reason
            payloads = [self._current(rows, row) for row in range(len(rows))]
            table = self._parsed_again(payloads)
            made = [self._made(each, table, payloads) for each in self._columns]
        return pa.RecordBatch.from_arrays([*(rows[name] for name in ENVELOPE), *made], schema=self.schema)

    def _lacking(self, table: Any, payloads: list[bytes]) -> set[int]:
        """Returns the rows where a null may stand for a value: it is not allowed, or the field has a default."""
        import pyarrow.compute as pc

        found = set[int]()
        for each in self._columns:
            if not each.has_default and each.nullable:
                continue
            if each.is_json:
                found.update(row for row, payload in enumerate(payloads) if each.field not in json.loads(payload))
            elif table[each.field].null_count:
                found.update(pc.indices_nonzero(table[each.field].is_null()).to_pylist())
        return found

    def _of_other_versions(self, rows: pa.RecordBatch) -> list[int]:
        import pyarrow.compute as pc

        metadata = rows["metadata"]
        if self._type.version == 1:
            suspects = pc.fill_null(pc.match_substring(metadata, b'"schema"'), False)
        else:
            suspects = pc.fill_null(
                pc.not_equal(metadata, json.dumps({"schema": self._type.version}, separators=(",", ":")).encode()), True
            )
        found: list[int] = pc.indices_nonzero(suspects).to_pylist()
        return found

    def _current(self, rows: pa.RecordBatch, row: int) -> bytes:
        """Returns the payload as the class writes it today."""
        found = rows.slice(row, 1).to_pylist()[0]
        format_ = DATA_IS_JSON | METADATA_IS_JSON if found["metadata"] is not None else DATA_IS_JSON
        values = (found["aggregate_id"], found["version"], self.name, found["data"], found["metadata"], found["command_id"])
        stored: Event = tuple.__new__(Event, (*values, 0, found["sequence"], format_))
        return self._type.current(stored).data

    def _parsed_again(self, payloads: list[bytes]) -> Any:
        import pyarrow as pa

        try:
            return self._parsed(payloads)
        except pa.ArrowInvalid as error:
            raise PayloadInvalid(f"event {self.name!r} does not fit into its columns: {error}", type=self.name) from None

    def _parsed(self, payloads: list[bytes]) -> Any:
        """Raises ArrowInvalid."""
        import pyarrow as pa
        import pyarrow.json

        wanted = pa.schema([pa.field(each.field, each.json_type) for each in self._columns if not each.is_json])
        if not payloads or not len(wanted):
            return wanted.empty_table() if not payloads else pa.table({"": pa.nulls(len(payloads))})
        joined = b"\n".join(payloads)
        table = pyarrow.json.read_json(
            io.BytesIO(joined),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            pyarrow.json.ParseOptions(explicit_schema=wanted, newlines_in_values=True, unexpected_field_behavior="ignore"),
        )
        if len(table) != len(payloads):
            raise pa.ArrowInvalid(f"{len(payloads)} payloads are {len(table)} rows")
        return table

    def _made(self, column: _Column, table: Any, payloads: list[bytes]) -> Any:
        import pyarrow as pa

        if column.is_json:
            values = [json.loads(each).get(column.field) for each in payloads]
            texts = [None if each is None else json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in values]
            return pa.array(texts, pa.string())
        found = table[column.field].combine_chunks()
        try:
            return found if column.convert is None else column.convert(found)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            what = f"event {self.name!r}, field {column.field!r} does not fit into a column of {column.made}: {error}"
            raise PayloadInvalid(what, type=self.name, field=column.field) from None


def _column(pa: Any, field: Any, hint: object, decimal: DecimalColumn | None) -> _Column:
    inner, nullable = _without_none(without_new_types(hint))
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    has_default = has_default and not (nullable and field.default is None)  # then a null is what a payload without it means
    found = _type_of(pa, inner, decimal)
    if found is None:
        return _Column(field.name, None, pa.string(), None, nullable, has_default, is_json=True)
    return _Column(field.name, *found, nullable, has_default)


def _without_none(hint: object) -> tuple[object, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        others = [each for each in get_args(hint) if each is not type(None)]
        if len(others) == 1:
            return without_new_types(others[0]), True
    return hint, False


def _type_of(pa: Any, hint: object, decimal: DecimalColumn | None) -> tuple[Any, Any, Callable[[Any], Any] | None] | None:
    """Returns the type to ask the JSON reader for, that of the column, and what converts one into the other; None: as JSON."""
    plain: dict[object, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if hint in plain:
        return plain[hint], plain[hint], None
    if hint is Decimal:
        digits = decimal or _DEFAULT_DECIMAL
        kind = pa.decimal128(digits.precision, digits.scale)
        return pa.string(), kind, lambda found: _decimals(pa, found, kind)
    if hint is UUID:
        return pa.string(), pa.string(), _uuids
    if hint is real_class(datetime):
        kind = pa.timestamp("us", "UTC")
        return pa.string(), kind, lambda found: _times(pa, found, kind)
    if hint is real_class(date):
        return pa.string(), pa.date32(), lambda found: found.cast(pa.date32())
    if hint is bytes:
        return pa.string(), pa.binary(), lambda found: pa.array(map(_from_base64, found.to_pylist()), pa.binary())
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        kind = pa.string() if all(isinstance(each.value, str) for each in hint) else pa.int64()
        return kind, kind, lambda found: _members(found, pa.array([each.value for each in hint], kind))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list or (origin is tuple and arguments[1:] == (Ellipsis,)):
        item = without_new_types(arguments[0])
        if item in plain:
            kind = pa.list_(plain[item])
            return kind, kind, None
    return None


def _times(pa: Any, found: Any, kind: Any) -> Any:
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:  # ISO 8601 has forms that Arrow does not read
        return pa.array([None if each is None else _time(each) for each in found.to_pylist()], kind)


def _time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return at


def _uuids(found: Any) -> Any:
    import pyarrow.compute as pc

    if not pc.all(pc.match_substring_regex(found, _UUID)).as_py() and found.null_count < len(found):
        raise ValueError("a text that is no UUID, or not written as one")
    return found


def _members(found: Any, values: Any) -> Any:
    import pyarrow.compute as pc

    if not pc.all(pc.is_in(found.drop_null(), values)).as_py() and found.null_count < len(found):
        raise ValueError("a value that the enum does not have")
    return found


def _decimals(pa: Any, found: Any, kind: Any) -> Any:
    try:
        return found.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # Decimals have forms that Arrow does not read
        return pa.array([None if each is None else Decimal(each) for each in found.to_pylist()], kind)


def _from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
