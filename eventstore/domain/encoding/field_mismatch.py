"""`FieldMismatch`: a value does not match the declared type of its field."""

from __future__ import annotations

from typing import Final

from eventstore.fields import shown


class FieldMismatch(Exception):
    """`path` leads to the value: field names, list indexes, keys. The codec turns it into PayloadInvalid."""

    def __init__(self, why: str, *path: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = path

    def within(self, step: str) -> FieldMismatch:
        """Returns the mismatch with `step` at the front of its path."""
        return FieldMismatch(self.why, step, *self.path)

    @property
    def field(self) -> str:
        """The path as text, as in `lines[2].cents`; empty for the whole payload."""
        return "".join(step if step.startswith("[") else f".{step}" for step in self.path).removeprefix(".")


_SHOWN_AS_BASE: Final = (str, int, float, bytes, list, tuple, dict)


def expected(what: str, value: object) -> FieldMismatch:
    kind, shows = type(value), f"is {shown(value)}"
    if isinstance(value, _SHOWN_AS_BASE) and kind not in (*_SHOWN_AS_BASE, bool):
        shows += f" of type {kind.__module__}.{kind.__qualname__}"
    return FieldMismatch(f"{shows}, expected {what}")
