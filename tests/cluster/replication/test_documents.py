"""Documents that a follower is sent, wherever its folder is."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore_cluster.replication.logs.documents import FollowerDocuments, read_documents
from eventstore_cluster.replication.logs.pieces import Documents


def given(name: str) -> Documents:
    return Documents((1, 1), ((name, b"{}\n"),))


def test_a_follower_whose_folder_is_named_by_way_of_its_parents_takes_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "data" / "broker").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    FollowerDocuments(OsFiles(), Path("../data")).store(given("broker/topics.json"))
    assert (tmp_path / "data" / "broker" / "topics.json").read_bytes() == b"{}\n"


@pytest.mark.parametrize("name", ["broker/../../topics.json", "../published-1.json", "/etc/published-1.json", "store.json"])
def test_what_is_no_document_of_a_shard_is_refused(tmp_path: Path, name: str) -> None:
    (folder := tmp_path / "shard-0").mkdir()
    with pytest.raises(es.Corrupt, match="not of a shard"):
        FollowerDocuments(OsFiles(), folder).store(given(name))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_follower_keeps_no_copy_of_keys_that_were_replaced(tmp_path: Path) -> None:
    follower = FollowerDocuments(OsFiles(), tmp_path)
    for number, raw in enumerate((b"first", b"second"), 1):
        follower.store(Documents((1, number), (("subjects/007.json", raw),)))
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "subjects").iterdir()] == [("007.json", b"second")]
    assert read_documents(OsFiles(), tmp_path) == [("subjects/007.json", b"second")]
