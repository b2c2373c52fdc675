"""`eventstore certificate`, as it is run."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import eventstore as es
from eventstore.security.tls import client_context
from tests.cli.processes import output, refused
from tests.server_thread import ServerThread

pytest.importorskip("cryptography")


def test_with_what_it_writes_a_server_and_a_client_know_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    said = output("certificate", "localhost", "127.0.0.1", "--to", folder)
    assert said.splitlines() == [f"{folder / name} written" for name in ("ca.pem", "ca.key", "localhost.pem", "localhost.key")]
    said = output("certificate", "billing", "--to", folder, "--days", 1)
    assert said.splitlines() == [f"{folder / name} written" for name in ("billing.pem", "billing.key")]  # the CA stays
    assert {path.name for path in folder.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o077} == {
        "ca.pem", "localhost.pem", "billing.pem",
    }  # fmt: skip
    ca, own, key = (str(folder / name) for name in ("ca.pem", "localhost.pem", "localhost.key"))
    context = client_context(ca, str(folder / "billing.pem"), str(folder / "billing.key"))
    settings = {"tls_certificate": own, "tls_key": key, "tls_ca": ca, "tls_clients": "required"}
    with (
        ServerThread(tmp_path / "data", **settings) as server,
        es.blocking.connect(server.address, ssl_context=context) as store,
    ):
        assert store.version("a") == 0


def test_it_replaces_nothing_and_takes_no_name_that_is_none(tmp_path: Path) -> None:
    output("certificate", "localhost", "--to", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    told = refused("certificate", "localhost", "--to", tmp_path, code=2)
    assert told == f"{tmp_path / 'localhost.pem'} exists; delete it first, or choose another folder"
    for name in ("../other", "a b", "ca", "..", "büro"):
        assert "is neither a host name, an address nor a short name" in refused("certificate", name, "--to", tmp_path, code=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_ca_that_was_written_in_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.key").touch()
    told = refused("certificate", "localhost", "--to", tmp_path, code=2)
    assert told.startswith(f"{tmp_path / 'ca.key'} is there without {tmp_path / 'ca.pem'}; ")
