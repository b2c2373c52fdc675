"""Says to the console and the HTTP API of a server or node what they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from eventstore.console.subject import ClusterDoor, Subject, is_api_installed
from eventstore.errors import InvalidArgument
from eventstore.extras import advice
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
    """Returns what the console and the HTTP API are about; None: both are switched off.

    `domain`: that of this process; None: the domain of the settings, which is loaded for the first page that folds an
    aggregate: most nodes show none, and their shards check it. `to_self`: no other process answers its requests.
    """
    if settings.http is None or not (settings.console or settings.http_api):
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
        pages=settings.console,
        api=settings.http_api,
    )


def check_http_api(settings: ServerSettings) -> None:
    """Raises InvalidArgument if the HTTP API is switched on and cannot be served."""
    if settings.http_api and settings.http is None:
        raise InvalidArgument("http_api is on, but there is no address for it: give --http HOST:PORT as well", field="http_api")
    if settings.http_api and not is_api_installed():
        raise InvalidArgument(f"http_api is on, but its libraries are not installed; {advice('http')}", field="http_api")


def _of(domain: Domain | None, place: str | None) -> Callable[[], Domain] | None:
    if domain is not None:
        return (lambda: domain) if domain.handlers else None
    return None if place is None else cache(partial(_load, place))


def _load(place: str) -> Domain:
    from eventstore.domain.import_path import load

    return load(place)
