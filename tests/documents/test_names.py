"""Names in back-ticks exist: `.ci/check_names.py` finds those that do not. The name of a public type exists once."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
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


def public_types(text: str) -> Iterator[str]:
    """Yields the names of the classes and type aliases of a module that do not begin with an underscore."""
    for node in ast.parse(text).body:
        name = ""
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            name = ast.unparse(node.target)
        if name and not name.startswith("_"):
            yield name


def test_the_name_of_a_public_type_exists_once() -> None:
    found = defaultdict(list)
    for folder in ("eventstore", "mailbox", "cluster", "spark_jobs"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in public_types(path.read_text(encoding="utf-8")):
                found[name].append(str(path.relative_to(ROOT)))
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_public_types_are_classes_and_aliases_at_the_top_of_a_module() -> None:
    text = "class A:\n    class B: ...\nclass _C: ...\nD: TypeAlias = int\ne: int = 1\n"
    assert list(public_types(text)) == ["A", "D"]
