"""The visitors of the console, and the clients of the HTTP API. Each has a connection to the store with a token of its own, so
that the server checks every request like any client's.

If identities are off, there is one visitor, who may do everything. A connection ends when it was not used for a while.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.console.shares import gives_way
from eventstore.console.subject import Subject
from eventstore.errors import EventStoreError, Unauthenticated
from eventstore.security.permissions import EVERYTHING, Permission

if TYPE_CHECKING:
    from eventstore.security.access_list import Identity

VISITORS_MAX: Final = 1_000
VISITORS_EACH_MAX: Final = 20
"""Of one identity; with one more, its oldest visitor is signed out."""
SIGNED_IN_S: Final = 12 * 3600.0
"""After this time a visitor must sign in again."""
_IDLE_S: Final = 60.0
_ID_BYTES: Final = 32
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Visitor:
    """A visitor.

    Attributes:
        name: of the identity; None: identities are off.
        csrf: what each form has to bring back.
    """

    name: str | None
    token: str | None = field(repr=False)
    until: float
    csrf: str = field(default_factory=partial(secrets.token_urlsafe, _ID_BYTES), repr=False)
    address: str = ""
    store: NetworkStore | None = None
    used: float = 0.0
    users: int = 0
    opening: trio.Lock = field(default_factory=trio.Lock)
    closing: trio.CancelScope | None = None

    def sent(self, csrf: str) -> bool:
        """Whether a form was made for this visitor."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())


class Visitors:
    """All visitors of a console, by the id in their cookie. Not to be used before `run`."""

    def __init__(self, subject: Subject, title: str = "console") -> None:
        """`title`: what the server's log calls their connections."""
        self._subject, self._title = subject, title
        self._signed_in: dict[str, Visitor] = {}
        self._anyone = Visitor(None, None, float("inf"))
        self._nursery: trio.Nursery | None = None

    @property
    def need_tokens(self) -> bool:
        """Whether identities are on."""
        return self._subject.identity_of is not None

    def find(self, cookie: str | None) -> Visitor | None:
        """Returns the visitor who has this cookie; None: no one, or not any more."""
        if not self.need_tokens:
            return self._anyone
        found = self._signed_in.get(cookie or "")
        if found is None or found.until < trio.current_time() or self._identity(found) is None:
            return None
        return found

    def bearer(self, token: str | None, address: str) -> Visitor:
        """Returns the visitor of a token that each request brings. If an identity then has as many as it may, its oldest one
        is signed out.

        Raises:
            Unauthenticated: no identity has this token.
            Overloaded: too many are signed in, each as another identity.
        """
        if not self.need_tokens:
            return self._anyone
        if (found := self.find(token)) is not None:
            return found
        visitor = Visitor(None, token, float("inf"), address=address)
        if token is None or (identity := self._identity(visitor)) is None:
            raise _unknown()
        visitor.name = identity.name
        self._admit_as(token, visitor)
        return visitor

    def may(self, visitor: Visitor, permission: Permission, name: str = EVERYTHING) -> bool:
        """Whether the server would permit it; used to decide what a page offers. The server checks each request anyway."""
        if visitor.token is None:
            return True
        identity = self._identity(visitor)
        return identity is not None and identity.grants.allows(permission, name)

    def _identity(self, visitor: Visitor) -> Identity | None:
        assert self._subject.identity_of is not None
        assert visitor.token is not None
        return self._subject.identity_of(visitor.token)

    async def sign_in(self, token: str, address: str, instead_of: str | None = None) -> tuple[str, Visitor]:
        """Returns the cookie of a visitor with this token.

        `instead_of`: the cookie that its browser had; that visitor is signed out. If an identity then has as many visitors as
        it may, its oldest is signed out.

        Raises:
            Unauthenticated: no identity has it; the server says so after a while.
            Overloaded: too many are signed in, each as another identity.
        """
        visitor = Visitor(None, token, trio.current_time() + SIGNED_IN_S, address=address)
        await self.ask(visitor, lambda store: store.cluster_map())
        try:
            return self._admit(visitor, instead_of), visitor
        except EventStoreError:
            self._end(visitor)
            raise

    def _admit(self, visitor: Visitor, instead_of: str | None) -> str:
        """Returns the cookie of a visitor whose token the server has let in. Waits for nothing, so that any number who sign in
        at the same moment are within the limits.
        """
        identity = self._identity(visitor)
        if identity is None:  # revoked in between
            raise _unknown()
        visitor.name = identity.name
        self.sign_out(instead_of)
        cookie = secrets.token_urlsafe(_ID_BYTES)
        self._admit_as(cookie, visitor)
        return cookie

    def _admit_as(self, cookie: str, visitor: Visitor) -> None:
        self._forget_old()
        held = {cookie: each.name for cookie, each in self._signed_in.items()}
        self.sign_out(
            gives_way(
                held,
                visitor.name,
                each_max=VISITORS_EACH_MAX,
                all_max=VISITORS_MAX,
                what="visitors are signed in",
            )
        )
        self._signed_in[cookie] = visitor

    def sign_out(self, cookie: str | None) -> None:
        """Forgets a visitor."""
        found = self._signed_in.pop(cookie or "", None)
        if found is not None:
            self._end(found)

    @staticmethod
    def _end(visitor: Visitor) -> None:
        visitor.until = 0.0
        if visitor.closing is not None:
            visitor.closing.cancel()

    def _forget_old(self) -> None:
        now = trio.current_time()
        for cookie, each in list(self._signed_in.items()):
            if each.until < now or self._identity(each) is None:
                self.sign_out(cookie)

    async def ask(self, visitor: Visitor, question: Callable[[NetworkStore], Awaitable[T]]) -> T:
        """Asks the store on the visitor's connection, which is opened if there is none.

        Raises:
            Unauthenticated: the visitor is signed out, which ends open pages as well.
            EventStoreError
        """
        if visitor.until < trio.current_time():
            raise Unauthenticated("you are signed out; sign in again")
        visitor.users += 1
        try:
            return await question(await self._connected(visitor))
        finally:
            visitor.users -= 1
            visitor.used = trio.current_time()

    async def _connected(self, visitor: Visitor) -> NetworkStore:
        async with visitor.opening:
            if visitor.store is None:
                assert self._nursery is not None, "the console runs"
                await self._nursery.start(self._hold, visitor)
            assert visitor.store is not None
            return visitor.store

    async def _hold(self, visitor: Visitor, *, task_status: trio.TaskStatus[None]) -> None:
        """Keeps a connection open while it is used. An error before it is open is raised to the caller that wants it."""
        options = self._subject.options(visitor.token, f"{self._title} {visitor.address}".strip())
        started = False
        try:
            async with NetworkStore(self._subject.address, options) as store:
                with trio.CancelScope() as visitor.closing:
                    visitor.store, visitor.used = store, trio.current_time()
                    task_status.started()
                    started = True
                    await _until_idle(visitor)
        except* EventStoreError as failed:
            if not started:
                raise first_error(failed) from None
        finally:
            visitor.store = visitor.closing = None

    async def run(self) -> None:
        """Keeps the connections, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()


def _unknown() -> Unauthenticated:
    return Unauthenticated("this server lets in known clients only: give a valid token or certificate")


async def _until_idle(visitor: Visitor) -> None:
    while True:
        rest = _IDLE_S if visitor.users else visitor.used + _IDLE_S - trio.current_time()
        if rest <= 0:
            return
        await trio.sleep(rest)


def first_error(group: BaseExceptionGroup[EventStoreError]) -> EventStoreError:
    """Returns an error out of a group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, EventStoreError)
    return found
