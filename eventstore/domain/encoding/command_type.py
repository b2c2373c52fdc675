"""`CommandType`: a command class, its stable name, and the field with the aggregate id."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eventstore.commands import RawCommand, encode_with
from eventstore.domain.encoding.annotations import without_new_types
from eventstore.domain.encoding.codec import PayloadCodec, check_dataclass, class_path
from eventstore.domain.encoding.fingerprint import Fingerprints
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import TYPE_BYTES_MAX

C = TypeVar("C")
_ATTRIBUTE: Final = "__eventstore_command__"


class CommandType(Generic[C]):
    """A command class. Its codec is built at first use. `personal`: the fields that are not kept (`keep_commands`)."""

    def __init__(self, cls: type[C], name: str, id_field: str, personal: Sequence[str] = ()) -> None:
        self.cls = cls
        self.name = name
        self.id_field = id_field
        self.personal = tuple(personal)
        self._id_of: Callable[[C], object] = attrgetter(id_field)

    @cached_property
    def codec(self) -> PayloadCodec[C]:
        return PayloadCodec(self.cls, self.name, "command")

    @cached_property
    def fingerprints(self) -> Fingerprints[C]:
        return Fingerprints(self.name, self.codec)

    def check(self) -> None:
        """Raises DomainRefused if a field cannot be sent, instances are read back as others, or the field with the aggregate's
        id is not text."""
        self.codec.check()
        self.check_id_field(self.id_field)

    def check_id_field(self, name: str) -> None:
        """Raises DomainRefused if a field that has an aggregate's id is not text."""
        hint = without_new_types(get_type_hints(self.cls)[name])
        # A command whose id is None is refused when it is sent.
        choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        kinds = [without_new_types(each) for each in choices if each is not type(None)]
        if not all(isinstance(each, type) and issubclass(each, str) for each in kinds):
            raise DomainRefused(
                f"command {class_path(self.cls)}: field {name!r} is the aggregate's id, but is declared as "
                f'{shown(hint)}; declare it as str, or name another field with @command(id="…")',
                name=class_path(self.cls),
                field=name,
            )

    def aggregate_id(self, command: C) -> str:
        """Returns the id of the aggregate that the command is for.

        Raises:
            InvalidArgument: it is empty, too long, or not text.
        """
        value = self._id_of(command)
        if isinstance(value, str) and type(value) is not str:
            value = str.__str__(value)  # as it is read back
        try:
            return check_text("aggregate_id", value)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"command {self.name!r}: field {self.id_field} is the aggregate's id, and {error.message}", **error.fields
            ) from None

    def encode(self, command: C) -> RawCommand:
        """Encodes a command to send it.

        Raises:
            InvalidArgument: it has no aggregate id.
            PayloadInvalid: the value of a field does not match its type, or the handler would get another command.
        """
        return RawCommand(self.name, self.aggregate_id(command), self.codec.proven(command))

    def decode(self, payload: bytes, aggregate_id: str) -> C:
        """Decodes a command that was sent to this aggregate.

        Raises:
            PayloadInvalid: the payload does not match the class.
            InvalidArgument: it has no aggregate id, or that of another aggregate.
        """
        return self.decode_with_fingerprint(payload, aggregate_id)[0]

    @cached_property
    def decode_with_fingerprint(self) -> Callable[[bytes, str], tuple[C, bytes]]:
        """As `decode`; also returns the command's fingerprint. A closure, since each command of a server passes through it."""
        canonical, parsed, id_of = self.codec.decode_canonical, self.codec.decode_parsed, self._id_of
        of, of_canonical, is_equal = self.fingerprints.of, self.fingerprints.of_canonical, self.codec.is_equal

        def decode(payload: bytes, aggregate_id: str) -> tuple[C, bytes]:
            command = canonical(payload)
            if command is None:
                command = parsed(payload)
                fingerprint = of(payload, command)
            elif is_equal is None or is_equal(payload):
                fingerprint = of_canonical(payload)
            else:
                fingerprint = of(payload, command)
            if id_of(command) != aggregate_id or not aggregate_id:
                raise self._sent_elsewhere(command, aggregate_id)
            return command, fingerprint

        return decode

    def _sent_elsewhere(self, command: C, aggregate_id: str) -> InvalidArgument:
        named = self.aggregate_id(command)
        return InvalidArgument(
            f"command {self.name!r} was sent to aggregate {shown(aggregate_id)}, but its field {self.id_field} "
            f"is {shown(named)}",
            field="aggregate_id",
            value=shown(aggregate_id),
        )


def command(
    name: str | None = None, *, id: str | None = None, personal: Sequence[str] = ()
) -> Callable[[type[C]], type[C]]:  # `id`: the domain's word
    """Marks a frozen dataclass as a command, sent under `name` (default: the name of the class). `id` is the field with the id
    of the aggregate (default: the first). `personal`: fields that a server leaves out where it keeps commands; a command that
    is replayed has their defaults.

    Raises:
        DomainRefused: it is not a frozen dataclass, or has no such field, or a personal one has no default, or is the id.
    """

    def register(cls: type[C]) -> type[C]:
        check_dataclass(cls)
        if _ATTRIBUTE in cls.__dict__:
            raise DomainRefused(
                f"{class_path(cls)} has its name already; put @command above it, and once", name=class_path(cls)
            )
        kind = _new_type(cls, cls.__name__ if name is None else name, id)
        kind.personal = _checked_personal(cls, kind.id_field, personal)
        setattr(cls, _ATTRIBUTE, kind)
        return cls

    if isinstance(name, type):
        raise DomainRefused(f"@command above {name.__name__} needs parentheses: @command()", name=name.__name__)
    return register


def _checked_personal(cls: type, id_field: str, personal: Sequence[str]) -> tuple[str, ...]:
    missing = dataclasses.MISSING
    fields = {each.name: each for each in dataclasses.fields(cls)}
    if isinstance(personal, str):
        raise DomainRefused(f"command {class_path(cls)}: personal is the text {personal!r}, but must be a tuple of names")
    for name in personal:
        found, why = fields.get(name), None
        if found is None:
            why = "is none of its fields"
        elif name == id_field:
            why = "is its aggregate's id, which cannot be left out; use an id that names nobody"
        elif found.default is missing and found.default_factory is missing:
            why = "has no default, which it would have in a command that is replayed; add one"
        if why is not None:
            raise DomainRefused(
                f"command {class_path(cls)}: the personal field {name!r} {why}", name=class_path(cls), field=name
            )
    return tuple(personal)


def command_type(cls: type[C], id: str | None = None) -> CommandType[C]:  # `id`: the domain's word
    """Returns the command type of a class; `id` names the field of the aggregate's id, unless it is set already."""
    existing = cls.__dict__.get(_ATTRIBUTE) if isinstance(cls, type) else None
    if existing is None:
        check_dataclass(cls)
        existing = _new_type(cls, cls.__name__, id)
        setattr(cls, _ATTRIBUTE, existing)
    if id is not None and existing.id_field != id:
        raise DomainRefused(
            f"{class_path(cls)} already has its aggregate's id in field {existing.id_field!r}, not in {id!r}; "
            f'put @command(id="{id}") above the class',
            name=class_path(cls),
        )
    return cast("CommandType[C]", existing)


def encode_command(command: object) -> RawCommand:
    """Encodes a command to send it.

    Raises:
        DomainRefused: it is not an instance of a frozen dataclass.
        InvalidArgument: it has no aggregate id.
        PayloadInvalid: the value of a field does not match its type, or the handler would get another command.
    """
    return command_type(type(command)).encode(command)


def _new_type(cls: type[C], name: str, id_field: str | None) -> CommandType[C]:
    try:
        check_text("name", name, 1, TYPE_BYTES_MAX)
    except EventStoreError as error:
        raise DomainRefused(f"@command above {class_path(cls)}: {error.message}", **error.fields) from None
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type] # checked by the caller
    if not names or (id_field is not None and id_field not in names):
        raise DomainRefused(
            f"command {class_path(cls)} has no field {id_field!r}, which is to hold its aggregate's id; add it, or name another"
            if id_field is not None
            else f"command {class_path(cls)} has no fields; add one for its aggregate's id",
            name=class_path(cls),
        )
    return CommandType(cls, name, id_field or names[0])


encode_with(encode_command)
