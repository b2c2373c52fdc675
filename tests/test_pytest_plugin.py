"""The plugin for pytest: what its fixtures do in a project that uses it, each in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = "eventstore.pytest_plugin"
DOMAIN = """
[tool.pytest.ini_options]
eventstore_domain = "bank:app"
eventstore_env = "BANK_STORE"
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, *options, "."]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTSTORE_", "PYTEST_"))}
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=200, check=False)


def test_pytest_finds_it_where_the_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_it_imports_nothing_until_a_fixture_is_used() -> None:
    program = f"import sys, {PLUGIN}; print({{'trio', 'anyio', 'numpy', 'lmdb', 'eventstore.blocking'}} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_a_domain_its_projection_and_a_client_at_the_top_of_a_module(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "bank.py").write_text((ROOT / "docs/examples/bank.py").read_text())
    (tmp_path / "pyproject.toml").write_text(DOMAIN)
    (tmp_path / "accounts.py").write_text(
        "import os\nimport eventstore as es\nstore = es.blocking.connect(os.environ['BANK_STORE'])\n"
    )
    (tmp_path / "test_accounts.py").write_text("""
from accounts import store
from bank import Balances, Deposit, Open


def test_a_deposit_is_in_the_table(eventstore_client, eventstore_projector):
    eventstore_client.send(Open("acc-1", "Ada"))
    store.send(Deposit("acc-1", 50))
    assert eventstore_projector(Balances()).rows()["acc-1"]["cents"] == 50


def test_all_share_one_server(eventstore_server, eventually):
    store.send(Open("acc-2", "Bob"))
    assert eventually(lambda: eventstore_server.store.version("acc-2")) == 1
""")
    done = run(tmp_path, *options)
    assert "2 passed" in done.stdout, done.stdout


def test_a_server_that_cannot_start_fails_the_test_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(eventstore_serve):\n    eventstore_serve(domain='nowhere:app')\n")
    done = run(tmp_path)
    assert "1 failed" in done.stdout
    assert "module 'nowhere' was not found" in done.stdout


def test_a_server_of_a_test_has_the_settings_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import eventstore as es
import pytest


def test_it(eventstore_serve):
    server = eventstore_serve(broker=False)
    with pytest.raises(es.EventStoreError):
        server.store.broker.topics()
    server.kill()
    server.start()
    assert server.store.version("a") == 0
""")
    done = run(tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_eventually_says_what_did_not_hold(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import pytest


def test_false(eventually):
    with pytest.raises(AssertionError, match="not within 0.05 s: the check returned 0"):
        eventually(lambda: 0, timeout=0.05)


def test_assertion(eventually):
    def check():
        assert False, "the reason"

    with pytest.raises(AssertionError, match="the reason"):
        eventually(check, timeout=0.05)
""")
    done = run(tmp_path)
    assert "2 passed" in done.stdout, done.stdout
