"""A projection for the tests: what the events of `made.commits` add up to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.domain.projections.projection import Projection, Row
from eventstore.model import Event

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Balances(Projection[dict[str, Any]]):
    """Per aggregate: events, the sum of amounts, versions seen in order, the time of the last event."""

    name = "balances"
    columns: ClassVar = {"events": int, "amount": int, "in_order": bool, "last": datetime, "raw": bytes}

    def initial(self) -> dict[str, Any]:
        return {"events": 0, "amount": 0, "in_order": True, "version": 0, "last": 0}

    def apply(self, state: dict[str, Any], event: Event) -> dict[str, Any] | None:
        if event.type == "Closed":
            return None
        data: Any = event.json() if event.is_json else {}
        amount = data.get("amount", 0)
        return {
            "events": state["events"] + 1,
            "amount": state["amount"] + amount,
            "in_order": state["in_order"] and event.version == state["version"] + 1,
            "version": event.version,
            "last": event.timestamp,
        }

    def row(self, key: str, state: dict[str, Any]) -> Row:
        last = EPOCH + timedelta(microseconds=state["last"])
        columns: Row = {name: state[name] for name in ("events", "amount", "in_order")}
        return {**columns, "last": last, "raw": key.encode()}


class OtherBalances(Balances):
    """Adds other amounts for some aggregates, and leaves one out."""

    def row(self, key: str, state: dict[str, Any]) -> Row:
        row = super().row(key, state)
        return {**row, "amount": state["amount"] + 1} if key.endswith("1") else row

    def apply(self, state: dict[str, Any], event: Event) -> dict[str, Any] | None:
        return None if event.aggregate_id == "acc-002" else super().apply(state, event)


class ByType(Projection[int]):
    """Another key than the aggregate's id: how many events of each type."""

    name = "by_type"
    columns: ClassVar = {"events": int}

    def key(self, event: Event) -> str:
        return event.type

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: Event) -> int:
        return state + 1

    def row(self, key: str, state: int) -> Row:
        return {"events": state}


class TwiceByType(ByType):
    def row(self, key: str, state: int) -> Row:
        return {"events": 2 * state}


class Raises(ByType):
    """Cannot stand one of the events."""

    name = "raises"

    def apply(self, state: int, event: Event) -> int:
        if (event.aggregate_id, event.version) == ("acc-003", 5):
            raise ValueError("not this one")
        return state + 1


class RaisesByAggregate(Balances):
    """The same, by aggregate."""

    name = "raises_by_aggregate"

    def apply(self, state: dict[str, Any], event: Event) -> dict[str, Any] | None:
        if (event.aggregate_id, event.version) == ("acc-003", 5):
            raise ValueError("not this one")
        return super().apply(state, event)


class Precise(Projection[int]):
    """Decimals with precision and scale, and a float that is a whole number."""

    name = "precise"
    columns: ClassVar = {"fine": DecimalColumn(30, 20), "whole": DecimalColumn(38, 0), "ratio": float}

    def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + 1

    def row(self, key: str, state: int) -> Row:
        return {"fine": Decimal(state) / 8, "whole": Decimal("1E+37") + state, "ratio": state}


class TooFine(Precise):
    """A value that decimal(38,18), the type of a column without precision and scale, would round."""

    name = "too_fine"
    columns: ClassVar = {"fine": Decimal}

    def row(self, key: str, state: int) -> Row:
        return {"fine": Decimal("1E-19")}


@dataclass(frozen=True)
class Total:
    sum: float


class Totals(Projection[Total]):
    """A state that is read back in another form: `apply` returns a whole number where a float is declared."""

    name = "totals"
    columns: ClassVar = {"text": str}

    def initial(self) -> Total:
        return Total(0)

    def apply(self, state: Total, event: Event) -> Total:
        return Total(int(state.sum) + event.version)

    def row(self, key: str, state: Total) -> Row:
        return {"text": repr(state.sum)}
