from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import trio

import eventstore as es
from tests.cli.processes import Server, output, refused, run

Serve = Callable[..., Server]


def test_a_sound_folder_ends_with_exit_code_0(folder: Path) -> None:
    text = output("verify", folder)
    assert "1,800 events in 1,200 commits of 90 aggregates" in text
    assert text.endswith("no faults\n")
    assert json.loads(output("verify", folder, "--json"))["sound"] is True


def test_counts_of_one_are_singular(tmp_path: Path) -> None:
    async def append_one() -> None:
        async with es.open_store(tmp_path / "data") as store:
            await store.append("a", [es.NewEvent("T")], 0)

    trio.run(append_one)
    assert output("verify", tmp_path / "data").startswith("1 event in 1 commit of 1 aggregate, 1 event file (0 sorted)\n")
    assert output("rebuild", tmp_path / "data") == (
        "0 indexes written (0 files sorted), 0 aggregates in the directory, 1 in the preload file\n"
    )


def test_a_fault_is_named_by_file_and_offset_and_ends_with_exit_code_1(folder: Path) -> None:
    path = folder / "events/0000000001.events"
    raw = bytearray(path.read_bytes())
    raw[4096 + 70] ^= 1
    path.write_bytes(raw)
    result = run("verify", folder)
    assert (result.returncode, result.stderr) == (1, "")
    assert f"{path}: at byte 4096: the checksum of the record does not match" in result.stdout
    assert result.stdout.endswith("1 fault\n")
    found = json.loads(run("verify", folder, "--json").stdout)
    assert (found["sound"], found["faults"]) == (False, 1)
    assert (found["findings"][0]["file"], found["findings"][0]["offset"]) == (str(path), 4096)


def test_a_damaged_list_of_identities_is_a_fault(folder: Path) -> None:
    output("access", "add", "ann", "--grant", "reader", "--data", folder)
    assert output("verify", folder).endswith("no faults\n")
    path = folder / "access.json"
    path.write_text(path.read_text()[:-3])
    result = run("verify", folder)
    assert (result.returncode, result.stderr) == (1, "")
    said = result.stdout.splitlines()[-1]
    assert said.startswith(f"1 fault in the list of identities: {path}: corrupt at byte offset 0: not JSON")
    assert said.endswith("the previous copy is access.json.previous")
    found = json.loads(run("verify", folder, "--json").stdout)
    assert (found["sound"], found["faults"], found["access_fault"]) == (False, 0, said.partition("identities: ")[2])


def test_a_folder_that_cannot_be_opened_ends_with_exit_code_2(serve: Serve, folder: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in refused("verify", tmp_path / "missing", code=2)
    assert "is a file" in refused("verify", folder / "store.json", code=2)
    server = serve(data=folder)
    assert f"in use by process {server.process.pid}; stop it, or verify a copy" in refused("verify", folder, code=2)
    server.stop()
    output("verify", folder)


def test_a_verified_folder_is_served(serve: Serve, folder: Path) -> None:
    output("verify", folder)
    assert serve(data=folder).opened["events"] == 1_800


def test_progress_is_drawn_on_request(folder: Path) -> None:
    result = run("verify", folder, "--progress")
    assert "100%" in result.stderr
