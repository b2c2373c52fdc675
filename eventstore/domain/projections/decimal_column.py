"""`DecimalColumn`: a column of Decimals with a precision and scale, which every target and Spark keep in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Final

from eventstore.errors import DomainRefused, InvalidArgument
from eventstore.fields import check_int

PRECISION_MAX: Final = 38
"""Digits of a decimal in Spark and Parquet."""


@dataclass(frozen=True, slots=True)
class DecimalColumn:
    """The type of a column: Decimals of at most `precision` digits (1 to 38), of which `scale` (0 to `precision`) are behind
    the point. Rows have just so many there, live and rebuilt.

    Raises:
        DomainRefused: one of the two is out of range.
    """

    precision: int
    scale: int

    def __post_init__(self) -> None:
        try:
            check_int("precision", self.precision, 1, PRECISION_MAX)
            check_int("scale", self.scale, 0, self.precision)
        except InvalidArgument as error:
            raise DomainRefused(f"{self}: {error.message}", **error.fields) from None

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def stored(self, value: Decimal) -> Decimal:
        """Returns the value with as many digits behind the point as the column has. Raises ValueError: it does not fit."""
        try:
            made = value.quantize(Decimal(1).scaleb(-self.scale), context=Context(prec=self.precision))
        except InvalidOperation:  # too many digits before the point; NaN that signals
            made = None
        if made is None or made != value:  # NaN, or it was rounded
            raise ValueError(f"does not fit {self}: it would be rounded, or has too many digits")
        return made
