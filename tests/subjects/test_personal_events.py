"""Events about a person: encrypted before they leave the client, read by those who have the key, erased for good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.chunks.files import OsFiles
from eventstore.event_identity import event_identity
from eventstore.model import PersonalEvent
from eventstore.subjects.key_buckets import bucket_of, read_bucket
from tests.cli.processes import output, run
from tests.subjects.conftest import Serve

NAME = "Ada Lovelace of St James's Square"
SUBJECT = "customer:c-17"


def personal(name: str = NAME, subject: str = SUBJECT) -> es.NewEvent:
    return es.NewEvent("Moved", {"name": name}, {"by": "web"}, ["town:london"], subject=subject)


def files_with(folder: Path, text: str) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_an_event_with_a_subject_is_stored_encrypted_and_read_as_it_was(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [es.NewEvent("Placed", {"total": 3}), personal()], 0)
        plain, event = store.read("order-1")
    assert (event.json(), event.metadata_json(), event.tags) == ({"name": NAME}, {"by": "web"}, ("town:london",))
    assert (event.subject, event.erased, event.encrypted, event.is_json) == (SUBJECT, False, False, True)
    assert (plain.subject, plain.erased, plain.encrypted) == (None, False, False)
    assert not files_with(tmp_path / "data", NAME)
    assert files_with(tmp_path / "data", SUBJECT)


def test_every_way_to_read_decrypts(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal(), es.NewEvent("Placed"), personal("Bob")], 0)
        store.commit([es.Write("order-{2}", [personal("Cy")], 0), es.Write("bill-{2}", [personal("Dee")], 0)])
        expected = [NAME, "", "Bob", "Cy", "Dee"]

        def names(events: object) -> list[str]:
            return [each.json()["name"] if each.subject else "" for each in events]  # type: ignore[attr-defined]

        assert names(store.read_all()) == expected
        assert names(store.read_all(backwards=True)) == expected[::-1]
        assert names(store.read("order-1", backwards=True)) == expected[2::-1]
        assert names(store.read("order-1", 3)) == ["Bob"]
        assert names(store.query(es.Query(tags=["town:london"]))[0]) == [NAME, "Bob", "Cy", "Dee"]
        found, _ = store.replay_many(["order-{2}", "bill-{2}"])
        assert [each.json()["name"] for events in found.values() for each in events] == ["Cy", "Dee"]
        with store.subscribe() as stream:
            seen = [next(stream) for _ in range(5)]
        assert names(seen) == expected


async def test_the_async_client_does_the_same(serve: Serve) -> None:
    server = serve()
    async with es.connect(server.address) as store:
        await store.append("order-1", [personal()], 0)
        outcomes = await store.append_many([es.Commit(f"order-{n}", [personal(f"P{n}")], 0) for n in range(2, 200)])
        assert [outcome.version for outcome in outcomes] == [1] * 198  # type: ignore[union-attr]
        assert [each.json()["name"] async for each in store.read_all()] == [NAME, *(f"P{n}" for n in range(2, 200))]
        stream = store.subscribe()
        assert (await anext(stream)).json() == {"name": NAME}  # type: ignore[union-attr]
        await stream.aclose()


def test_many_commits_keep_their_order_around_the_personal_ones(serve: Serve) -> None:
    server = serve()
    commits = [es.Commit("order-1", [es.NewEvent("Placed") if n % 3 else personal(f"P{n}")], n) for n in range(1, 300)]
    with blocking.connect(server.address) as store:
        store.append("order-1", [es.NewEvent("Begun")], 0)
        assert [outcome.version for outcome in store.append_many(commits)] == list(range(2, 301))  # type: ignore[union-attr]


def test_a_repeated_append_is_recognized_and_other_content_is_refused(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        first = store.append("order-1", [personal()], 0, "c-1")
    with blocking.connect(server.address) as store:  # which has no lease, and encrypts anew
        again = store.append("order-1", [personal()], 0, "c-1")
        assert (again.duplicate, again.version) == (True, first.version)
        with pytest.raises(es.CommandIdReused):
            store.append("order-1", [personal("Bob")], 0, "c-1")


def test_what_is_erased_reads_as_erased_and_never_comes_back(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal()], 0, "c-1")
        store.append("order-2", [personal("Bob", "customer:c-18")], 0)
        done = store.erase(SUBJECT, "asked by letter of 3 May")
        assert (done.had_key, done.replicas) == (True, 1)
        assert done.leased_until_us > done.erased_us
        again = store.erase(SUBJECT, "asked again")
        assert (again.had_key, again.sequence, again.erased_us) == (False, done.sequence, done.erased_us)
    with blocking.connect(server.address) as store:
        (event,) = store.read("order-1")
        assert (event.erased, event.encrypted, event.data, event.subject, event.tags) == (
            True,
            False,
            b"",
            SUBJECT,
            ("town:london",),
        )
        with pytest.raises(es.SubjectErased):
            event.json()
        (other,) = store.read("order-2")
        assert other.json() == {"name": "Bob"}
        with pytest.raises(es.SubjectErased):
            store.append("order-3", [personal()], 0)
        assert store.version("order-3") == 0
        repeated = store.append("order-1", [personal()], 0, "c-1")  # by its id alone: nothing can compare it any longer
        assert (repeated.duplicate, repeated.version) == (True, 1)
        outcomes = store.append_many([es.Commit("order-1", [personal()], 0, "c-1"), es.Commit("order-4", [personal()], 0)])
        assert [type(each) for each in outcomes] == [es.Committed, es.SubjectErased]
    bucket = read_bucket(OsFiles(), tmp_path / "data" / "subjects" / f"{bucket_of(SUBJECT):03}.json")
    assert (bucket.keys, list(bucket.erased)) == ({}, [SUBJECT])


def test_a_decrypted_event_keeps_the_identity_of_what_is_stored(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal()], 0)
        before = next(iter(stream := store.read_all()))
        position = stream.position
        store.erase(SUBJECT, "asked")
    with blocking.connect(server.address) as store:
        (after,) = store.read("order-1")
        assert isinstance(after, PersonalEvent)
        assert event_identity(before) == event_identity(after)
        assert [each.type for each in store.read_all(after=position)] == ["$SubjectErased"]


def test_a_server_without_master_keys_refuses_by_name_and_reads_show_that_they_are_encrypted(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal()], 0)
    server.stop()
    without = serve(subject_key_file=None)
    with blocking.connect(without.address) as store:
        with pytest.raises(es.InvalidArgument, match="--subject-key-file"):
            store.append("order-2", [personal()], 0)
        (event,) = store.read("order-1")
        assert (event.encrypted, event.erased) == (True, False)
        with pytest.raises(es.PayloadInvalid, match="encrypted by the key of 'customer:c-17'"):
            event.json()


async def test_an_embedded_store_refuses_to_store_and_shows_what_is_encrypted(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal()], 0)
    server.stop()
    async with es.open_store(tmp_path / "data") as embedded:
        with pytest.raises(es.InvalidArgument, match="has the subject"):
            await embedded.append("order-2", [personal()], 0)
        (event,) = [each async for each in embedded.read("order-1")]
        assert (event.encrypted, event.subject) == (True, SUBJECT)
        assert NAME.encode() not in event.data


def test_an_export_has_no_data_about_a_subject_and_an_import_refuses_such_lines(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [es.NewEvent("Placed", {"total": 3}), personal()], 0)
    output("export", "-o", tmp_path / "out.jsonl", "--store", server.address)
    assert NAME not in (tmp_path / "out.jsonl").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["event_type"], each["data"], each.get("subject")) for each in lines] == [
        ("Placed", {"total": 3}, None),
        ("Moved", None, SUBJECT),
    ]
    other = serve(tmp_path / "other")
    told = run("import", tmp_path / "out.jsonl", "--store", other.address)
    assert (told.returncode, "it is about the subject 'customer:c-17'" in told.stdout + told.stderr) == (1, True)
    with blocking.connect(other.address) as store:
        assert not [each for each in store.read_all() if each.type == "Moved"]


def test_a_published_message_has_the_data_encrypted(serve: Serve) -> None:
    server = serve(publish="events")
    with blocking.connect(server.address) as store:
        store.append("order-1", [personal()], 0)
        with store.consumer("billing", "events") as consumer:
            message = next(consumer)
        (event,) = store.read("order-1")
    assert message.body == event[3]
    assert NAME.encode() not in message.body
    assert message.properties["format"] == "bytes"
