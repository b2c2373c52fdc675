"""A value that does not fit the type its field is declared with, and where it sits."""

from __future__ import annotations

from eventstore.fields import shown


class Misfit(Exception):
    """`path` leads to the value: names of fields, places in lists, keys. Becomes a PayloadInvalid with the class's name."""

    def __init__(self, why: str, *path: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = path

    def within(self, place: str) -> Misfit:
        """The same, seen from one level further out."""
        return Misfit(self.why, place, *self.path)

    @property
    def field(self) -> str:
        """As in `lines[2].cents`; empty for the payload as a whole."""
        return "".join(step if step.startswith("[") else f".{step}" for step in self.path).removeprefix(".")


def expected(what: str, value: object) -> Misfit:
    return Misfit(f"is {shown(value)}, expected {what}")
