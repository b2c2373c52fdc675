"""Who may connect, and do what: a document that names identities, with their tokens, certificates, grants and limits.

It is replaced as a whole, so that a crash leaves the old one or the new one. An editor holds a lock meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue, Tree, read_tree, write_document
from eventstore.chunks.files import OsFiles
from eventstore.errors import Corrupt, EventStoreError, FolderRefused, InvalidArgument
from eventstore.fields import check_int, check_text, escaped, shown
from eventstore.security.permissions import Grants
from eventstore.security.roles import WHOLE, parse_grants
from eventstore.security.subjects import Shown
from eventstore.security.tokens import StoredToken, find_token
from eventstore.store.data_folder import ACCESS as ACCESS

FORMAT: Final = 1
_LIMITS: Final = ("connections", "requests", "bytes_a_second")
_LIMIT_MAX: Final = 2**62
BYTES_MAX: Final = 16 * 1024 * 1024
_SUBJECT_SHOWN: Final = 500  # characters: one with a certificate of 100 KB must not fill log and audit trail
_NAMED_MAX: Final = 10
_BY_MAX: Final = 200  # characters


@dataclass(frozen=True, slots=True)
class IdentityLimits:
    """What all connections of an identity may take together; None: no limit of its own."""

    connections: int | None = None
    requests: int | None = None
    bytes_a_second: int | None = None


UNLIMITED: Final = IdentityLimits()


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who may connect.

    Attributes:
        written: its grants, as they were written.
        certificates: the subjects of its certificates.
    """

    name: str
    written: tuple[str, ...] = ()
    tokens: Mapping[str, StoredToken] = field(default_factory=dict)
    certificates: tuple[str, ...] = ()
    limits: IdentityLimits = UNLIMITED
    grants: Grants = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        check_text("name", self.name)
        if not self.name.isprintable():
            raise InvalidArgument("the name of an identity has printable characters only", field="name", value=ascii(self.name))
        object.__setattr__(self, "grants", parse_grants(self.written))


@dataclass(frozen=True, slots=True)
class Credential:
    """How a connection proved who it is.

    Attributes:
        token: the token's id.
        subject: of a certificate.
        expires: when the certificate expires, also beside a token.
    """

    token: str | None = None
    subject: str | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Who made a list of another, as it claims.

    Attributes:
        by: who.
        before: the digest of the list before, because a file is also edited by hand.
        after: the digest of the list after.
    """

    by: str
    before: str
    after: str


class AccessList:
    """All identities; never changed.

    Attributes:
        edit: the last one, if it is known.
    """

    def __init__(self, identities: Mapping[str, Identity], edit: Edit | None = None) -> None:
        """Indexes identities by token and certificate. A certificate that several identities have proves none of them."""
        self.identities, self.edit = dict(identities), edit
        self._tokens = {key: token for each in identities.values() for key, token in each.tokens.items()}
        self._by_token = {key: each for each in identities.values() for key in each.tokens}
        self._by_subject: dict[str, list[Identity]] = {}
        for each in identities.values():
            for subject in dict.fromkeys(each.certificates):
                self._by_subject.setdefault(subject, []).append(each)

    @property
    def ambiguous(self) -> list[str]:
        """A sentence for each certificate that several identities have, with what to do: only a list edited by hand has one."""
        return [self._ambiguity(subject) for subject, having in self._by_subject.items() if len(having) > 1]

    @property
    def of_everything(self) -> list[str]:
        """A sentence for each grant with an empty prefix, which is every name, with what to do: only an earlier version, or an
        editor, wrote one.
        """
        found = [
            (each.name, grant[:-1]) for each in self.identities.values() for grant in each.written if has_empty_prefix(grant)
        ]
        return [
            f"{name} has the grant {what + ':'!r}, with nothing after the colon, so it is for every name: "
            f"`eventstore access add {name} --grant {what}:PREFIX` limits it, `--grant {what}` says that all is meant"
            for name, what in found
            if what not in WHOLE
        ]

    def _ambiguity(self, subject: str) -> str:
        names = " and ".join(each.name for each in self._by_subject[subject][:_NAMED_MAX])
        return (
            f"the certificate {cut_subject(subject)} is of {names}, so it lets no one in: take it from all but one of them "
            "(`eventstore access revoke NAME --certificate SUBJECT`)"
        )

    def credential(self, token: str | None, certificate: Shown | None) -> Credential:
        """Returns the proof of who it is; a token comes before a certificate. It may prove nothing."""
        expires = None if certificate is None else certificate.expires
        if token is not None:
            return Credential(find_token(token, self._tokens), None, expires)
        return Credential(None, None if certificate is None else certificate.subject, expires)

    def identity(self, proof: Credential, now: datetime) -> Identity | None:
        """Returns the identity; None: unknown, or no longer valid."""
        if proof.expires is not None and proof.expires <= now:
            return None
        if proof.token is not None:
            stored = self._tokens.get(proof.token)
            return self._by_token[proof.token] if stored is not None and stored.is_valid(now) else None
        if proof.subject is None:
            return None
        having = self._by_subject.get(proof.subject, ())
        return having[0] if len(having) == 1 else None

    def refusal(self, token: str | None, proof: Credential, now: datetime) -> str:
        """Returns why `identity` found none for this proof: for operators, never for the client."""
        if token is not None and proof.token is None:
            return "an unknown token"
        if proof.expires is not None and proof.expires <= now:
            return "a certificate that has expired"
        if proof.token is not None:
            return f"token {proof.token} of {self._by_token[proof.token].name} has expired"
        if proof.subject is None:
            return "no token or certificate"
        if not proof.subject:
            return "a certificate without a subject, by which alone identities are known"
        if proof.subject in self._by_subject:
            return self._ambiguity(proof.subject)
        return f"no identity has the certificate {cut_subject(proof.subject)}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole list, by which the audit trail tells whether it is the same."""
        trees = {each.name: _tree_of(each) for each in self.identities.values()}
        return hashlib.sha256(json.dumps(trees, sort_keys=True).encode()).hexdigest()

    def with_(self, identity: Identity) -> AccessList:
        """Returns the list with an identity added, or in place of the identity of that name.

        Raises:
            InvalidArgument: it gets a certificate that another identity has.
        """
        before = self.identities.get(identity.name)
        for subject in identity.certificates:
            other = next((each for each in self._by_subject.get(subject, ()) if each.name != identity.name), None)
            if other is not None and (before is None or subject not in before.certificates):
                raise InvalidArgument(
                    f"the certificate {escaped(subject)} is of {other.name}, so it cannot be of {identity.name} as well: "
                    f"take it from that one first (`eventstore access revoke {other.name} --certificate SUBJECT`)",
                    field="certificate",
                    value=subject,
                )
        return AccessList({**self.identities, identity.name: identity})

    def without(self, name: str) -> AccessList:
        return AccessList({key: each for key, each in self.identities.items() if key != name})


def read_access(path: Path) -> AccessList:
    """Returns the list in a file.

    Raises:
        Corrupt: it is not such a list; the message says where.
        FolderRefused: it is of a newer format, names a permission that this version does not know, or cannot be read.
        FileNotFoundError
    """
    try:
        if path.stat().st_size > BYTES_MAX:
            raise FolderRefused(str(path), f"has more than {BYTES_MAX} bytes")
        tree = read_tree(OsFiles(), path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FolderRefused(str(path), f"cannot be read ({error.strerror}); check owner and mode") from None
    if tree.get("format") != FORMAT:
        raise FolderRefused(str(path), f"format {tree.get('format')}; this program knows format {FORMAT}")
    found: dict[str, Identity] = {}
    try:
        for name, each in _members(tree.get("identities")).items():
            found[name] = _identity(name, _members(each))
    except (EventStoreError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, InvalidArgument) and error.fields.get("field") == "grant":  # a newer version may have written it
            why = f"identity {len(found) + 1}: {error.message}; if a newer version has it, upgrade this program first"
            raise FolderRefused(str(path), why) from None
        raise Corrupt(str(path), 0, f"identity {len(found) + 1}: {error}; the previous copy is {path.name}.previous") from None
    return AccessList(found, _edit(tree.get("edit")))


def _edit(value: object) -> Edit | None:
    """Returns what a file says of its last edit; None if it does not say it in the right form."""
    found = [value.get(each) for each in ("by", "before", "after")] if isinstance(value, dict) else []
    texts = [each for each in found if isinstance(each, str) and len(each) <= _BY_MAX]
    return Edit(*texts) if len(texts) == 3 else None


def cut_subject(subject: str) -> str:
    return subject if len(subject) <= _SUBJECT_SHOWN else f"{subject[:_SUBJECT_SHOWN]}…"


def _members(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is missing")
    return value


def _identity(name: str, members: dict[str, Any]) -> Identity:
    tokens = {
        key: StoredToken(
            bytes.fromhex(each["salt"]),
            bytes.fromhex(each["hash"]),
            _time(each["created"]),
            None if each.get("expires") is None else _time(each["expires"]),
        )
        for key, each in _members(members.get("tokens", {})).items()
    }
    return Identity(
        name,
        tuple(str(each) for each in members.get("grants", ())),
        tokens,
        tuple(str(each) for each in members.get("certificates", ())),
        limits_of(_members(members.get("limits", {}))),
    )


def limits_of(given: Mapping[str, int | None]) -> IdentityLimits:
    """Returns the limits by their names. Raises InvalidArgument."""
    unknown = sorted(given.keys() - set(_LIMITS))
    if unknown:
        raise InvalidArgument(
            f"there is no limit {unknown[0]!r}; there are {', '.join(_LIMITS)}", field="limit", value=unknown[0]
        )
    return IdentityLimits(**{name: check_int(name, value, 1, _LIMIT_MAX) for name, value in given.items() if value is not None})


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def write_access(path: Path, access: AccessList, before: AccessList | None = None, by: str = "") -> None:
    """Replaces the list in a file; durable on return. `by`: who made it of the one `before`. Raises OSError."""
    identities: dict[str, DocumentValue] = {each.name: _tree_of(each) for each in access.identities.values()}
    document: dict[str, DocumentValue] = {"format": FORMAT, "identities": identities}
    if before is not None:
        document["edit"] = {"by": by, "before": before.digest, "after": access.digest}
    write_document(OsFiles(group=False), path, document)


def _tree_of(identity: Identity) -> Tree:
    tokens: dict[str, DocumentValue] = {
        key: {
            "salt": each.salt.hex(),
            "hash": each.digest.hex(),
            "created": each.created.isoformat(),
            "expires": None if each.expires is None else each.expires.isoformat(),
        }
        for key, each in identity.tokens.items()
    }
    limits = {name: getattr(identity.limits, name) for name in _LIMITS if getattr(identity.limits, name) is not None}
    return {
        "grants": list(identity.written),
        "tokens": tokens,
        "certificates": list(identity.certificates),
        "limits": limits,
    }


@contextmanager
def editing(path: Path) -> Iterator[AccessList]:
    """Yields the list in the file, or an empty one, while no other process edits it.

    Raises:
        Corrupt: it is not such a list; the message says where.
        FolderRefused: it is of a newer format, names a permission that this version does not know, or cannot be read; or
            another process edits it.
    """
    OsFiles().make_folder(path.parent)
    lock = OsFiles().lock(path.with_name(path.name + ".lock"))
    try:
        yield read_access(path) if path.exists() else AccessList({})
    finally:
        lock.release()


def granted(identity: Identity, written: tuple[str, ...]) -> Identity:
    """Returns the identity with more grants. If it has a grant with nothing after its colon, as an earlier version wrote it, a
    new grant of the same role or permission replaces it.

    Raises:
        InvalidArgument: a grant names no role or permission, or ends with its colon: an empty prefix would be every name. (An
            old list that has such a grant is read all the same, because a server could not start otherwise.)
    """
    parse_grants(written)  # what is not known must not be recommended
    for each in written:
        if has_empty_prefix(each):
            what = each[:-1]
            instead = f"write {what!r}, which no prefix limits"
            if what not in WHOLE:
                instead = f"add the prefix, or write {what!r} if everything is meant"
            raise InvalidArgument(f"--grant {shown(each)} has nothing after the colon: {instead}", field="grant", value=each)
    replaced = {f"{each.partition(':')[0]}:" for each in written}
    kept = [each for each in identity.written if each not in replaced]
    return replace(identity, written=tuple(dict.fromkeys((*kept, *written))))


def has_empty_prefix(grant: str) -> bool:
    """Whether nothing is after the colon of a grant."""
    _, colon, prefix = grant.partition(":")
    return bool(colon) and not prefix
