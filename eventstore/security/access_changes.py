"""What an edit of the list of identities changed, and who says to have made it: for the audit trail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from eventstore.security.access_list import AccessList, Identity, cut_subject

_NAMED_MAX: Final = 10


def author(before: AccessList, now: AccessList) -> str:
    """Returns who made the list `now` from `before`, as that program claims; empty: unknown, as after an edit by hand, or
    several edits.
    """
    edit = now.edit
    return edit.by if edit is not None and (edit.before, edit.after) == (before.digest, now.digest) else ""


def changes(before: AccessList, now: AccessList) -> Iterator[tuple[str, str]]:
    """Yields the name of each identity that was changed, and how: also which tokens, by their ids, and certificates."""
    for name in sorted(before.identities.keys() | now.identities.keys()):
        was, identity = before.identities.get(name), now.identities.get(name)
        if identity is None:
            yield name, "removed"
        elif was is None:
            added = f"added: {', '.join(identity.written)}"
            yield name, "; ".join((added, *_differences(Identity(name, identity.written), identity)))
        elif was != identity:
            yield name, "; ".join(_differences(was, identity))


def _differences(was: Identity, now: Identity) -> Iterator[str]:
    yield from _named("token", "added", [each for each in now.tokens if each not in was.tokens])
    yield from _named("token", "removed", [each for each in was.tokens if each not in now.tokens])
    yield from _named("token", "changed", [key for key, each in now.tokens.items() if was.tokens.get(key, each) != each])
    yield from _named("certificate", "added", [each for each in now.certificates if each not in was.certificates])
    yield from _named("certificate", "removed", [each for each in was.certificates if each not in now.certificates])
    if was.written != now.written:
        yield f"grants: {', '.join(now.written) or 'none'}"
    if was.limits != now.limits:
        limits = [f"{name}={value}" for name, value in asdict(now.limits).items() if value is not None]
        yield f"limits: {', '.join(limits) or 'none'}"


def _named(what: str, change: str, found: list[str]) -> Iterator[str]:
    if found:
        more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        yield f"{what} {', '.join(map(cut_subject, found[:_NAMED_MAX]))}{more} {change}"
