"""docs/REFERENCE.md against the program: it lists all settings, metrics and errors; and the bounds in docs/OPERATIONS.md."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore import errors
from eventstore.alarms.alarm_metrics import NODE_ALARM
from eventstore.broker.message_lookups import EXAMINED_MAX
from eventstore.console import listener, subject
from eventstore.http_api.clients import HELD_BYTES_MAX, STREAMS_EACH_MAX, STREAMS_MAX
from eventstore.protocol.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX, KIB, MIB, PAGE_BYTES_MAX
from eventstore.server.access.access_metrics import ACCESS_METRICS
from eventstore.server.access.tls_metrics import TLS_METRICS
from eventstore.server.aggregate_snapshots import SNAPSHOT_DIFFERS, SNAPSHOT_METRICS
from eventstore.server.kept_commands import KEPT_METRICS
from eventstore.server.logs import LINES_A_MINUTE
from eventstore.server.net import scheduler
from eventstore.server.net.connection import BOUND_MAX, LIGHT_MAX
from eventstore.server.projection_watch import PROJECTION_METRICS, PROJECTION_WAITING
from eventstore.server.prometheus import exported_name
from eventstore.server.work.worked_shards import WORKER_METRICS
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import DeclaredSetting, declared_settings
from eventstore.settings.sources import load_with_origins
from eventstore.store.projection_waits import WAITS_MAX
from eventstore.store.read import reader_threads
from eventstore.store.read.aggregate_lookups import CANDIDATES_MAX
from eventstore.store.sorted.index_columns import PERMUTATIONS_BYTES_MAX
from eventstore_cluster.node_alarms import NODE_FIGURES
from eventstore_cluster.node_reports import SHARD_METRICS
from eventstore_cluster.nodes.leader_changes import LEADER_CHANGES
from eventstore_cluster.replication.replica_metrics import REPLICA_LABELLED, REPLICA_METRICS
from tests.cli.processes import Server, output, refused

Serve = Callable[..., Server]
DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "REFERENCE.md").read_text()
OPERATIONS = (DOCS / "OPERATIONS.md").read_text()


def _rows(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of all tables between a heading and the next of its level."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _table(page: str, heading: str) -> dict[str, list[str]]:
    return {row[0].strip("`"): row for row in _rows(page, heading) if row[0].startswith("`")}


def test_the_table_of_settings_is_complete_and_its_defaults_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    written = _table(REFERENCE, "Settings")
    for name in written:
        monkeypatch.delenv(f"EVENTSTORE_{name.upper()}", raising=False)
    actual = load_with_origins(None)
    assert set(written) == set(actual.values)
    assert set(actual.origins.values()) == {"default"}
    for name, value in actual.values.items():
        flag, variable, default = (written[name][cell].strip("`") for cell in (1, 2, 5))
        assert flag.split("`")[0] == "--" + name.replace("_", "-")
        assert variable == "EVENTSTORE_" + name.upper()
        if isinstance(value, bool):
            assert default == str(value).lower(), name
        elif isinstance(value, int | float):
            assert _number(default) == value, name
        else:
            assert default == ("off" if value is None else str(value)), name


def test_the_table_of_bounds_has_every_setting_that_is_one_and_its_default() -> None:
    written: dict[str, str] = {}
    for cells in _rows(OPERATIONS, "Settings"):
        written |= dict(bound.strip("`").split("`, ") for bound in cells[0].split("; ") if bound.startswith("`"))
    settings = declared_settings(ServerSettings)
    assert {name: _number(default) for name, default in written.items()} == {name: settings[name].default for name in written}
    bounds = {name for name, each in settings.items() if each.setting.group == "Limits" or name.endswith("_bytes_max")}
    of_others = {"broker_retained_bytes_max", "mailbox_batch_bytes_max", "broker_warm_bytes_max"}  # disk, a batch, page cache
    assert bounds - written.keys() == of_others


def test_the_bounds_that_are_no_settings_are_those_of_the_code() -> None:
    written = [cells[0] for cells in _rows(OPERATIONS, "Settings") if not cells[0].startswith("`")]
    assert written[1:] == [
        f"{reader_threads._REPLAYS_MAX} reads, one scan",
        f"frame, {FRAME_BYTES_MAX // MIB} MiB; before HELLO, {HELLO_BYTES_MAX // KIB} KiB",
        f"page, {PAGE_BYTES_MAX // MIB} MiB",
        f"waiting, {BOUND_MAX}",
        f"waits for projections, {LIGHT_MAX:,}; {WAITS_MAX:,}",
        f"slice, {scheduler.SLICE_S * 1000:g} ms; turn, {scheduler.TURN_S * 1000:g} ms",
        f"HTTP, {subject.CONNECTIONS_MAX} connections; {listener._TAKEN_S:g} s to take {listener._SENT_BYTES // KIB} KiB",
        f"HTTP API, {HELD_BYTES_MAX // MIB} MiB; {STREAMS_MAX} streams, {STREAMS_EACH_MAX} of an identity",
        f"log, {LINES_A_MINUTE} lines a minute",
        f"hash, {CANDIDATES_MAX} commits",
        f"commit orders, {PERMUTATIONS_BYTES_MAX // MIB} MiB",
        f"look-up by key, {EXAMINED_MAX} messages",
        "of the broker",
    ]


def _number(text: str) -> float:
    """Reads `64 MiB` and `1,000` as numbers."""
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


@pytest.mark.parametrize("name", declared_settings(ServerSettings))
def test_every_setting_reaches_the_server_from_its_flag_variable_and_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = declared_settings(ServerSettings)[name]
    value = _another_value(declared)
    config = tmp_path / "server.toml"
    config.write_text(f"{name} = {json.dumps(value)}\n")
    from_file = load_with_origins(config)
    monkeypatch.setenv(declared.variable, json.dumps(value) if isinstance(value, bool) else str(value))
    from_environment = load_with_origins(None)
    from_command_line = load_with_origins(None, **{name: value})
    for loaded, origin in ((from_file, "file"), (from_environment, "environment"), (from_command_line, "command line")):
        assert loaded.origins[name] == origin
        held: object = loaded.settings
        for part in declared.path:
            held = getattr(held, part)
        assert held == declared.read(loaded.values[name]) != declared.default


def _another_value(declared: DeclaredSetting) -> bool | int | float | str:
    if declared.kind is bool:
        return not declared.default
    if declared.choices:
        return next(each for each in declared.choices if each != declared.default)
    if declared.listed:
        return "2,3"
    if declared.kind not in (int, float):
        return "127.0.0.1:7"
    setting = declared.setting
    value = setting.high if setting.high is not None else (setting.low or setting.above or 1) + 1
    assert setting.allows(value)
    return declared.kind(value)


def test_every_metric_is_explained(serve: Serve) -> None:
    server = serve("--http", "127.0.0.1:0")
    with urllib.request.urlopen(f"http://{server.opened['http']}/metrics", timeout=10) as answer:
        served = {line.split()[2] for line in answer.read().decode().splitlines() if line.startswith("# TYPE ")}
    declared: tuple[Any, ...] = (
        *PROJECTION_METRICS, PROJECTION_WAITING, *REPLICA_METRICS, *REPLICA_LABELLED, LEADER_CHANGES, *SHARD_METRICS,
        *NODE_FIGURES, NODE_ALARM, *ACCESS_METRICS, *TLS_METRICS, *WORKER_METRICS, *SNAPSHOT_METRICS, SNAPSHOT_DIFFERS,
        *KEPT_METRICS,
    )  # fmt: skip
    of_others = {
        f"{exported_name(each.name)}{'_total' if each.kind == 'counter' else ''}" for each in declared if each.kind != "text"
    }
    written = {row[0].strip("`") for row in _rows(REFERENCE, "Metrics") if row[0].startswith("`eventstore_")}
    assert written == served | of_others


def test_alerts_are_about_metrics_that_there_are() -> None:
    explained = {row[0].strip("`") for row in _rows(REFERENCE, "Metrics") if row[0].startswith("`eventstore_")}
    named = set(re.findall(r"\beventstore_[a-z_]+", OPERATIONS)) - {"eventstore_checkpoints", "eventstore_parked"}  # tables
    assert "eventstore_replicas_in_sync" in named
    assert named <= explained


def test_every_error_is_explained_with_its_code() -> None:
    written = {name: int(row[1]) for name, row in _table(REFERENCE, "Errors").items()}
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.EventStoreError)]
    assert written == {error.__name__: error.code for error in kinds}


def test_a_copy_of_the_completed_files_is_a_store_once_the_loss_is_declared(serve: Serve, folder: Path) -> None:
    files = sorted((folder / "events").glob("*.events"))
    files[-1].unlink()
    for path in [*(folder / "events").glob("*.index"), *(folder / "directory").iterdir(), folder / "recent.json"]:
        path.unlink()
    assert f"{files[-1].name}: is missing" in refused("serve", "--data", folder, "--listen", "127.0.0.1:0")
    document = folder / "events/chunks.json"
    declared = json.loads(document.read_text()) | {"last_chunk": len(files) - 1, "last_chunk_end": 4096}
    document.write_text(json.dumps(declared))
    server = serve(data=folder)
    assert 0 < server.opened["events"] < 1_800
    output("append", "after", "--type", "T", "--data", "1", store=server.store)
    server.stop()
    output("verify", folder)
