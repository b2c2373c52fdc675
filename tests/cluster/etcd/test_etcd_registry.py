"""The registry over a real etcd: comparisons, leases, watches, and what is said when etcd is slow, away or full."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from eventstore.errors import InvalidArgument
from eventstore_cluster.registry.etcd import etcd_registry
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import FEW_MAX, OPERATIONS_MAX, EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease, now
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.replication.shard_registry import ShardRegistry
from tests.cluster.etcd.etcd_program import etcd_of_the_extra
from tests.cluster.etcd.real_etcd import Etcd, running


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@asynccontextmanager
async def connected(*etcds: Etcd, name: str = "test", timeout_s: float = 5.0) -> AsyncIterator[tuple[Gateway, EtcdRegistry]]:
    options = EtcdOptions(tuple(each.url for each in etcds), request_timeout_s=timeout_s)
    async with Gateway(options) as gateway:
        yield gateway, EtcdRegistry(gateway, name)


async def test_clusters_with_other_names_do_not_see_each_other(etcd: Etcd) -> None:
    async with connected(etcd, name="a") as (gateway, a):
        assert await a.transact({}, {"key": {"of": "a"}})
        assert (await EtcdRegistry(gateway, "ab").read()).entries == {}
    for name in ("", "a/b", "a\x1b[31m", "a" * 101):
        with pytest.raises(InvalidArgument, match="is not the name of a cluster"):
            EtcdRegistry(gateway, name)
    assert EtcdRegistry(gateway, "a" * 100).name


async def fill(registry: EtcdRegistry, keys: int) -> None:
    """Writes other keys: each one that is wanted is then a request of its own."""
    for first in range(0, keys, OPERATIONS_MAX):
        assert await registry.transact({}, {f"other/{n}": {} for n in range(first, min(first + OPERATIONS_MAX, keys))})


@pytest.mark.parametrize("others", [0, FEW_MAX])
async def test_some_keys_are_read_as_they_were_at_one_revision(etcd: Etcd, others: int) -> None:
    name = f"some-{others}"
    async with connected(etcd, name=name) as (_, registry), connected(etcd, name=name) as (_, other):
        await fill(registry, others)
        last = await registry.transact(
            {}, {"cluster": {}, "shard/1": {}, "shard/10": {}, "replica/1/n1": {}, "replica/2/n1": {}}
        )
        assert last is not None
        assert await registry.transact({}, {"shard/1": {"n": 0}, "shard/2": {"n": 0}, "replica/1/n1": {"n": 0}})
        seen = await registry.read_some("shard/1", "shard/2", "absent", under=["replica/1/", "moving"])
        assert set(seen.entries) == {"shard/1", "shard/2", "replica/1/n1"}
        assert seen.revision == seen.revision_of("shard/1") == last + 1
        changed = trio.Event()
        async with trio.open_nursery() as nursery:

            async def change_all() -> None:
                for n in range(100):
                    await other.transact({}, {"shard/1": {"n": n}, "shard/2": {"n": n}, "replica/1/n1": {"n": n}})
                changed.set()

            nursery.start_soon(change_all)
            while not changed.is_set():
                seen = await registry.read_some("shard/1", "shard/2", under=["replica/1/"])
                assert len({entry.value["n"] for entry in seen.entries.values()}) == 1
                assert {entry.revision for entry in seen.entries.values()} == {seen.revision}


@pytest.mark.parametrize("others", [0, FEW_MAX])
async def test_what_is_known_is_not_asked_again_as_long_as_nothing_changes(etcd: Etcd, others: int) -> None:
    async with connected(etcd, name=f"known-{others}") as (_, registry):
        await fill(registry, others)
        assert await registry.transact({}, {"shard/1": {"n": 1}, "leader/1": {}})
        known = await registry.read_some("shard/1", "leader/1", under=[])
        assert await registry.read_some("shard/1", "leader/1", under=[], known=known) is known
        assert await registry.transact({}, {"leader/1": None})
        assert set((await registry.read_some("shard/1", "leader/1", under=[], known=known)).entries) == {"shard/1"}


class Interrupted(Gateway):
    """After its first answer, all revisions so far are compacted away by somebody else."""

    async def call(self, path: str, body: Mapping[str, Any], *, changes: bool = False) -> dict[str, Any]:
        answer = await super().call(path, body, changes=changes)
        if path == "/v3/kv/range" and "revision" not in body:
            key = {"key": body["key"], "value": ""}
            later = (await super().call("/v3/kv/put", key, changes=True))["header"]["revision"]
            await super().call("/v3/kv/compaction", {"revision": later})
        return answer


async def test_the_keys_of_a_small_cluster_are_read_by_one_request_and_of_another_only_those_that_are_wanted(
    etcd: Etcd,
) -> None:
    class Counting(Gateway):
        def __init__(self) -> None:
            super().__init__(EtcdOptions((etcd.url,)))
            self.keys: list[int] = []

        async def call(self, path: str, body: Mapping[str, Any], *, changes: bool = False) -> dict[str, Any]:
            answer = await super().call(path, body, changes=changes)
            self.keys += [len(answer.get("kvs", ()))] if path == "/v3/kv/range" else []
            return answer

    async with Counting() as gateway:
        registry = EtcdRegistry(gateway, "counted")
        await fill(registry, FEW_MAX - 1)
        assert await registry.transact({}, {"shard/1": {}})
        for _ in range(2):
            assert set((await registry.read_some("shard/1", "leader/1", under=["moving"])).entries) == {"shard/1"}
        assert set((await registry.read_some("shard/1", under=[])).entries) == {"shard/1"}
        assert gateway.keys == [FEW_MAX, FEW_MAX, 1]
        assert await registry.transact({}, {"shard/2": {}})
        gateway.keys.clear()
        for _ in range(2):
            assert set((await registry.read_some("shard/1", "leader/1", under=["moving"])).entries) == {"shard/1"}
        assert (gateway.keys[0], sorted(gateway.keys[1:])) == (FEW_MAX, [0] * 4 + [1] * 2), "it is not tried again"


async def test_some_keys_that_cannot_be_read_at_one_revision_are_an_error(etcd: Etcd) -> None:
    async with connected(etcd, name="interrupted") as (_, registry):
        await fill(registry, FEW_MAX + 1)
    async with Interrupted(EtcdOptions((etcd.url,))) as gateway:
        with pytest.raises(RegistryRefused, match="compacted"):
            await EtcdRegistry(gateway, "interrupted").read_some("shard/1", "leader/1", "cluster", under=["replica/1/"])


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the generators of httpx, which are cancelled
async def test_an_etcd_of_pypi_survives_clients_that_give_up_their_reads(tmp_path: Path) -> None:
    with running(tmp_path, which=etcd_of_the_extra) as (etcd,):
        async with connected(etcd) as (_, registry):
            for first in range(0, 2_000, OPERATIONS_MAX):
                await registry.transact({}, {f"replica/1/{n}": {} for n in range(first, first + OPERATIONS_MAX)})
            for n in range(100):
                with trio.move_on_after(n % 20 / 1000):
                    await registry.read_some("shard/1", under=["replica/1/"] * 6)
                assert etcd.runs(), f"it ended when read {n} was given up"
            assert await registry.read()


async def test_keys_under_a_lease_are_gone_with_it_and_a_lease_that_is_gone_writes_nothing(etcd: Etcd) -> None:
    async with connected(etcd, name="leased") as (gateway, registry):
        before = now()
        lease = await Lease.grant(gateway, 5)
        assert before < lease.until <= now() + 5
        assert await registry.transact({"leader": 0}, {"leader": {"run": "r1"}}, lease=lease)
        assert await lease.keep_alive(gateway)
        seen = await registry.read()
        await lease.revoke(gateway)
        assert (await registry.changed(seen)).entries == {}
        assert not await lease.keep_alive(gateway)
        assert lease.until == 0.0
        assert await registry.transact({"leader": 0}, {"leader": {"run": "r1"}}, lease=lease) is None
        await lease.revoke(gateway)  # once more does no harm


@pytest.mark.heavy
async def test_a_lease_that_is_not_renewed_ends_not_before_it_has_ended_here(etcd: Etcd) -> None:
    async with connected(etcd, name="ending") as (gateway, registry):
        lease = await Lease.grant(gateway, 2)
        assert await registry.transact({}, {"leader": {"run": "r1"}}, lease=lease)
        seen = await registry.read()
        assert (await registry.changed(seen)).entries == {}
        assert now() >= lease.until


async def test_a_change_by_another_client_ends_the_wait_for_one(etcd: Etcd) -> None:
    async with connected(etcd, name="watched") as (_, registry), connected(etcd, name="watched") as (_, other):
        seen = await registry.read()
        async with trio.open_nursery() as nursery:

            async def changed() -> None:
                latest = await registry.changed(seen)
                assert latest.value("map") == {"version": 2}

            nursery.start_soon(changed)
            await other.transact({}, {"map": {"version": 2}})


class Streams(Gateway):
    """Counts the streams that are opened."""

    opened = 0

    def stream(self, path: str, body: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        self.opened += 1
        return super().stream(path, body)


async def test_one_stream_tells_of_all_changes_that_concern_the_caller(etcd: Etcd) -> None:
    async with Streams(EtcdOptions((etcd.url,))) as gateway, connected(etcd, name="streamed") as (_, other):
        registry, heard, news = EtcdRegistry(gateway, "streamed"), 0, trio.Event()
        last = await other.transact({}, {"shard/1": {"n": 0}})
        assert last is not None
        known = last - 1  # an earlier change is heard as well

        def hear() -> None:
            nonlocal heard
            heard += 1
            news.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.watch, lambda: known, hear, lambda key: key == "shard/1")
            for n in range(1, 20):
                await news.wait()
                news = trio.Event()
                assert heard == n
                assert await other.transact({}, {"shard/2": {"n": n}})
                assert await other.transact({}, {"shard/1": {"n": n}})
            await news.wait()
            nursery.cancel_scope.cancel()
        assert (heard, gateway.opened) == (20, 1)


async def test_a_watch_that_hears_nothing_says_so_and_begins_again_where_the_caller_is(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_registry, "SILENCE_S", 0.05)
    async with Streams(EtcdOptions((etcd.url,))) as gateway:
        registry, seen = EtcdRegistry(gateway, "silent"), await EtcdRegistry(gateway, "silent").read()
        asked: list[int] = []

        def known() -> int:
            asked.append(seen.revision + len(asked))
            return asked[-1]

        with trio.CancelScope() as scope:
            await registry.watch(known, lambda: scope.cancel() if len(asked) == 3 else None)
        assert gateway.opened == len(asked)
        assert asked == [seen.revision + n for n in range(len(asked))]


async def test_a_revision_that_was_compacted_away_is_no_obstacle(etcd: Etcd) -> None:
    async with connected(etcd, name="compacted") as (gateway, registry):
        seen = await registry.read()
        for version in range(3):
            last = await registry.transact({}, {"map": {"version": version}})
        await gateway.call("/v3/kv/compaction", {"revision": str(last)})
        assert (await registry.changed(seen)).value("map") == {"version": 2}


async def test_more_than_a_transaction_holds_is_refused_before_it_is_sent(etcd: Etcd) -> None:
    async with connected(etcd, name="large") as (_, registry):
        with pytest.raises(InvalidArgument, match="allowed are 128"):
            await registry.transact({}, {f"key{number}": {} for number in range(OPERATIONS_MAX + 1)})
        with pytest.raises(InvalidArgument, match="fewer keys at once"):
            await registry.transact({}, {"key": {"text": "x" * 2_000_000}})
        assert (await registry.read()).entries == {}
        keys = [f"key{number}" for number in range(OPERATIONS_MAX)]
        assert await registry.transact(dict.fromkeys(keys, 0), {key: {} for key in keys}), (
            "etcd counts comparisons by themselves"
        )


@pytest.mark.heavy
async def test_what_a_stopped_etcd_was_asked_is_unknown_and_settled_by_a_later_revision(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        async with connected(etcd, timeout_s=60.0) as (_, registry), connected(etcd, timeout_s=1.0) as (_, impatient):
            first = await registry.transact({}, {"shard": {"epoch": 1}})
            assert first is not None
            etcd.send(signal.SIGSTOP)
            with pytest.raises(OutcomeUnknown):
                await impatient.transact({"shard": first}, {"shard": {"epoch": 2}})
            with pytest.raises(RegistryUnavailable, match="quorum"):
                await impatient.read()
            etcd.send(signal.SIGCONT)
            seen = await registry.read()
            last = seen.revision_of("shard")  # which does not say what is still on its way; a write on top of it does
            settled = await registry.transact({"shard": last}, {"shard": {"epoch": 3}})
            latest = await registry.read()
            assert latest.value("shard") == {"epoch": 3 if settled is not None else 2}
            assert settled is None or await registry.transact({"shard": first}, {"shard": {"epoch": 2}}) is None


async def read_again(registry: EtcdRegistry) -> RegistrySnapshot:
    """Reads as soon as etcd answers."""
    with trio.fail_after(60):
        while True:
            try:
                return await registry.read()
            except RegistryUnavailable:
                await trio.lowlevel.checkpoint()


@pytest.mark.heavy
async def test_a_restart_of_etcd_is_survived_by_a_wait_and_by_its_keys(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        async with connected(etcd) as (_, registry):
            first = await registry.transact({}, {"shard": {"epoch": 1}})
            etcd.kill()
            with pytest.raises(RegistryUnavailable, match="does not answer"):
                await registry.transact({}, {"shard": {"epoch": 2}})  # it was certainly not sent
            etcd.start()
            etcd.ready()
            seen = await read_again(registry)
            assert seen.revision_of("shard") == first


async def test_an_etcd_that_is_not_there_is_named_with_what_the_kernel_says() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Gateway(EtcdOptions((url,))) as gateway:
            with pytest.raises(RegistryUnavailable, match=f"{url}: .*Connection refused") as refused:
                await EtcdRegistry(gateway, "test").read()
    assert "sub-exception" not in str(refused.value)


@pytest.mark.heavy
@pytest.mark.long
async def test_without_a_quorum_nothing_is_answered_and_with_it_the_next_endpoint_is(tmp_path: Path) -> None:
    with running(tmp_path, members=3) as etcds:
        async with connected(*etcds, timeout_s=10.0) as (_, registry):
            first = await registry.transact({}, {"shard": {"epoch": 1}})
            assert first is not None
            etcds[0].kill()
            assert (await read_again(registry)).revision_of("shard") == first
            assert await registry.transact({"shard": first}, {"shard": {"epoch": 2}}) is not None
            etcds[1].kill()
            with pytest.raises((OutcomeUnknown, RegistryUnavailable)):
                await registry.transact({}, {"shard": {"epoch": 3}})
            etcds[0].start()
            etcds[0].ready()
            assert (await read_again(registry)).value("shard") in ({"epoch": 2}, {"epoch": 3})


@pytest.mark.heavy
async def test_a_user_with_a_password_is_let_in_and_another_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        async with connected(etcd) as (gateway, _):
            await gateway.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
            await gateway.call("/v3/auth/role/add", {"name": "root"})
            await gateway.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
            await gateway.call("/v3/auth/enable", {})
        async with Gateway(EtcdOptions((etcd.url,), user="root", password="secret")) as gateway:
            registry = EtcdRegistry(gateway, "locked")
            assert await registry.transact({}, {"map": {}})
            gateway._token = "of yesterday"
            assert set((await registry.read()).entries) == {"map"}
        async with Gateway(EtcdOptions((etcd.url,), user="root", password="wrong")) as gateway:
            with pytest.raises(RegistryRefused, match="authentication failed"):
                await EtcdRegistry(gateway, "locked").read()
        async with Gateway(EtcdOptions((etcd.url,))) as gateway:
            with pytest.raises(RegistryRefused, match="user name is empty"):
                await EtcdRegistry(gateway, "locked").read()


@pytest.mark.heavy
async def test_an_etcd_with_tls_is_reached_by_those_who_know_its_authority(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    self_signed(key, cert)
    with running(tmp_path, extra=("--cert-file", str(cert), "--key-file", str(key))) as (etcd,):
        async with Gateway(EtcdOptions((etcd.url,), ca=str(cert))) as gateway:
            assert await EtcdRegistry(gateway, "secret").transact({}, {"map": {}})
        async with Gateway(EtcdOptions((etcd.url,))) as gateway:
            with pytest.raises(RegistryUnavailable, match="certificate"):
                await EtcdRegistry(gateway, "secret").read()


def self_signed(key: Path, cert: Path) -> None:
    try:
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=etcd",
                "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert),
            ],
            check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("openssl is not installed")


def test_endpoints_must_be_urls() -> None:
    with pytest.raises(InvalidArgument, match="http or https"):
        EtcdOptions(("127.0.0.1:2379",))
    with pytest.raises(InvalidArgument, match="usual one"):
        EtcdOptions(())


async def test_a_process_notices_that_the_registry_was_restored_from_an_older_copy_while_it_runs(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        async with connected(etcd) as (gateway, registry):
            shard = ShardRegistry(registry, 0, await Lease.grant(gateway, 60), "run")
            assert await registry.transact({}, {"shard/1": {}})
            await trio.to_thread.run_sync(etcd.copy_data, tmp_path / "copy")
            assert await registry.transact({}, {"shard/1": {}})
            assert await shard.read() is None
            assert await shard.read() is None
            assert not shard.went_back
            await trio.to_thread.run_sync(etcd.restore_data, tmp_path / "copy")
            assert await shard.read() is None
            assert shard.went_back
