"""Who gets keys, and what those see who do not; and subjects of several shards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.protocol.subject_requests import LeasedKey, LeasedKeys
from tests.cli.processes import output
from tests.cluster.led_shards import LedShards
from tests.subjects.conftest import Serve, master_key

pytest.importorskip("cryptography")


def moved(subject: str) -> es.NewEvent:
    return es.NewEvent("Moved", {"of": subject}, subject=subject)


def seen(events: Iterable[object]) -> dict[str, str]:
    """Returns what there is of each subject: its data, or what is said instead."""
    found = {}
    for event in events:
        assert isinstance(event, es.Event)
        if event.subject:
            found[event.subject] = "erased" if event.erased else "encrypted" if event.encrypted else event.json()["of"]  # type: ignore[index,call-overload]
    return found


def test_who_has_no_permission_for_a_subject_sees_that_its_data_are_encrypted(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    grants = {
        "all": ["--grant", "admin"],
        "none": ["--grant", "reader", "--grant", "writer"],
        "some": ["--grant", "reader", "--grant", "writer", "--grant", "subjects:customer-a"],
        "erasing": ["--grant", "erase:customer-b"],
    }
    tokens = {name: output("access", "add", name, *each, "--data", data).strip() for name, each in grants.items()}
    server = serve()
    with blocking.connect(server.address, token=tokens["all"]) as store:
        store.append("order-1", [moved("customer-a1"), moved("customer-b1"), es.NewEvent("Placed")], 0)
        assert seen(store.read("order-1")) == {"customer-a1": "customer-a1", "customer-b1": "customer-b1"}
    with blocking.connect(server.address, token=tokens["none"]) as store:
        assert seen(store.read_all()) == {"customer-a1": "encrypted", "customer-b1": "encrypted"}
        with pytest.raises(es.PermissionDenied, match="'subjects'"):
            store.append("order-2", [moved("customer-a1")], 0)
        outcomes = store.append_many(
            [es.Commit("order-2", [moved("customer-a1")], 0), es.Commit("order-3", [es.NewEvent("P")], 0)]
        )
        assert [type(each) for each in outcomes] == [es.PermissionDenied, es.Committed]
        with pytest.raises(es.PermissionDenied, match="'erase'"):
            store.erase("customer-a1", "asked")
    with blocking.connect(server.address, token=tokens["some"]) as store:
        assert seen(store.read("order-1")) == {"customer-a1": "customer-a1", "customer-b1": "encrypted"}
        store.append("order-4", [moved("customer-a1")], 0)
    with blocking.connect(server.address, token=tokens["erasing"]) as store:
        assert store.erase("customer-b1", "asked").had_key
    with blocking.connect(server.address, token=tokens["all"]) as store:
        assert seen(store.read("order-1")) == {"customer-a1": "customer-a1", "customer-b1": "erased"}
        (record,) = (each for each in store.read("$audit") if b"ERASE_SUBJECT" in each.data and b"erasing" in each.data)
        assert b"customer-b1" in record.data


def test_a_joint_commit_that_is_repeated_after_an_erasure_has_its_first_outcome(serve: Serve) -> None:
    server = serve()
    both = [es.Write("order-{1}", [moved("a")], 0), es.Write("bill-{1}", [es.NewEvent("Billed")], 0)]
    with blocking.connect(server.address) as store:
        first = store.commit(both, command_id="c-1")
        assert store.commit(both, command_id="c-1") == [each._replace(duplicate=True) for each in first]
        store.erase("a", "asked")
    with blocking.connect(server.address) as store:
        again = store.commit(both, command_id="c-1")
        assert [(each.version, each.sequence) for each in again] == [(each.version, each.sequence) for each in first]
        with pytest.raises(es.SubjectErased):
            store.commit(both, command_id="c-2")


def test_what_is_no_commit_beside_personal_ones_is_refused_alone(serve: Serve) -> None:
    server = serve()
    bad = [es.Commit("", [moved("a")], 0), "text", es.Commit("order-2", None, 0), es.Commit("order-3", moved("a"), 0)]  # type: ignore[arg-type]
    with blocking.connect(server.address) as store:
        outcomes = store.append_many([es.Commit("order-1", [moved("a")], 0), *bad, es.Commit("order-4", [es.NewEvent("P")], 0)])  # type: ignore[list-item]
        assert [type(each) for each in outcomes] == [es.Committed, *[es.InvalidArgument] * 4, es.Committed]
        assert seen(store.read_all()) == {"a": "a"}


def test_a_server_without_master_keys_erases_too(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("order-1", [moved("a")], 0)
    server.stop()
    with blocking.connect(serve(subject_key_file=None).address) as store:
        assert store.erase("a", "asked").had_key


async def test_subjects_and_the_events_about_them_may_be_in_different_shards(tmp_path: Path) -> None:
    subjects = [f"s-{n}" for n in range(40)]
    expected = {name: name for name in subjects}
    with LedShards(tmp_path / "shards", 2, subject_key_file=str(master_key(tmp_path))) as shards:
        async with es.connect(shards.address) as store:
            commits = [es.Commit(f"order-{n}", [moved(name)], 0) for n, name in enumerate(subjects)]
            assert {type(each) for each in await store.append_many(commits)} == {es.Committed}
        async with es.connect(shards.address) as store:
            assert seen([each async for each in store.read_all()]) == expected
            assert seen([each async for each in store.read("order-7")]) == {"s-7": "s-7"}
            stream = store.subscribe()
            assert seen([each for each in [await anext(stream) for _ in range(41)] if isinstance(each, es.Event)]) == expected
            await stream.aclose()
        with blocking.connect(shards.address) as store:
            assert seen(store.read_all()) == expected
            assert seen(store.read("order-7")) == {"s-7": "s-7"}
            found, _ = store.replay_many(["order-7"])
            assert seen(found["order-7"]) == {"s-7": "s-7"}
            store.erase("s-7", "asked")
        with blocking.connect(shards.address) as store:
            assert seen(store.read_all()) == expected | {"s-7": "erased"}


def test_a_key_is_in_no_text_that_may_be_logged() -> None:
    leased = LeasedKeys(60, (LeasedKey("a", b"0123456789abcdef" * 2, False),))
    assert "0123" not in repr(leased)
    assert "0123" not in str(leased.keys[0])
