"""The rules of replication, R1 to R15: each is in the table of ADR 14, at a line of code, and left out by a mistake."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.simulation.mistakes import MISTAKES

_ROOT = Path(__file__).parents[3]
_PAGE = _ROOT / "docs" / "adr" / "0014-replicas-that-fetch.md"
_RULES = [f"R{number}" for number in range(1, 16)]


def test_each_rule_is_in_the_table_and_named_where_it_is_kept_and_left_out_by_a_mistake() -> None:
    assert re.findall(r"^\| (R\d+) ", _PAGE.read_text(), re.MULTILINE) == _RULES
    named: set[str] = set()
    for package in ("cluster/eventstore_cluster", "eventstore"):
        for module in (_ROOT / package).rglob("*.py"):
            if module.name != "__init__.py":
                named.update(re.findall(r"\bR\d+\b", module.read_text()))
    assert named == set(_RULES)
    assert {mistake.rule for mistake in MISTAKES if re.fullmatch(r"R\d+", mistake.rule)} == set(_RULES)
