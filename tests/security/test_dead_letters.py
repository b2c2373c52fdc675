"""A group's own topic for its dead letters, on a real server: only one who may send there may name it."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.errors import PermissionDenied
from tests.security.access_file import give
from tests.server_thread import ServerThread

TO_FAILED = es.Retries((0.0,), 1, "failed")


def test_a_groups_dead_letters_go_to_another_topic_only_by_one_who_may_send_there_and_make_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    given = ("groups:billing", "stats")
    alone = give(data, "alone", *given)
    sending = give(data, "sending", *given, "send:failed")
    making = give(data, "making", *given, "send:failed", "topics:failed")
    elsewhere = give(data, "elsewhere", *given, "send:orders", "topics")
    admin = give(data, "root", "admin")
    with ServerThread(data) as server:

        def asked(token: str, retries: es.Retries = TO_FAILED) -> str | None:
            """Has the group's policy set; returns which permission that lacks."""
            with es.blocking.connect(server.address, token=token) as store:
                try:
                    store.broker.set_retries("billing", retries)
                except PermissionDenied as refused:
                    return str(refused.fields["permission"])
                return None

        assert [asked(token) for token in (alone, elsewhere)] == ["send"] * 2
        assert asked(sending) == "topics", "the first dead letter would make the topic"
        with es.blocking.connect(server.address, token=admin) as store, pytest.raises(es.UnknownGroup):
            store.broker.retries("billing")
        assert asked(making) is None
        assert asked(alone, es.Retries((1.0,))) is None, "its own dead:billing is the group's"
        assert asked(alone) == "send", "which says nothing of whether the topic exists"
        with es.blocking.connect(server.address, token=admin) as store:
            store.broker.create_topic("failed")
        assert asked(sending) is None
        assert asked(alone, es.Retries((0.0,), 2, "failed")) == "send", "another policy than the group has"
        with es.blocking.connect(server.address, token=admin) as store:
            assert store.broker.retries("billing").dead_letters == "failed"


def test_the_policy_that_a_group_has_is_given_again_without_permission_to_send_there_as_a_consumer_does_at_each_start(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    member = give(data, "member", "groups:billing", "join:billing", "consume:orders", "stats")
    admin = give(data, "root", "admin")
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=admin) as store:
            store.broker.create_topic("orders")
            store.broker.set_retries("billing", TO_FAILED)
        with es.blocking.connect(server.address, token=member) as store:
            for _ in range(2):
                with store.consumer("billing", "orders", retries=TO_FAILED):
                    assert store.broker.retries("billing") == TO_FAILED
            for changed in (es.Retries((1.0,), 1, "failed"), es.Retries((0.0,), 2, "failed"), es.Retries((0.0,), 1, "orders")):
                with pytest.raises(PermissionDenied, match="'send'"):
                    store.broker.set_retries("billing", changed)
            with pytest.raises(PermissionDenied, match="'groups'"):
                store.broker.set_retries("shipping", TO_FAILED)
            store.broker.set_retries("billing", None)
            with pytest.raises(PermissionDenied, match="'send'"):
                store.broker.set_retries("billing", TO_FAILED)
