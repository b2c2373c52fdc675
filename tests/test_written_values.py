"""What people write for a setting or an option is read as a value of its type, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.settings.written_values import read_written


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (int, "12", 12),
        (int, " -1 ", -1),
        (int, 3.0, 3),
        (float, "0.5", 0.5),
        (float, "inf", float("inf")),
        (float, 2, 2.0),
        (bool, "Yes", True),
        (bool, "off", False),
        (bool, True, True),
        (bool, 0, False),
        (str, "", ""),
        (Path, "a/b", Path("a/b")),
        (Path, Path("a"), Path("a")),
    ],
)
def test_a_written_value_is_read_as_one_of_its_type(kind: type, written: object, value: object) -> None:
    found = read_written(kind, written)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (int, "12x", "a whole number"),
        (int, "1.5", "a whole number"),
        (int, 1.5, "a whole number"),
        (int, float("inf"), "a whole number"),
        (int, True, "a whole number"),
        (int, "1" * 5_000, "a whole number"),
        (int, {"store": 1}, "a whole number"),
        (float, "soon", "a number"),
        (float, False, "a number"),
        (bool, "perhaps", "true or false"),
        (bool, 2, "true or false"),
        (str, 7701, "text"),
        (Path, 5, "a path"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_expected(kind: type, written: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}$"):
        read_written(kind, written)
