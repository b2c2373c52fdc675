"""Erasing, where a process dies in between, or an old copy comes back; and the command that looks for what is left."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.errors import EventStoreError
from eventstore.subjects.key_buckets import ERASURE_TYPE, ERASURES, erased_by, erasure_id
from eventstore.subjects.traces import find_traces
from tests.cli.processes import output, refused, run
from tests.server_process import ServerProcess
from tests.subjects.conftest import Serve, master_key
from tests.waiting import wait_until

pytest.importorskip("cryptography")
SUBJECT = "customer:c-17"
NAME = "Ada Lovelace"


def fill(address: str, count: int = 3) -> None:
    with blocking.connect(address) as store:
        store.append_many(
            [
                es.Commit(f"order-{n}", [es.NewEvent("Moved", {"name": NAME}, subject=f"customer:c-{n}")], 0)
                for n in range(count)
            ]
        )


def readable(address: str) -> dict[str, bool]:
    """Returns of each subject whether its data are readable; if not, it is erased."""
    with blocking.connect(address) as store:
        events = [each for each in store.read_all() if each.subject]
        assert not [each for each in events if each.encrypted]
        return {each.subject or "": not each.erased for each in events}


async def test_a_process_that_died_between_the_record_and_the_key_destroys_the_key_at_its_next_start(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    fill(server.address)
    server.stop()
    async with es.open_store(tmp_path / "data") as store:  # what such a process leaves
        await store.append_reserved(erasure_id("customer:c-1"), es.NewEvent(ERASURE_TYPE, {"because": "asked"}), "erase")
    assert find_traces("customer:c-1", [tmp_path / "data"]).findings
    again = serve()
    assert not find_traces("customer:c-1", [tmp_path / "data"]).findings
    assert readable(again.address) == {"customer:c-0": True, "customer:c-1": False, "customer:c-2": True}


def test_keys_from_an_older_copy_of_the_folder_are_destroyed_before_anything_is_served(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    fill(server.address)
    shutil.copytree(tmp_path / "data" / "subjects", tmp_path / "copy")
    with blocking.connect(server.address) as store:
        store.erase("customer:c-1", "asked")
    server.stop()
    shutil.rmtree(tmp_path / "data" / "subjects")
    shutil.copytree(tmp_path / "copy", tmp_path / "data" / "subjects")
    again = serve()
    assert readable(again.address) == {"customer:c-0": True, "customer:c-1": False, "customer:c-2": True}
    assert not find_traces("customer:c-1", [tmp_path / "data"]).findings
    assert find_traces("customer:c-1", [tmp_path / "copy"]).findings  # what nobody has given to a store stays


@pytest.mark.parametrize("answered", [1, 7])
def test_a_server_that_is_killed_while_it_erases_keeps_the_keys_of_those_alone_that_it_has_not_erased(
    tmp_path: Path, answered: int
) -> None:
    key, count, done = str(master_key(tmp_path)), 60, list[str]()
    server = ServerProcess(tmp_path / "data", subject_key_file=key)
    fill(server.address, count)

    def erase_all() -> None:
        with blocking.connect(server.address, reconnect_timeout=0) as store:
            try:
                for n in range(count):
                    store.erase(f"customer:c-{n}", "asked")
                    done.append(f"customer:c-{n}")
            except EventStoreError:
                pass

    eraser = threading.Thread(target=erase_all)
    eraser.start()
    wait_until(lambda: len(done) >= answered, "some are erased")
    server.kill()
    eraser.join()
    again = ServerProcess(tmp_path / "data", subject_key_file=key)
    try:
        with blocking.connect(again.address) as store:
            recorded = {erased_by(each.aggregate_id) for each in store.aggregates(ERASURES)}
        assert recorded >= set(done)
        assert readable(again.address) == {f"customer:c-{n}": f"customer:c-{n}" not in recorded for n in range(count)}
        for subject in recorded:
            assert not find_traces(subject, [tmp_path / "data"]).findings
    finally:
        again.kill()


def test_the_command_erases_and_says_what_it_promises_and_what_not(serve: Serve) -> None:
    server = serve()
    fill(server.address)
    said = output("erase", "customer:c-1", "--because", "asked by letter", "--store", server.address)
    assert "customer:c-1 was erased at" in said
    assert "its key is destroyed" in said
    assert "provisional until" in said
    assert "what is not promised" in said
    again = json.loads(output("erase", "customer:c-1", "--because", "again", "--json", "--store", server.address))
    assert (again["subject"], again["had_key"]) == ("customer:c-1", False)
    assert "--because is missing" in refused("erase", "customer:c-2", "--store", server.address, code=2)
    assert readable(server.address) == {"customer:c-0": True, "customer:c-1": False, "customer:c-2": True}


def test_verify_finds_text_and_key_in_whatever_file_they_were_planted(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = serve()
    fill(server.address, 18)
    shutil.copytree(data / "subjects", tmp_path / "old")
    with blocking.connect(server.address) as store:
        store.erase(SUBJECT, "asked")
    server.stop()
    clean = output("erase", SUBJECT, "--verify", data, "--search", NAME)
    assert "nothing of it was found" in clean
    places = ["cut/0000000001-4096-1", "snapshots/a", "broker/messages/0000000001.messages", "left/over", "events/x.index"]
    for place in places:
        planted = data / place
        planted.parent.mkdir(exist_ok=True, parents=True)
        before = planted.read_bytes() if planted.exists() else b""
        for what in (NAME.encode(), NAME.encode("utf-16-le"), f'"{SUBJECT}": {{"key": "00", "made": 1}}\n'.encode()):
            planted.write_bytes(before + b"\x00" * 5_000_000 + what)  # behind the first step of the search
            found = find_traces(SUBJECT, [data], [NAME])
            assert [each.file for each in found.findings] == [str(planted)], (place, what)
            assert found.findings[0].offset == len(before) + 5_000_000
        planted.write_bytes(before) if before else planted.unlink()
    assert find_traces(SUBJECT, [data], [NAME]).clean
    packed = data / "events" / "old.gz"
    packed.write_bytes(b"\x1f\x8b\x08 and so on")
    told = run("erase", SUBJECT, "--verify", data)
    assert (told.returncode, "gzip, which hides what it holds" in told.stdout) == (1, True)
    (old,) = find_traces(SUBJECT, [tmp_path / "old"]).findings  # its own key, not those of the others
    assert old.what == "the key of the subject"


def test_a_text_over_the_edge_of_a_step_is_found_once(tmp_path: Path) -> None:
    step = 4 * 1024 * 1024
    for before in range(step - len(NAME) - 1, step + 2):
        (tmp_path / "file").write_bytes(b"." * before + NAME.encode() + b"." * 10)
        assert [each.offset for each in find_traces(SUBJECT, [tmp_path], [NAME]).findings] == [before]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(es.InvalidArgument, match="does not exist"):
        find_traces(SUBJECT, [tmp_path / "nowhere"])
    with pytest.raises(es.InvalidArgument, match="the least are 4"):
        find_traces(SUBJECT, [tmp_path], ["abc"])
    assert "--search needs --verify" in refused("erase", SUBJECT, "--search", "text", code=2)
    assert "erases nothing" in refused("erase", SUBJECT, "--verify", tmp_path, "--because", "x", code=2)


def test_erasures_that_are_kept_elsewhere_are_applied_to_a_store_that_has_no_record_of_them(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    fill(server.address)
    server.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "restored")
    server = serve()
    for subject in ("customer:c-0", "customer:c-2"):
        output("erase", subject, "--because", "asked", "--store", server.address)
    (tmp_path / "journal").write_text(output("erase", "--list", "--store", server.address))
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [(each["subject"], each["because"]) for each in lines] == [("customer:c-0", "asked"), ("customer:c-2", "asked")]
    restored = serve(tmp_path / "restored")
    assert all(readable(restored.address).values())
    said = output("erase", "--again", tmp_path / "journal", "--store", restored.address)
    assert said == "2 subjects are erased; 2 had a key again\n"
    assert readable(restored.address) == {"customer:c-0": False, "customer:c-1": True, "customer:c-2": False}
    (tmp_path / "journal").write_text("{}\n")
    assert "line 1" in refused("erase", "--again", tmp_path / "journal", "--store", restored.address, code=2)


def test_the_command_appends_an_event_about_a_subject(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    output(
        "append",
        "order-1",
        "--type",
        "Moved",
        "--data",
        json.dumps({"name": NAME}),
        "--subject",
        SUBJECT,
        "--store",
        server.address,
    )
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and NAME.encode() in path.read_bytes()]
    assert NAME in (said := output("read", "order-1", "--store", server.address))
    assert f"subject {SUBJECT}" in said
    output("erase", SUBJECT, "--because", "asked", "--store", server.address)
    assert "erased" in output("read", "order-1", "--store", server.address)
