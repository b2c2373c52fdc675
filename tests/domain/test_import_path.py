"""Loading a domain or projection from `module:attribute`, and the errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bank
import eventstore as es
import eventstore.domain as d
from tests.examples import EXAMPLES


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Removes modules and paths after each test."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_domain_is_found() -> None:
    assert d.load("bank:app", EXAMPLES) is bank.app


def test_a_folder_of_that_name_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with pytest.raises(es.DomainRefused, match=r"module 'shop' is the folder .*/shop, .*; start in the folder of shop.py"):
        d.load("shop:app", tmp_path)


def test_a_projection_is_found_as_a_class() -> None:
    assert isinstance(d.load_projection("bank:Balances", EXAMPLES), bank.Balances)


def test_the_current_folder_is_the_default_and_neighbours_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_parts.py").write_text("import eventstore.domain as d\napp = d.Domain()\n")
    (tmp_path / "shop.py").write_text("import shop_parts\nclass inner:\n    app = shop_parts.app\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(d.load("shop:inner.app"), d.Domain)


@pytest.mark.parametrize(
    ("source", "place", "why"),
    [
        ("", "absent_module:app", "module 'absent_module' was not found in .*; start in the folder of absent_module.py"),
        ("", "faulty", "not of the form module:attribute; use faulty:app$"),
        ("", "faulty.py", "not of the form module:attribute; use faulty:app$"),
        ("", "faulty.py:shop", "module 'faulty.py' was not found in .*; use faulty:shop$"),
        ("", "parts/faulty.py:shop", "not of the form module:attribute; use faulty:shop, in the folder parts$"),
        ("", "faulty:", "not of the form"),
        ("", "../faulty:app", "not of the form"),
        ("", "faulty:app", "has no attribute 'app'; the module has no domain$"),
        ("import eventstore.domain as d\nshop = d.Domain()", "faulty:app", "has no attribute 'app'; the module has shop$"),
        ("app = 7", "faulty:app", "is a value of type 'int', not an eventstore.domain.Domain; the module has no domain"),
        ("import json as app", "faulty:app", "is the module 'json', not an eventstore.domain.Domain; the module has no domain"),
        ("class app: pass", "faulty:app", "is the class 'app', not an eventstore.domain.Domain"),
        ("import absent_too", "faulty:app", "module 'faulty' imports 'absent_too', which was not found"),
        ("x = 1\nraise ValueError('no such luck')", "faulty:app", r"raised ValueError: no such luck \(.*faulty.py:2\)"),
        ("def", "faulty:app", "raised SyntaxError"),
        ("raise SystemExit(3)", "faulty:app", "raised SystemExit: 3"),
        ("import eventstore.domain as d\nd.event('X')(int)", "faulty:app", "module 'faulty': .* is not a dataclass"),
        (
            "import eventstore.domain as d\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass E:\n"
            "  x: set[int]\napp = d.Domain()\n@app.reacts(E)\nasync def react(event, send): ...",
            "faulty:app",
            "field x of faulty.E has type",
        ),
    ],
)
def test_a_place_that_cannot_be_loaded_is_reported(source: str, place: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(source)
    with pytest.raises(es.DomainRefused, match=why):
        d.load(place, tmp_path)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("bank:app", "is a value of type 'Domain', not an eventstore.domain.Projection"),
        ("bank:Account", "is the class 'Account', not an eventstore.domain.Projection"),
        ("bank:Nothing", "has no attribute 'Nothing'; the module has Balances$"),
        ("absent_module:Balances", "module 'absent_module' was not found in"),
        ("bank", "is not of the form module:attribute; use bank:Balances$"),
    ],
)
def test_anything_but_a_projection_is_refused(place: str, why: str) -> None:
    with pytest.raises(es.DomainRefused, match=f"^projection '{place}'.*{why}"):
        d.load_projection(place, EXAMPLES)


def test_the_errors_name_module_and_attribute(tmp_path: Path) -> None:
    with pytest.raises(es.DomainRefused) as caught:
        d.load("absent_module:app", tmp_path)
    assert caught.value.fields == {"module": "absent_module", "attribute": "app"}
