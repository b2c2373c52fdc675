"""Says to the console of a server or node what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from eventstore.console.subject import ClusterDoor, Subject
from eventstore.security.loopback import is_loopback
from eventstore.server.bootstrap import parse_address
from eventstore.settings.server import ServerSettings

if TYPE_CHECKING:
    from eventstore.domain.domain import Domain
    from eventstore.server.access.security import Security

_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def console_subject(
    settings: ServerSettings,
    security: Security,
    listens: tuple[str, int],
    figures: Callable[[], Mapping[str, Any]],
    title: str,
    *,
    domain: Domain | None = None,
    to_self: bool = True,
    cluster: ClusterDoor | None = None,
) -> Subject | None:
    """Returns what the console is about; None: it is switched off.

    `domain`: that of this process; None: the domain of the settings, which is loaded for the first page that folds an
    aggregate: most nodes show none, and their shards check it. `to_self`: no other process answers its requests.
    """
    if settings.http is None or not settings.console:
        return None
    host, port = listens
    host = _ANYWHERE.get(host, host)
    address = f"{security.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return Subject(
        title=title,
        address=address,
        options=partial(security.visitor_options, to_self=to_self),
        figures=figures,
        identity_of=security.identity_of(),
        is_local=is_loopback(parse_address(settings.http, "http")[0]),
        folder=str(settings.data),
        domain=_of(domain, settings.domain),
        cluster=cluster,
    )


def _of(domain: Domain | None, place: str | None) -> Callable[[], Domain] | None:
    if domain is not None:
        return (lambda: domain) if domain.handlers else None
    return None if place is None else cache(partial(_load, place))


def _load(place: str) -> Domain:
    from eventstore.domain.import_path import load

    return load(place)
