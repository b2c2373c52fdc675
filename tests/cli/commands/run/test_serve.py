from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.errors import InvalidArgument
from eventstore.settings.sources import load_settings, misspelled_variables
from tests.cli.processes import DEADLINE_SECONDS, Server, output, refused, run, start

Serve = Callable[..., Server]


def test_a_server_stops_on_sigterm_and_continues_after_a_restart(serve: Serve) -> None:
    server = serve()
    output("append", "a", "--type", "T", "--data", "1", store=server.store)
    assert server.stop() == 0
    assert server.said("stopped") is not None
    again = serve(data=server.data)
    assert again.opened["events"] == 1
    assert again.stop(signal.SIGINT) == 0


def test_stats_wait_until_a_server_is_up(serve: Serve) -> None:
    first = serve()
    listen = first.store.removeprefix("tcp://")
    assert first.stop() == 0
    waiting = start("stats", "--wait", DEADLINE_SECONDS, "--json", "--store", first.store, stdout=subprocess.PIPE)
    serve("--listen", listen, data=first.data)
    shown, _ = waiting.communicate(timeout=DEADLINE_SECONDS)
    assert waiting.returncode == 0
    assert json.loads(shown)["durability"] == "sync"


def test_stats_report_that_the_server_did_not_come_up() -> None:
    assert "is the server running?" in refused("stats", "--wait", "0.2", store="tcp://127.0.0.1:1")


def test_metrics_and_health_are_served(serve: Serve) -> None:
    server = serve("--http", "127.0.0.1:0")
    with urllib.request.urlopen(f"http://{server.opened['http']}/health", timeout=10) as answer:
        assert json.load(answer)["healthy"] is True
    with urllib.request.urlopen(f"http://{server.opened['http']}/metrics", timeout=10) as answer:
        assert "eventstore_events_total" in answer.read().decode()


def test_settings_come_from_options_before_the_file(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('durability = "async"\nfile_size_bytes = 1000000\nflush_interval_s = 0.05\n')
    server = serve("--config", str(config), "--durability", "sync", "--set", "preload-aggregates=7")
    assert server.stats()["durability"] == "sync"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--durability", "never"], "durability is 'never', allowed are 'sync' or 'async'"),
        (["--file-size-bytes", "12"], "file_size_bytes is 12, allowed are 4,096 to 4,294,967,295"),
        (["--file-size-bytes", "12x"], "'--file-size-bytes': it must be a whole number"),
        (["--set", "page-bytes=12x"], "page_bytes is '12x', expected a whole number"),
        (["--set", "flush_interval_s=soon"], "flush_interval_s is 'soon', expected a number"),
        (["--set", "sort=perhaps"], "sort is 'perhaps', expected true or false"),
        (["--set", "mailboxes=0"], "mailboxes is 0, allowed are 1 to 4,096"),
        (["--listen", "nowhere"], "listen is 'nowhere'"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--set", "colour=blue"], "there is no setting colour; `eventstore serve --help`"),
        (["--set", "conections_max=3"], "there is no setting conections_max; did you mean connections_max?"),
        (["--set", "colour"], "NAME=VALUE"),
        (["--config", "missing.toml"], "missing.toml"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, options: list[str], words: str) -> None:
    assert words in refused("serve", "--data", tmp_path / "data", *options, code=2)
    assert not (tmp_path / "data").exists()


def test_a_misspelled_environment_variable_is_found_and_a_foreign_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DURABLITY", "DATA", "STORE", "PORT", "HOST", "HTTP_PORT", "SERVICE_HOST", "PORT_7701_TCP_ADDR"):
        monkeypatch.setenv(f"EVENTSTORE_{name}", "x")
    assert misspelled_variables() == {"EVENTSTORE_DURABLITY": "EVENTSTORE_DURABILITY"}


def test_a_broken_settings_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('durability = "sync"\nhttp = ')
    said = refused("serve", "--data", tmp_path / "data", "--config", config, code=2)
    assert f"{config} cannot be read: it is not TOML: Invalid value (at " in said
    config.write_bytes(b'data = "\xff"')
    assert "is not TOML" in refused("serve", "--data", tmp_path / "data", "--config", config, code=2)
    config.write_text("no settings\n")
    with pytest.raises(InvalidArgument, match="line 1") as caught:
        load_settings(config)
    assert caught.value.fields == {"field": "config", "value": str(config)}


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("something else")
    assert "is a file, not a folder" in refused("serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0")


def test_a_damaged_folder_is_refused_with_the_next_step(folder: Path) -> None:
    last = max((folder / "events").glob("*.events"))
    raw = bytearray(last.read_bytes())
    raw[4_100] ^= 1
    last.write_bytes(raw)
    said = refused("serve", "--data", folder, "--listen", "127.0.0.1:0")
    assert f"{last}: corrupt at byte offset 4096" in said
    assert said.endswith("; `eventstore verify` lists all damage, docs/OPERATIONS.md says what to do about it")


def test_a_data_folder_in_use_is_refused(serve: Serve) -> None:
    server = serve()
    message = refused("serve", "--data", server.data, "--listen", "127.0.0.1:0")
    assert f"in use by process {server.process.pid}" in message


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_an_address_in_use_is_refused_before_there_is_a_folder(serve: Serve, tmp_path: Path, option: str) -> None:
    listen = serve().store.removeprefix("tcp://")
    said = refused("serve", "--data", tmp_path / "other", "--listen", "127.0.0.1:0", option, listen)
    why = "cannot listen there (Address already in use)"
    assert said == f"{listen}: {why}; choose another address, or stop the process that listens there"
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("wrong", [("--listen", "nowhere"), ("--http", "nowhere"), ("--domain", "no.where:app")])
def test_a_start_that_fails_leaves_no_folder(tmp_path: Path, wrong: tuple[str, str]) -> None:
    assert run("serve", "--data", tmp_path / "data", *wrong).returncode
    assert not (tmp_path / "data").exists()


def test_the_log_names_the_domain(bank: Server, shared: Server) -> None:
    assert (bank.opened["domain"], shared.opened["domain"]) == ("bank:app", None)
