from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import declared_settings
from tests.cli.processes import output, refused


def test_every_setting_is_listed_with_value_range_unit_and_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "server.toml"
    config.write_text("requests_max = 7\nconnections_max = 8\nmailboxes = 9\n")
    monkeypatch.setattr("tests.cli.processes.environment", lambda: {"EVENTSTORE_CONNECTIONS_MAX": "80"})
    shown = json.loads(output("settings", "--json", "--config", config, "--mailboxes", 90, "--set", "sort=false"))
    assert {each["name"] for each in shown} == set(declared_settings(ServerSettings))
    found = {each["name"]: each for each in shown}
    assert {name: (found[name]["value"], found[name]["origin"]) for name in found if found[name]["origin"] != "default"} == {
        "requests_max": (7, "file"),
        "connections_max": (80, "environment"),
        "mailboxes": (90, "command line"),
        "sort": (False, "command line"),
    }
    assert found["mailboxes"] | {"meaning": ""} == {
        "name": "mailboxes", "value": 90, "default": 4, "origin": "command line", "group": "Mailboxes", "type": "whole number",
        "range": "1 to 4,096", "unit": "mailboxes", "flag": "--mailboxes", "variable": "EVENTSTORE_MAILBOXES", "meaning": "",
    }  # fmt: skip


def test_the_table_for_people_names_every_setting() -> None:
    text = output("settings", "--mailboxes", 7)
    assert all(f" {name} " in text for name in declared_settings(ServerSettings))
    assert "command line" in text


def test_a_wrong_setting_is_refused_as_by_serve() -> None:
    assert refused("settings", "--mailboxes", 0, code=2) == "mailboxes is 0, allowed are 1 to 4,096"
    assert refused("settings", "--broker-retry-delays-s", "1,x", code=2).startswith("broker_retry_delays_s is '1,x', expected")


def test_an_option_comes_before_set() -> None:
    shown = json.loads(output("settings", "--json", "--set", "mailboxes=3", "--mailboxes", 7))
    assert next(each["value"] for each in shown if each["name"] == "mailboxes") == 7
