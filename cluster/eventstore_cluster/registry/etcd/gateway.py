"""Requests to etcd's JSON gateway, with several endpoints: if one does not answer, the next is asked.

A request that was certainly not sent goes to the next endpoint. A request that may have been sent goes there too if it only
reads; if it changes something, it is `OutcomeUnknown`.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from eventstore.errors import InvalidArgument
from eventstore_cluster.registry.etcd.clock import ClockDifference
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.replica.registry_state import ASKED_BY_MAX

BODY_BYTES_MAX: Final = 1_500_000
"""etcd refuses requests of 1.5 MiB; base64 is a third longer than what it stands for, so this is on the safe side."""
_UNAUTHENTICATED: Final = 16
_PASSING: Final = frozenset({4, 14})  # deadline exceeded, unavailable: no leader, no quorum, or too slow
_TOKEN_WORDS: Final = ("invalid auth token", "user name is empty")
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

logging.getLogger("httpx").setLevel(logging.WARNING)  # otherwise it logs each request


class Gateway:
    """The connection to etcd. Open with `async with`.

    Attributes:
        clock: how far this machine's clock is from etcd's, by its answers.
        by: who asks (see `EtcdOptions`).
    """

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self.by: Final = options.by[:ASKED_BY_MAX]
        self._first = 0
        self._token: str | None = None
        self.clock = ClockDifference()
        self._http = httpx.AsyncClient(verify=_tls(options), timeout=options.request_timeout_s, trust_env=False)

    async def __aenter__(self) -> Gateway:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def call(self, path: str, body: Mapping[str, Any], *, changes: bool = False) -> dict[str, Any]:
        """Returns the answer. `changes`: the request is not repeated once it may have been sent.

        Raises:
            RegistryUnavailable, OutcomeUnknown, RegistryRefused, InvalidArgument
        """
        content = json.dumps(body).encode()
        if len(content) > BODY_BYTES_MAX:
            limit = f"a request of {len(content)} bytes, allowed are {BODY_BYTES_MAX}"
            raise InvalidArgument(f"{limit}; write fewer keys at once", field="body", limit=BODY_BYTES_MAX)
        failures = []
        for endpoint in self._in_turn():
            try:
                return await self._authenticated(endpoint, path, content)
            except _NOT_SENT as error:
                failures.append(f"{endpoint}: {_cause(error)}")
            except (httpx.TransportError, _Passing) as error:
                failures.append(f"{endpoint}: {_cause(error)}")
                if changes:
                    raise OutcomeUnknown(f"the answer of etcd was lost ({failures[-1]})") from error
            self._first += 1
        raise RegistryUnavailable(f"etcd does not answer: {'; '.join(failures)}. Check that a quorum of it runs")

    async def call_one(self, attempt: int, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer of one endpoint. Each `attempt` asks another one; later calls begin with the endpoint that
        answered.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        at = self._first + attempt
        endpoint = self._options.endpoints[at % len(self._options.endpoints)]
        try:
            answer = await self._authenticated(endpoint, path, json.dumps(body).encode())
        except (httpx.TransportError, _Passing) as error:
            raise RegistryUnavailable(f"etcd does not answer: {endpoint}: {_cause(error)}") from error
        if attempt:
            self._first = at
        return answer

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """Sends a request whose answers come as lines, until the block is left.

        Raises:
            RegistryUnavailable: the stream cannot be opened.
        """
        endpoint = self._in_turn()[0]
        request = self._http.stream(
            "POST",
            endpoint + path,
            content=json.dumps(body).encode(),
            headers=await self._headers(endpoint),
            timeout=httpx.Timeout(self._options.request_timeout_s, read=None),
        )
        try:
            async with request as response:
                yield response.aiter_lines()
        except httpx.TransportError as error:
            self._first += 1
            raise RegistryUnavailable(f"{endpoint}: {_cause(error)}") from error

    def _in_turn(self) -> list[str]:
        endpoints = self._options.endpoints
        first = self._first % len(endpoints)
        return [*endpoints[first:], *endpoints[:first]]

    async def _authenticated(self, endpoint: str, path: str, content: bytes) -> dict[str, Any]:
        """Sends the request; once more with a new token if etcd no longer knows this one."""
        used = await self._headers(endpoint)
        try:
            return await self._post(endpoint, path, content, used)
        except RegistryRefused as error:
            stale = error.status == _UNAUTHENTICATED or any(word in error.message for word in _TOKEN_WORDS)
            if self._options.user is None or not stale:
                raise
        self._token = None
        return await self._post(endpoint, path, content, await self._headers(endpoint))

    async def _headers(self, endpoint: str) -> dict[str, str]:
        if self._options.user is None:
            return {}
        if self._token is None:
            asked = json.dumps({"name": self._options.user, "password": self._options.password or ""}).encode()
            self._token = str((await self._post(endpoint, "/v3/auth/authenticate", asked, {}))["token"])
        return {"Authorization": self._token}

    async def _post(self, endpoint: str, path: str, content: bytes, headers: dict[str, str]) -> dict[str, Any]:
        sent = time.time()
        response = await self._http.post(endpoint + path, content=content, headers=headers)
        self.clock.note(sent, response.headers.get("date"), time.time())
        try:
            answer = response.json()
        except ValueError:
            answer = {"error": f"status {response.status_code} without JSON: is this an etcd of version 3.4 or newer?"}
        if response.is_success and isinstance(answer, dict):
            return answer
        text, code = (str(answer.get("error")), answer.get("code")) if isinstance(answer, dict) else (str(answer), None)
        if code in _PASSING:
            raise _Passing(text)
        raise RegistryRefused(f"etcd at {endpoint} refused: {text}", status=code)


class _Passing(Exception):
    """etcd answered that it cannot serve the request now."""


def _cause(error: BaseException) -> str:
    """Returns what the innermost error says. Outer errors may say nothing, as with a certificate, or are a group of one."""
    while (inner := _inner(error)) is not None:
        error = inner
    return str(error) or type(error).__name__


def _inner(error: BaseException) -> BaseException | None:
    return error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__


def _tls(options: EtcdOptions) -> ssl.SSLContext | bool:
    if options.ca is None and options.cert is None:
        return True
    context = ssl.create_default_context(cafile=options.ca)
    if options.cert is not None:
        context.load_cert_chain(options.cert, options.key)
    return context
