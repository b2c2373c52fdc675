"""Which changes of code make snapshots of a class outdated, and which do not. Each variant is a module of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from eventstore.domain.encoding.upcasting import _steps
from eventstore.domain.snapshots.code_fingerprint import aggregate_fingerprint, class_fingerprint

SOURCE = """
from dataclasses import dataclass
from decimal import Decimal
import eventstore.domain as d
import helper

RATE = Decimal("1.1")
TABLE = {"a": [1, 2]}


@dataclass(frozen=True)
class Price:
    cents: int


def rounded(value):
    return int(value * RATE)


@dataclass(frozen=True)
class Added:
    cents: int
    name: str = ""


@d.event("Removed", version=2)
@dataclass(frozen=True)
class Removed:
    cents: int


@d.upcast("Removed", version=1)
def removed(fields):
    return {"cents": fields["euros"] * 100}


class Base(d.Aggregate):
    limit = 5


class Cart(Base):
    total = 0

    @d.applies(Added)
    def _(self, event: Added) -> None:
        self.total += rounded(event.cents) + len(TABLE) + helper.fee(1)

    @d.applies(Removed)
    def _(self, event: Removed) -> None:
        self.total -= sum(Price(part).cents for part in (event.cents, self.limit))


@dataclass(frozen=True)
class Add:
    cart: str


app = d.Domain()


@app.handles(Add)
def add(command: Add, cart: Cart) -> None:
    cart.apply(Added(1))
"""
HELPER = "def fee(value):\n    return value + 1\n\ndef unused():\n    return 1\n"


def fingerprint(source: str, helper: str = HELPER) -> str:
    """Returns the fingerprint of the class in these modules, which nothing else sees."""
    kept = sys.modules.get("helper"), dict(_steps)
    sys.modules["helper"] = module("helper", helper)
    try:
        return aggregate_fingerprint(module("shop", source).Cart)
    finally:
        del sys.modules["helper"], sys.modules["shop"]
        _steps.clear()
        _steps.update(kept[1])


def module(name: str, source: str) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(made))
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("+= rounded", "-= rounded"),
        ('Decimal("1.1")', 'Decimal("1.2")'),
        ("value * RATE", "value / RATE"),
        ("[1, 2]", "[1, 3]"),
        ("limit = 5", "limit = 6"),
        ("total = 0", "total = 1"),
        ('["euros"] * 100', '["euros"] * 10'),
        ('name: str = ""', 'name: str = "x"'),
        ('name: str = ""', 'name: str = ""\n    more: int = 0'),
        ("class Price:\n    cents: int", "class Price:\n    cents: int\n    def __post_init__(self): pass"),
        ("def _(self, event: Removed)", "def removed(self, event: Removed)"),
        ("class Cart(Base)", "class Cart(d.Aggregate)"),
        ("helper.fee(1)", "helper.unused()"),
    ],
)
def test_what_the_state_is_made_by_counts(before: str, after: str) -> None:
    assert before in SOURCE
    changed = SOURCE.replace(before, after)
    if "d.Aggregate" in after:
        changed = changed.replace("class Cart(d.Aggregate):", "class Cart(d.Aggregate):\n    limit = 5")
    assert fingerprint(changed) != fingerprint(SOURCE)


def test_a_function_of_another_module_counts_if_it_is_used() -> None:
    assert fingerprint(SOURCE, HELPER.replace("value + 1", "value + 2")) != fingerprint(SOURCE)
    assert fingerprint(SOURCE, HELPER.replace("return 1\n", "return 2\n")) == fingerprint(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("RATE = Decimal", "# a comment\n\n\nRATE = Decimal"),
        ("    cart.apply(Added(1))", "    cart.apply(Added(2))"),
        ("app = d.Domain()", "def unused(): return 5\n\napp = d.Domain()"),
    ],
)
def test_comments_handlers_and_what_nothing_refers_to_do_not_count(before: str, after: str) -> None:
    assert before in SOURCE
    assert fingerprint(SOURCE.replace(before, after)) == fingerprint(SOURCE)


def test_it_is_the_same_in_each_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SOURCE.replace('TABLE = {"a": [1, 2]}', 'TABLE = frozenset({"a", "b", "c", (1, "d")})'))
    (tmp_path / "helper.py").write_text(HELPER + "\nNAMES = {'x', 'y', 'z'}\n")
    program = textwrap.dedent("""
        import shop
        from eventstore.domain.snapshots.code_fingerprint import aggregate_fingerprint
        print(aggregate_fingerprint(shop.Cart))
    """)
    found = set()
    for seed in "123":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)}
        found.add(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout)
    assert len(found) == 1


def test_a_graph_of_code_that_leads_back_to_itself_has_a_fingerprint() -> None:
    made = module("circle", "def one(): return two()\n\ndef two(): return one()\n\nclass Turning:\n    go = one\n")
    del sys.modules["circle"]
    assert class_fingerprint(made.Turning) == class_fingerprint(made.Turning)
