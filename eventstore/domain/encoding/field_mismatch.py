"""`FieldMismatch`: a value does not match the declared type of its field."""

from __future__ import annotations

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


def expected(what: str, value: object) -> FieldMismatch:
    return FieldMismatch(f"is {shown(value)}, expected {what}")
