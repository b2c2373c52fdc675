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
        assert asked(alone) == "send"
        with es.blocking.connect(server.address, token=admin) as store:
            assert store.broker.retries("billing").dead_letters == "failed"
