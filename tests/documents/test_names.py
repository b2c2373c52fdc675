"""Names in back-ticks exist: `.ci/check_names.py` finds those that do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / ".ci"))
import check_names  # noqa: E402 # a program, not a package


@pytest.fixture(scope="module")
def known() -> check_names.Known:
    """A tree of one module with one class."""
    known = check_names.Known(files={"tests", "tests/dogs.py"}, members={"Dog": {"bark"}, "Puppy": {"play"}})
    known.bases |= {"Dog": set(), "Puppy": {"Dog"}}
    known.words |= {"Dog", "bark", "Puppy", "play", "feed_at", "dogs", "tests"}
    return known


@pytest.mark.parametrize(
    "text", ["Dog", "bark()", "--feed-at 7", "feed_", "Dog.bark", "Puppy.bark", "tests/dogs.py", "dogs.py", "dogs DATA NUMBER"]
)
def test_a_name_that_exists_is_accepted(text: str, known: check_names.Known) -> None:
    assert check_names.missing(text, known, set()) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Cat", "no Cat"), ("meow()", "no meow"), ("--feed-never", "no option --feed-never"), ("food_", "no food_"),
        ("Dog.play", "Dog has no play"), ("tests/cats.py", "no such file"), ("tests.cats", "no tests.cats"),
        ("HISS", "no HISS"),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_found(text: str, why: str, known: check_names.Known) -> None:
    assert check_names.missing(text, known, set()) == why


def test_a_name_that_a_page_defines_is_known_on_it(known: check_names.Known) -> None:
    assert check_names.missing("Cat", known, {"Cat"}) is None
