"""A command class under its stable name, with the field that says which aggregate it is for."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Final, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eventstore.commands import RawCommand, encode_with
from eventstore.domain.codec import PayloadCodec, check_dataclass, described, without_new_types
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import TYPE_BYTES_MAX

C = TypeVar("C")
_ATTRIBUTE: Final = "__eventstore_command__"


class CommandType(Generic[C]):
    """One class of commands. Its codec is built at first use."""

    def __init__(self, cls: type[C], name: str, id_field: str) -> None:
        self.cls = cls
        self.name = name
        self.id_field = id_field
        self._id_of: Callable[[C], object] = attrgetter(id_field)

    @cached_property
    def codec(self) -> PayloadCodec[C]:
        return PayloadCodec(self.cls, self.name, "command")

    def check(self) -> None:
        """Raises DomainRefused where a field cannot be sent, or the one with the aggregate's id holds no text."""
        _ = self.codec
        hint = without_new_types(get_type_hints(self.cls)[self.id_field])
        # One that is None is refused when it is sent.
        choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        kinds = [without_new_types(each) for each in choices if each is not type(None)]
        if not all(isinstance(each, type) and issubclass(each, str) for each in kinds):
            raise DomainRefused(
                f"command {described(self.cls)} has its aggregate's id in field {self.id_field!r}, which is declared as "
                f'{shown(hint)}; ids are text: declare it as str, or name another field with @command(id="…")',
                name=described(self.cls),
                field=self.id_field,
            )

    def aggregate_id(self, command: C) -> str:
        """The id of the aggregate that the command is for.

        Raises:
            InvalidArgument: it is empty, too long, or no text.
        """
        value = self._id_of(command)
        try:
            return check_text("aggregate_id", value)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"command {self.name!r}: field {self.id_field} is the aggregate's id, and {error.message}", **error.fields
            ) from None

    def encode(self, command: C) -> RawCommand:
        """What is sent.

        Raises:
            InvalidArgument: it has no aggregate id.
            PayloadInvalid: a field holds what its type does not say.
        """
        return RawCommand(self.name, self.aggregate_id(command), self.codec.encode(command))

    def decode(self, payload: bytes, aggregate_id: str) -> C:
        """The command.

        Raises:
            PayloadInvalid: the payload does not fit the class.
            InvalidArgument: it has no aggregate id, or is for another aggregate than it was sent to.
        """
        command = self.codec.decode(payload)
        if self._id_of(command) != aggregate_id or not aggregate_id:
            meant = self.aggregate_id(command)
            raise InvalidArgument(
                f"command {self.name!r} was sent to aggregate {shown(aggregate_id)}, but its field {self.id_field} "
                f"is {shown(meant)}",
                field="aggregate_id",
                value=shown(aggregate_id),
            )
        return command


def command(name: str | None = None, *, id: str | None = None) -> Callable[[type[C]], type[C]]:  # the aggregate's own word
    """Gives a frozen dataclass the name under which it is sent (default: its own); `id` is the field with the id of the
    aggregate (default: the first).

    Raises:
        DomainRefused: it is no frozen dataclass, or has no such field of text.
    """

    def register(cls: type[C]) -> type[C]:
        check_dataclass(cls)
        if _ATTRIBUTE in cls.__dict__:
            raise DomainRefused(f"{described(cls)} has its name already; put @command above it, and once", name=described(cls))
        setattr(cls, _ATTRIBUTE, _made(cls, cls.__name__ if name is None else name, id))
        return cls

    if isinstance(name, type):
        raise DomainRefused(f"@command above {name.__name__} needs brackets: @command()", name=name.__name__)
    return register


def command_type(cls: type[C], id: str | None = None) -> CommandType[C]:  # the aggregate's own word
    """The command type of a class; `id` settles the field of the aggregate's id where nothing has yet."""
    known = cls.__dict__.get(_ATTRIBUTE) if isinstance(cls, type) else None
    if known is None:
        check_dataclass(cls)
        known = _made(cls, cls.__name__, id)
        setattr(cls, _ATTRIBUTE, known)
    if id is not None and known.id_field != id:
        raise DomainRefused(
            f"{described(cls)} has its aggregate's id in field {known.id_field!r} by now, not in {id!r}; "
            f'say @command(id="{id}") above the class',
            name=described(cls),
        )
    return cast("CommandType[C]", known)


def encode_command(command: object) -> RawCommand:
    """The command as it travels.

    Raises:
        DomainRefused: it is no instance of a frozen dataclass.
        InvalidArgument: it has no aggregate id.
        PayloadInvalid: a field holds what its type does not say.
    """
    return command_type(type(command)).encode(command)


def _made(cls: type[C], name: str, id_field: str | None) -> CommandType[C]:
    try:
        check_text("name", name, 1, TYPE_BYTES_MAX)
    except EventStoreError as error:
        raise DomainRefused(f"@command above {described(cls)}: {error.message}", **error.fields) from None
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type] # checked by the caller
    if not names or (id_field is not None and id_field not in names):
        raise DomainRefused(
            f"command {described(cls)} needs a field {id_field!r} for its aggregate's id"
            if id_field is not None
            else f"command {described(cls)} has no field; its first one is its aggregate's id",
            name=described(cls),
        )
    return CommandType(cls, name, id_field or names[0])


encode_with(encode_command)
