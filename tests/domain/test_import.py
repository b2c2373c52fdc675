"""Importing the domain loads no event loop, no driver and no store, and shows every public name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import eventstore.domain as d
from eventstore.extras import advice

HEAVY = {"trio", "anyio", "numpy", "lmdb", "sqlite3", "psycopg", "pydantic", "typer"}


def test_importing_the_domain_loads_nothing_heavy() -> None:
    program = f"import sys, eventstore.domain as d; d.Projection, d.Domain; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", d.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(d, name) is not None


def test_all_names_are_imported_without_psycopg_and_only_its_target_needs_it() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from eventstore.domain import *\n"
        "from eventstore.errors import DomainRefused\n"
        "assert project and SQLiteTarget\n"
        "try: target_at('postgresql://db')\n"
        "except DomainRefused as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert advice("postgres") in done.stdout


def test_completion_shows_the_public_names() -> None:
    assert dir(d) == sorted(d.__all__)


def test_any_other_name_is_refused() -> None:
    with pytest.raises(AttributeError):
        d.absent  # noqa: B018 # the attribute is the test
