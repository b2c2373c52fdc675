"""The latest requests about the whole cluster, or a node: one key, written in the transaction that does what is asked for.

A record of each is due in the audit trail of the shard `RECORDED_BY`, whose leader reads them here. A leader that comes after
it finds the requests that it has not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue, Tree
from eventstore_cluster.registry.node_keys import read_asked_by
from eventstore_cluster.replica.registry_state import ClusterRequest

REQUESTS: Final = "requests"
RECORDED_BY: Final = 0
"""Each cluster has this shard: it is made with the first ones, and no shard is ever taken away."""
REQUESTS_MAX: Final = 64
"""Kept in etcd: more than are made while no leader of that shard runs. The numbers show if some were never recorded."""
_ID_CHARACTERS_MAX: Final = 64
_DETAILS_MAX: Final = 8
_TEXT_CHARACTERS_MAX: Final = 200
_TIME_END: Final = 253_402_300_800  # the year 10000, which no datetime holds


def requests_with(value: Tree | None, id_: str, by: str, at: int, details: Tree) -> Tree:
    """Returns the value of the key with one more request, the next by its number."""
    known = _valid(value)
    number = known[-1][1].number + 1 if known else 1
    added = _value(ClusterRequest(number, id_, by, at, _details(details)))
    latest: list[DocumentValue] = [*(written for written, _ in known), added]  # as a newer program wrote them
    return {**(value or {}), "latest": latest[-REQUESTS_MAX:]}


def read_requests(value: Tree | None) -> tuple[ClusterRequest, ...]:
    """Returns the requests in order; skips entries that something else wrote."""
    return tuple(request for _, request in _valid(value))


def _valid(value: Tree | None) -> list[tuple[Tree, ClusterRequest]]:
    """Returns each request as it is written, and as it is read; skips entries that something else wrote."""
    match value:
        case {"latest": list(latest)}:
            return list(_read(latest[-REQUESTS_MAX:]))
    return []


def _value(request: ClusterRequest) -> Tree:
    return {
        "number": request.number,
        "id": request.id,
        "by": request.by,
        "at": request.at,
        "details": dict(request.details),
    }


def _read(latest: list[Any]) -> Iterator[tuple[Tree, ClusterRequest]]:
    for each in latest:
        match each:
            case {"number": int(number), "id": str(id_), "by": by, "at": int(at), "details": dict(details)} if (
                0 < len(id_) <= _ID_CHARACTERS_MAX and id_.isascii() and id_.isalnum() and 0 <= at < _TIME_END
            ):
                yield each, ClusterRequest(number, id_, read_asked_by(by), at, _details(details))


def _details(found: Tree) -> dict[str, str | int | bool | None]:
    return {str(name)[:_TEXT_CHARACTERS_MAX]: _short(value) for name, value in list(found.items())[:_DETAILS_MAX]}


def _short(value: DocumentValue) -> str | int | bool | None:
    return value if value is None or isinstance(value, int) else str(value)[:_TEXT_CHARACTERS_MAX]
