"""Edits the list of who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.output import print_json, print_line, print_note, print_table
from eventstore.cli.terminal.program import command_group
from eventstore.cli.terminal.shared_options import AsJson

if TYPE_CHECKING:
    from datetime import datetime

    from eventstore.security.access_list import Identity

access = command_group("access", "Say who may connect to a server, and do what.")

_DATA: Final = Path("data")
Data = Annotated[
    Path, typer.Option("--data", metavar="FOLDER", envvar="EVENTSTORE_DATA", help="The data folder of the server or node.")
]
File = Annotated[
    Path | None,
    typer.Option(
        "--access-file",
        metavar="FILE",
        envvar="EVENTSTORE_ACCESS_FILE",
        help="The access list, if it is not in the data folder.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the identity.")]


@access.command()
def add(
    name: Name,
    grants: Annotated[
        list[str] | None,
        typer.Option("--grant", metavar="WHAT[:PREFIX]", help="A role or permission, on names with a prefix; several times."),
    ] = None,
    token: Annotated[
        bool | None,
        typer.Option("--token/--no-token", help="Make a token, which is printed once. [if it is new, without a certificate]"),
    ] = None,
    days: Annotated[
        int | None, typer.Option("--days", metavar="N", min=0, help="How long the token is valid. [for ever]")
    ] = None,
    certificates: Annotated[
        list[str] | None,
        typer.Option(
            "--certificate", metavar="SUBJECT", help="The subject of a certificate, such as CN=billing; several times."
        ),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=N",
            help="The limit of connections, requests (in flight) or bytes_a_second; 0: none; several times.",
        ),
    ] = None,
    data: Data = _DATA,
    file: File = None,
) -> None:
    """Add an identity, or add grants, a token, certificates or limits to an identity.

    Roles: reader, writer, operator, admin. Permissions: append, read, subscribe, command, park, send, consume, join, topics,
    groups, reactions, timers, subjects, erase, alarms, backup, stats, cluster. A server applies the change within a second; it
    applies the first identity from its next start on.

    \b
    Example:
      eventstore access add billing --grant writer:invoice- --grant read:customer-
      eventstore access add node-1 --grant cluster --certificate CN=node-1
    """
    from dataclasses import replace
    from datetime import UTC, datetime, timedelta

    from eventstore.cli.terminal.etcd_options import claimed
    from eventstore.errors import InvalidArgument
    from eventstore.security.access_list import Identity, editing, granted, limits_of, write_access
    from eventstore.security.subjects import parsed_subject
    from eventstore.security.tokens import new_token

    subjects = [parsed_subject(each) for each in certificates or ()]
    path = _path(data, file)
    secret, now = None, datetime.now(UTC)
    with editing(path) as known:
        is_new = name not in known.identities
        makes_token = is_new and not certificates if token is None else token
        if days is not None and not makes_token:
            raise InvalidArgument("--days is for a token, and none is made; add --token", field="days", value=days)
        before = known.identities.get(name, Identity(name))
        identity = granted(before, tuple(grants or ()))
        identity = replace(identity, certificates=tuple(dict.fromkeys((*identity.certificates, *subjects))))
        changed = {**_limits(identity), **_parsed(limits or [])}
        identity = replace(identity, limits=limits_of({key: value for key, value in changed.items() if value}))
        if makes_token:
            expires = None if days is None else now + timedelta(days=days)
            secret, token_id, stored = new_token(now, expires)
            identity = replace(identity, tokens={**identity.tokens, token_id: stored})
        write_access(path, known.with_(identity), known, claimed(None))
    print_note(f"{name} is in {path}: {', '.join(identity.written) or 'it may do nothing yet'}")
    if secret is not None:
        print_note("this is its token; it is not shown again:")
        print(secret)
    elif token is None and not certificates:
        print_note("no token was made, because the identity was there before; --token makes one")


@access.command("list")
def list_(as_json: AsJson = False, data: Data = _DATA, file: File = None) -> None:
    """List the identities, what they may do, and the ids of their tokens."""
    from datetime import UTC, datetime

    from eventstore.fields import escaped
    from eventstore.security.access_list import AccessList, read_access

    path, now = _path(data, file), datetime.now(UTC)
    known = read_access(path) if path.exists() else AccessList({})
    found = known.identities.values()
    rows = [
        {
            "name": each.name,
            "grants": list(each.written),
            "tokens": _token_texts(each, now),
            "certificates": list(each.certificates),
            "limits": _limits(each),
        }
        for each in sorted(found, key=lambda each: each.name)
    ]
    for each in (*known.ambiguous, *known.of_everything):
        print_note(escaped(each))
    if as_json:
        print_json(rows)
    elif not rows:
        print_note(f"no identity is in {path}; `eventstore access add` makes one, --data names the folder of another server")
    else:
        columns = ("name", "grants", "tokens", "certificates", "limits")
        print_table(None, columns, [[_shown(row[name]) for name in columns] for row in rows])


@access.command()
def revoke(
    name: Name,
    token: Annotated[str | None, typer.Option("--token", metavar="ID", help="Only this token, by its id.")] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="SUBJECT", help="Only this certificate, by its subject.")
    ] = None,
    data: Data = _DATA,
    file: File = None,
) -> None:
    """Remove an identity, or only one of its tokens or certificates. Connections that used it end within a second."""
    from dataclasses import replace

    from eventstore.cli.terminal.etcd_options import claimed
    from eventstore.errors import InvalidArgument
    from eventstore.fields import shown
    from eventstore.security.access_list import editing, write_access
    from eventstore.security.subjects import parsed_subject

    path = _path(data, file)
    with editing(path) as known:
        identity = known.identities.get(name)
        if certificate is not None and identity is not None and certificate not in identity.certificates:
            certificate = parsed_subject(certificate)
        what = None
        if identity is None:
            what = f"identity {shown(name)}"
        elif token is not None and token not in identity.tokens:
            what = f"token {shown(token)} of {shown(name)}"
        elif certificate is not None and certificate not in identity.certificates:
            what = f"certificate {shown(certificate)} of {shown(name)}"
        if identity is None or what is not None:
            raise InvalidArgument(f"there is no {what}; `eventstore access list` shows all", field="name", value=name)
        if token is None and certificate is None:
            write_access(path, known.without(name), known, claimed(None))
        else:
            tokens = {key: each for key, each in identity.tokens.items() if key != token}
            subjects = tuple(each for each in identity.certificates if each != certificate)
            left = replace(identity, tokens=tokens, certificates=subjects)
            write_access(path, known.with_(left), known, claimed(None))
    if token is not None:
        print_line(f"token {token} of {name} was removed")
    if certificate is not None:
        print_line(f"certificate {certificate} of {name} was removed")
    if token is None and certificate is None:
        print_line(f"{name} was removed")


@access.command()
def check(
    name: Name,
    permission: Annotated[str, typer.Argument(metavar="PERMISSION", help="Such as append.")],
    on: Annotated[str, typer.Argument(metavar="[ON]", help="An aggregate id, topic, group or type. [everything]")] = "",
    data: Data = _DATA,
    file: File = None,
) -> None:
    """Say whether an identity may do something; exit code 1 if not."""
    from eventstore.errors import InvalidArgument
    from eventstore.fields import RESERVED
    from eventstore.security.access_list import read_access
    from eventstore.security.permissions import Permission

    path = _path(data, file)
    identity = read_access(path).identities.get(name) if path.exists() else None
    if identity is None:
        raise InvalidArgument(f"there is no identity {name!r}; `eventstore access list` shows all", field="name", value=name)
    try:
        wanted = Permission(permission)
    except ValueError:
        known = ", ".join(Permission)
        raise InvalidArgument(f"there is no permission {permission!r}; there are {known}", field="permission") from None
    allowed, why = identity.grants.allows(wanted, on), ""
    if wanted is Permission.APPEND and on.startswith(RESERVED):
        allowed, why = False, f": ids that begin with {RESERVED} are the server's own"
    print_line(f"{name} {'may' if allowed else 'may not'} {permission} {on or 'everything'}{why}")
    if not allowed:
        raise typer.Exit(1)


def _path(data: Path, file: Path | None) -> Path:
    from eventstore.security.access_list import ACCESS

    return data / ACCESS if file is None else file


def _parsed(texts: list[str]) -> dict[str, int]:
    from eventstore.errors import InvalidArgument
    from eventstore.fields import read_number, shown

    found: dict[str, int] = {}
    for text in texts:
        name, _, given = text.partition("=")
        number = read_number(given)
        if number is None:
            raise InvalidArgument(f"--limit {shown(text)} is not of the form NAME=N", field="limit", value=shown(text))
        found[name.replace("-", "_")] = number
    return found


def _limits(identity: Identity) -> dict[str, int]:
    from dataclasses import asdict

    return {name: value for name, value in asdict(identity.limits).items() if value is not None}


def _token_texts(identity: Identity, now: datetime) -> list[str]:
    return [
        key if each.expires is None else f"{key} until {each.expires:%Y-%m-%d}" if each.is_valid(now) else f"{key} expired"
        for key, each in identity.tokens.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
