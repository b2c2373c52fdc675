"""What importing the domain costs: no event loop, no driver, no store."""

from __future__ import annotations

import subprocess
import sys

import pytest

import eventstore.domain as d

HEAVY = {"trio", "anyio", "numpy", "lmdb", "sqlite3", "psycopg", "pydantic", "typer"}


def test_importing_the_domain_loads_nothing_heavy() -> None:
    program = f"import sys, eventstore.domain as d; d.Projection, d.Domain; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", d.__all__)
def test_every_public_name_is_there(name: str) -> None:
    if name == "PostgresTarget":
        pytest.importorskip("psycopg")
    assert getattr(d, name) is not None


def test_any_other_name_is_not() -> None:
    with pytest.raises(AttributeError):
        d.absent  # noqa: B018 # the attribute is the test
