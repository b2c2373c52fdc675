"""Errors of a connection, which say why it failed, and what to check."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeAlias
from uuid import UUID

from eventstore.client.address import Address
from eventstore.errors import ConnectionLost, Elsewhere, EventStoreError, Field, InvalidArgument, TimedOut

Attempt: TypeAlias = tuple[Address, Exception]
"""An address that was tried, and why that failed."""

_UNTRUSTED: Final = ("self-signed certificate", "unable to get local issuer certificate")


class Unanswered(OSError):
    """The peer was silent for the time that it was given."""


class ConnectTimeout(Unanswered):
    """The machine did not answer the attempt to connect: it is off, or the network drops what is sent to it."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")


class HelloTimeout(Unanswered):
    """The peer accepted the connection but did not answer the hello: a server that hangs, or not an event store."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"connected, but the hello was not answered within {timeout_s:g} s")


class TlsFailed(OSError):
    """The two sides do not agree on TLS, or one of them does not accept the other."""


def tls_refused(reason: str) -> str:
    """Returns why TLS failed, in words where the reason has a frequent cause."""
    known = {
        "WRONG_VERSION_NUMBER": "it does not speak TLS; is it tcp://?",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server wants the certificate of a client",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this client has expired; get a new one (--tls-certificate)",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the certificate of this client is not one for clients (extended key usage)",
        "unsuitable certificate purpose": "the certificate of the server is not one for servers (extended key usage)",
        "TLSV1_ALERT_UNKNOWN_CA": "the server does not know the CA of this certificate",
        "TLSV1_ALERT_PROTOCOL_VERSION": "the server speaks a newer version of TLS only",
    }
    if reason.startswith(_UNTRUSTED):
        return f"TLS failed: {reason}; name the CA of the server (--tls-ca, EVENTSTORE_TLS_CA)"
    return f"TLS failed: {known.get(reason, reason)}"


def connection_lost(attempts: Sequence[Attempt], whose: str = "") -> ConnectionLost:
    """Returns the error for callers that waited for a connection; it names each address that was tried. `whose`: the shard that
    is there, for the error; empty: an address that the caller gave.
    """
    tried = ",".join(str(address) for address, _ in attempts)
    why = "; ".join(_why(error) for _, error in attempts)
    each = "; ".join(f"{address}: {_why(error)}" for address, error in attempts)
    return ConnectionLost(f"{whose}{each}{_hint([error for _, error in attempts], whose)}", address=tried, cause=why)


def not_opened(attempts: Sequence[Attempt]) -> EventStoreError:
    """Returns the error of a client that is opened in vain: what its only server refuses it for, or ConnectionLost."""
    (_, first), *others = attempts
    return first if not others and isinstance(first, EventStoreError) else connection_lost(attempts)


def another_store(before: bytes, now: bytes, what: str) -> ConnectionLost:
    """Returns the error for an address that leads to another store, or to another cluster, than the client was connected to."""
    known, found = str(UUID(bytes=before)), str(UUID(bytes=now))
    return ConnectionLost(
        f"another {what} answers at this address: {found}, it was {known}; open another client", expected=known, actual=found
    )


def outcome_unknown() -> ConnectionLost:
    """Returns the error of a request whose connection ended before the answer, and that may not be sent again."""
    return ConnectionLost(
        "the connection was lost before the answer came: it may have been carried out, or not; look before you try again",
        outcome="unknown",
    )


def timed_out(timeout_ms: Field, *, changes: bool, cause: Field = None) -> TimedOut:
    """Returns the error of a call whose time is over. `changes`: it was sent and, unlike a read, may take effect. `cause`: why
    there was no connection.
    """
    fields: dict[str, Field] = {} if cause is None else {"cause": cause}
    why = "" if cause is None else f" ({cause})"
    told = f"not answered within {float(timeout_ms or 0) / 1000:g} s{why}"
    if changes:
        what = "it may have been carried out, or may still be; repeat it with the same command id, or look, before you go on"
        return TimedOut(f"{told}: {what}", timeout_ms=timeout_ms, outcome="unknown", **fields)
    return TimedOut(f"{told}; it changed nothing, and will not", timeout_ms=timeout_ms, outcome="none", **fields)


def timed_out_after(over: TimedOut, *, changed: bool) -> TimedOut:
    """Returns the error of a call that makes several, if the time was over in one of them. `changed`: by those before it."""
    return timed_out(over.timeout_ms, changes=changed or over.outcome == "unknown", cause=over.fields.get("cause"))


def timed_out_without(over: TimedOut, attempts: Sequence[Attempt]) -> TimedOut:
    """Returns the error of a call whose time was over while there was no connection. `attempts`: the last."""
    cause = connection_lost(attempts).message if attempts else None
    return timed_out(over.timeout_ms, changes=over.outcome == "unknown", cause=cause)


def is_returned(outcome: object) -> bool:
    """Whether an outcome means that a router has to send the row again: it was refused, or not answered."""
    if isinstance(outcome, Elsewhere):
        return True
    return isinstance(outcome, ConnectionLost) and outcome.fields.get("outcome") == "unknown"


def interrupted() -> ConnectionLost:
    """Returns the error of what another thread waits for when a signal's handler ends a call."""
    return ConnectionLost(
        "another call of this client was interrupted before the answer came: this one may have been carried out, or not; look "
        "before you try again",
        outcome="unknown",
    )


def answered_in_parent() -> ConnectionLost:
    """Returns the error of a call or an iteration that was under way when this process was forked from another."""
    parent = os.getppid()
    return ConnectionLost(
        f"this process was forked from process {parent} while the answer was due, which is sent there: what was asked for may "
        "have been carried out, or not; look before you try again, and begin an iteration again",
        outcome="unknown",
        process=parent,
    )


def too_large(size: int, limit: int) -> InvalidArgument:
    """Returns the error of a request that is longer than this server takes."""
    why = f"a request of {size} bytes, this server takes up to {limit}"
    return InvalidArgument(why, field="frame length", limit=limit, value=size)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "the connection was closed"


def _hint(errors: Sequence[Exception], whose: str) -> str:
    """Returns what to check, unless a server has answered and said what is wrong."""
    if any(isinstance(each, EventStoreError | TlsFailed) for each in errors):
        return ""
    if whose:  # its address is of the map, which a node gave that runs
        return "; `eventstore cluster status` says why"
    hangs = {isinstance(each, HelloTimeout) for each in errors}
    if len(hangs) > 1:
        return "; is one of the servers running?"
    return "; is this the port of an event store, and not its --http?" if True in hangs else "; is the server running?"
