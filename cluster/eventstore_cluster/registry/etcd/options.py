"""Where etcd is, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from eventstore.errors import InvalidArgument
from eventstore.fields import shown_url


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """How etcd is reached.

    Attributes:
        endpoints: URLs.
        user: of etcd, if it asks for one.
        password: of `user`.
        ca: file, for https.
        cert: file, for https.
        key: file, for https.
        by: who asks, as shards note it for their audit trail; empty: the program itself.
    """

    endpoints: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    request_timeout_s: float = 2.0
    by: str = ""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidArgument("no endpoint of etcd is given; the usual one is http://127.0.0.1:2379", field="endpoints")
        for endpoint in self.endpoints:
            if not _is_url(endpoint):
                why = f"{endpoint!r} is not an http or https URL; --etcd takes such as http://127.0.0.1:2379"
                shown = endpoint
                if "@" in endpoint:
                    shown = shown_url(endpoint)
                    why = (
                        f"the URL of etcd at {shown} names a user or password, which every account of this machine sees; give "
                        "--etcd-user, and the password in EVENTSTORE_ETCD_PASSWORD"
                    )
                raise InvalidArgument(why, field="endpoints", value=shown)


def _is_url(text: str) -> bool:
    try:
        found = urlsplit(text)
        port = found.port  # of more than 65,535 is a ValueError
    except ValueError:
        return False
    named = text.isprintable() and not any(map(str.isspace, text))
    return named and found.scheme in ("http", "https") and bool(found.hostname) and port != 0 and "@" not in found.netloc
