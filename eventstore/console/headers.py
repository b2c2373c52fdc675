"""What browsers go by, with every answer of the HTTP listener: pages, `/metrics` and `/health`, with a console or without."""

from __future__ import annotations

from typing import Final

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ONLY_TLS: Final = {"strict-transport-security": "max-age=86400"}
"""For a day a browser asks this host by HTTPS only, so that no one between can lead a visitor to a page without it. Not longer:
it holds for all ports of the name, also for other tools, which may know plain HTTP only."""


def headers_of(*, tls: bool) -> dict[str, str]:
    """Returns the headers of an answer, by their names in lower case; a page may give one of them another value."""
    return {**_HEADERS, **_ONLY_TLS} if tls else _HEADERS
