"""Keys of one cluster in etcd: read at one revision, changed by transactions that compare revisions, watched.

Each key of etcd is `/eventstore/CLUSTER/KEY`, its value JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import trio

from eventstore.chunks.documents import Tree
from eventstore.errors import Corrupt, EventStoreError, InvalidArgument
from eventstore_cluster.registry.etcd.errors import RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.registry import Changes, RegistryEntry, RegistrySnapshot

OPERATIONS_MAX: Final = 128
"""Comparisons, and changes, of one transaction; etcd's own limit of either."""
NAMED_MAX: Final = 32
"""The most clusters of an etcd whose names are looked at."""
FEW_MAX: Final = 128
"""The most keys that are read by one request though only some are wanted: each request costs what 100 more keys do."""
SILENCE_S: Final = 3.0
"""A watch is only a hint: after such a silence the keys are read."""
_LEASE_GONE: Final = 5
_ROOT: Final = "/eventstore/"
_NAME_LENGTH_MAX: Final = 100


class EtcdRegistry:
    """The keys of the cluster `name`.

    Attributes:
        by: who asks for what is written with it (see `EtcdOptions`).
    """

    def __init__(self, gateway: Gateway, name: str) -> None:
        if not name or len(name) > _NAME_LENGTH_MAX or "/" in name or not name.isprintable():
            raise InvalidArgument(
                f"{name!r:.200} is not the name of a cluster, which has 1 to {_NAME_LENGTH_MAX} printable characters and no /",
                field="name",
                limit=_NAME_LENGTH_MAX,
            )
        self.name = name
        self.by = gateway.by
        self._gateway = gateway
        self._prefix = f"{_ROOT}{name}/"
        self._may_be_few = True

    async def read(self) -> RegistrySnapshot:
        """Returns all keys: a linearizable read.

        Raises:
            RegistryUnavailable, RegistryRefused
            Corrupt: a value is not JSON: something else writes under the prefix.
        """
        answer = await self._gateway.call("/v3/kv/range", self._range())
        return RegistrySnapshot(_revision(answer), self._entries(answer.get("kvs", ())))

    async def clusters(self, key: str) -> list[str]:
        """Returns the names of the clusters in this etcd that have this key, of the first `NAMED_MAX` by name.

        Raises:
            RegistryUnavailable
            RegistryRefused: this user may not read keys of other clusters.
        """
        found: list[str] = []
        first, end = _ROOT, f"{_ROOT[:-1]}0"  # the character after /
        for _ in range(NAMED_MAX):
            answer = await self._gateway.call(
                "/v3/kv/range", {"key": _text(first), "range_end": _text(end), "limit": "1", "keys_only": True}
            )
            if not (keys := answer.get("kvs")):
                break
            name = base64.b64decode(keys[0]["key"]).decode(errors="replace").removeprefix(_ROOT).partition("/")[0]
            whole = await self._gateway.call("/v3/kv/range", {"key": _text(f"{_ROOT}{name}/{key}"), "count_only": True})
            found += [name] if int(whole.get("count", 0)) else []
            first = f"{_ROOT}{name}0"
        return found

    async def read_some(
        self, first: str, *keys: str, under: Iterable[str], known: RegistrySnapshot | None = None
    ) -> RegistrySnapshot:
        """Returns the named keys, and all keys that begin with one of `under`, as far as they exist, at one revision: a
        linearizable read. `known`: an earlier result for the same keys; returned if etcd's revision is still the same.

        If the cluster has few keys, all are read, by one request. Otherwise each key is a request of its own, at the revision
        of the first one, and not all one transaction: an etcd 3.5.0 to 3.5.4 ends if the client of a transaction that only
        reads goes away (etcd's issue 14110).

        Raises:
            RegistryUnavailable
            RegistryRefused: also if the revision was compacted away meanwhile.
            Corrupt: a value is not JSON: something else writes under the prefix.
        """
        under = tuple(under)
        if self._may_be_few and (keys or under):
            answer = await self._gateway.call("/v3/kv/range", {**self._range(), "limit": str(FEW_MAX)})
            self._may_be_few = not answer.get("more")
            if self._may_be_few:
                return self._some_of(answer, {first, *keys}, under, known)
        answer = await self._gateway.call("/v3/kv/range", {"key": self._key(first)})
        revision, found = _revision(answer), list(answer.get("kvs", ()))
        if known is not None and revision == known.revision:
            return known
        ranges = [{"key": self._key(key)} for key in keys] + [self._range(each) for each in under]
        for each in await self._at_once([{**one, "revision": str(revision)} for one in ranges]):
            found += each.get("kvs", ())
        return RegistrySnapshot(revision, self._entries(found))

    def _some_of(
        self, answer: Mapping[str, Any], keys: Collection[str], under: tuple[str, ...], known: RegistrySnapshot | None
    ) -> RegistrySnapshot:
        revision = _revision(answer)
        if known is not None and revision == known.revision:
            return known
        found = ((base64.b64decode(each["key"]).decode().removeprefix(self._prefix), each) for each in answer.get("kvs", ()))
        return RegistrySnapshot(revision, self._entries(each for key, each in found if key in keys or key.startswith(under)))

    async def _at_once(self, ranges: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Returns the answers, in any order; raises the first error."""
        answers: list[dict[str, Any]] = []
        errors: list[EventStoreError] = []
        async with trio.open_nursery() as nursery:

            async def ask(one: Mapping[str, str]) -> None:
                try:
                    answers.append(await self._gateway.call("/v3/kv/range", one))
                except EventStoreError as error:  # the others end by themselves: none takes longer than one alone
                    errors.append(error)

            for one in ranges:
                nursery.start_soon(ask, one)
        if errors:
            raise errors[0]
        return answers

    def _entries(self, found: Iterable[Mapping[str, Any]]) -> dict[str, RegistryEntry]:
        entries = {}
        for each in found:
            key = base64.b64decode(each["key"]).decode()
            entries[key.removeprefix(self._prefix)] = RegistryEntry(self._value(key, each), int(each["mod_revision"]))
        return entries

    def _value(self, key: str, each: Mapping[str, Any]) -> Tree:
        try:
            value = json.loads(base64.b64decode(each.get("value", "")))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Corrupt(key, 0, "the value of this key in etcd is not a JSON object; nothing else may write under its prefix")
        return value

    async def transact(
        self,
        compared: Mapping[str, int],
        changes: Changes,
        *,
        lease: Lease | None = None,
        leased: Collection[str] | None = None,
        others: Mapping[str, int] | None = None,
    ) -> int | None:
        """Changes the keys if each compared key was last written by that revision (0: it does not exist). Returns the revision
        that it made; None if a comparison failed or the lease has run out: then it never takes effect.

        `lease`: etcd deletes the written keys, or only the keys in `leased`, when this lease ends. `others`: ids of leases of
        other processes for some of the keys.

        Raises:
            OutcomeUnknown: it may have been applied, or may still be.
            RegistryUnavailable, RegistryRefused: nothing was changed.
        """
        assert changes, "a transaction that only reads ends some etcds: see `read_some`"
        if (most := max(len(compared), len(changes))) > OPERATIONS_MAX:
            many = f"a transaction on {most} keys, allowed are {OPERATIONS_MAX}"
            raise InvalidArgument(many, field="changes", limit=OPERATIONS_MAX)
        own = {} if lease is None else dict.fromkeys(changes if leased is None else leased, lease.id)
        leases = {**own, **(others or {})}
        body = {
            "compare": [
                {"result": "EQUAL", "target": "MOD", "key": self._key(key), "mod_revision": str(revision)}
                for key, revision in compared.items()
            ],
            "success": [self._change(key, value, leases.get(key)) for key, value in changes.items()],
        }
        try:
            answer = await self._gateway.call("/v3/kv/txn", body, changes=True)
        except RegistryRefused as error:
            if lease is not None and error.status == _LEASE_GONE:
                return None
            raise
        return _revision(answer) if answer.get("succeeded") else None

    def _change(self, key: str, value: Tree | None, lease: int | None) -> dict[str, Any]:
        if value is None:
            return {"requestDeleteRange": {"key": self._key(key)}}
        put = {"key": self._key(key), "value": _text(json.dumps(value, sort_keys=True))}
        return {"requestPut": put if lease is None else {**put, "lease": str(lease)}}

    async def changed(self, seen: RegistrySnapshot) -> RegistrySnapshot:
        """Waits until the keys differ from what was seen, and returns them.

        A watch that is lost, cancelled or compacted away is noticed by reading, at the latest after `SILENCE_S`.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        while True:
            await self.hint(seen.revision)
            latest = await self.read()
            if latest.entries != seen.entries:
                return latest
            seen = latest

    async def hint(self, after: int, concerns: Callable[[str], bool] = lambda _: True) -> None:
        """Returns when keys that concern the caller may have changed after this revision, at the latest after `SILENCE_S`."""
        with trio.CancelScope() as heard:
            await self.watch(lambda: after, heard.cancel, concerns)

    async def watch(
        self, known: Callable[[], int], heard: Callable[[], None], concerns: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Calls `heard` whenever keys that concern the caller may have changed, and after each `SILENCE_S`; until cancelled.
        `known`: the revision up to which the caller knows them.

        A stream is kept while something comes over it: etcd tells a new one of what has changed already up to 100 ms later.
        """
        while True:
            with trio.CancelScope() as silence:
                await self._listen(known() + 1, heard, concerns, silence)
            if trio.current_time() < silence.deadline:  # it has ended, or did not begin: the read that follows says why
                await trio.sleep(SILENCE_S / 10)
            heard()

    async def _listen(
        self, first: int, heard: Callable[[], None], concerns: Callable[[str], bool], silence: trio.CancelScope
    ) -> None:
        """Passes on what etcd says of changes from this revision on, until it ends that, or is silent."""
        silence.deadline = trio.current_time() + SILENCE_S
        request = {"create_request": {**self._range(), "start_revision": str(first)}}
        with suppress(RegistryUnavailable, ValueError):
            async with self._gateway.stream("/v3/watch", request) as lines:
                async for line in lines:
                    result = json.loads(line).get("result", {})
                    silence.deadline = trio.current_time() + SILENCE_S
                    if result.get("canceled"):
                        silence.cancel()  # the generators of httpx end by a cancellation, not by leaving the loop
                    elif any(map(concerns, self._changed_keys(result))):
                        heard()

    def _changed_keys(self, result: Mapping[str, Any]) -> Iterator[str]:
        for event in result.get("events", ()):
            yield base64.b64decode(event["kv"]["key"]).decode().removeprefix(self._prefix)

    def _key(self, key: str) -> str:
        return _text(self._prefix + key)

    def _range(self, under: str = "") -> dict[str, str]:
        prefix = self._prefix + under
        return {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def batches(changes: Changes) -> Iterator[Changes]:
    """Yields the changes in order, as many at a time as a transaction holds."""
    rest = iter(changes.items())
    while some := dict(islice(rest, OPERATIONS_MAX)):
        yield some


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])
