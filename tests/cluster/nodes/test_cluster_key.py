"""The key of a cluster in the registry: which formats a program reads."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from eventstore.chunks.documents import DocumentValue
from eventstore.errors import Corrupt, UnsupportedVersion
from eventstore_cluster.registry.replicated_keys import FORMAT, ClusterKey, read_cluster

KEY = ClusterKey(uuid.UUID(int=7), 1, 3, 2)


def test_a_key_is_read_as_it_was_written_and_one_without_a_format_has_the_first() -> None:
    value = KEY.value()
    assert read_cluster(value) == KEY
    assert value.pop("format") == FORMAT
    assert read_cluster(value) == replace(KEY, format=1)


@pytest.mark.parametrize("written", [0, -1, FORMAT + 1, 99])
def test_another_format_is_refused_before_anything_else_of_the_key_is_read(written: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"format {written}, .* knows 1 to {FORMAT}") as refused:
        read_cluster({"format": written})
    assert (refused.value.value, refused.value.limit) == (written, FORMAT)


@pytest.mark.parametrize("written", [None, "two", [1]])
def test_a_format_that_is_no_number_is_damage(written: DocumentValue) -> None:
    with pytest.raises(Corrupt):
        read_cluster({**KEY.value(), "format": written})
