"""Writes who may do what, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from eventstore.security.access_list import (
    AccessList,
    Identity,
    IdentityLimits,
    editing,
    granted,
    write_access,
)
from eventstore.security.tokens import new_token
from eventstore.store.data_folder import ACCESS


def give(
    data: Path,
    name: str,
    *grants: str,
    expires: datetime | None = None,
    certificates: Sequence[str] = (),
    limits: Mapping[str, int] | None = None,
) -> str:
    """Adds an identity with a token, as `eventstore access add` does; returns the token."""
    token, token_id, stored = new_token(datetime.now(UTC), expires)
    with editing(data / ACCESS) as known:
        before = known.identities.get(name, Identity(name))
        identity = replace(
            granted(before, grants), tokens={**before.tokens, token_id: stored}, certificates=tuple(certificates),
            limits=IdentityLimits(**(limits or {})),
        )  # fmt: skip
        write_access(data / ACCESS, known.with_(identity))
    return token


def take_away(data: Path, name: str) -> None:
    with editing(data / ACCESS) as known:
        write_access(data / ACCESS, known.without(name))


def replaced(data: Path, access: AccessList) -> None:
    with editing(data / ACCESS):
        write_access(data / ACCESS, access)
