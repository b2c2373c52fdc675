"""docs/OPERATIONS.md against the program: settings, metrics and errors it speaks of are those that there are."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore import errors
from eventstore.server.settings import ServerSettings, load_settings
from tests.cli.processes import Server, output, refused

Serve = Callable[..., Server]
PAGE = (Path(__file__).parents[2] / "docs" / "OPERATIONS.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading."""
    table = re.search(r"(?:^\|.*\n)+", PAGE[PAGE.index(f"\n## {heading}\n") :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[0].splitlines()[2:]]


def test_the_table_of_settings_is_complete_and_its_defaults_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServerSettings.model_fields:
        monkeypatch.delenv(f"EVENTSTORE_{name.upper()}", raising=False)
    written = {row[0].strip("`"): row[1].strip("`").partition(" ")[0] for row in _rows("Settings")}
    actual = load_settings(None).model_dump()
    assert set(written) == set(actual)
    for name, value in actual.items():
        if isinstance(value, bool):
            assert written[name] == str(value).lower(), name
        elif isinstance(value, int | float):
            assert float(written[name]) == value, name
        elif isinstance(value, Path):
            assert Path(written[name]) == value
        else:
            assert written[name] == ("off" if value is None else value), name


def test_every_metric_is_explained(serve: Serve) -> None:
    server = serve("--http", "127.0.0.1:0")
    with urllib.request.urlopen(f"http://{server.opened['http']}/metrics", timeout=10) as answer:
        served = {line.partition(" ")[0] for line in answer.read().decode().splitlines() if not line.startswith("#")}
    assert {row[0].strip("`") for row in _rows("Watching")} == served


def test_every_error_is_explained_with_its_code() -> None:
    written = {row[0].strip("`"): int(row[1]) for row in _rows("When something goes wrong")}
    known = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.EventStoreError)]
    assert written == {error.__name__: error.code for error in known if error is not errors.EventStoreError}


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
