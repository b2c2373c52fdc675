"""The one `/metrics`, `/health` and STATS of a node: those of its shards, each named by its number.

Nothing here knows the library of Prometheus: its text is taken apart by lines, and `shard` becomes the first label of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from eventstore.chunks.documents import Member, Tree
from eventstore.metrics import Source, Stats, read_stats
from eventstore.server.process_metrics import PROCESS_METRICS
from eventstore_cluster.shard_runner import ShardRunner

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_OWN: Final = (
    ("eventstore_shard_serving", "gauge", "1: the shard serves", lambda shard: int(shard.address is not None)),
    ("eventstore_shard_up", "gauge", "1: the shard serves, or follows its leader", lambda shard: int(shard.up)),
    ("eventstore_shard_starts_total", "counter", "processes that the shard has had", lambda shard: shard.starts),
)


class NodeReports:
    """What a node says about itself and its shards."""

    def __init__(
        self, shards: Sequence[ShardRunner], stopping: Callable[[], bool], first: Callable[[], str | None] = lambda: None,
        also: Callable[[], str | None] = lambda: None, more: Callable[[], Iterable[str]] = tuple,
    ) -> None:  # fmt: skip
        """`first`, `also`: what needs attention before and after what the processes themselves need; None if nothing does.
        `more`: lines of /metrics.
        """
        self._shards, self._stopping, self._first, self._also, self._more = shards, stopping, first, also, more

    def stats(self) -> Stats:
        return {
            "shards": len(self._shards),
            "shards_serving": sum(shard.address is not None for shard in self._shards),
            **read_stats([Source(PROCESS_METRICS, lambda: None)]),
            "attention": self._attention(),
        }

    def _attention(self) -> str | None:
        if (first := self._first()) is not None:
            return first
        for shard in self._shards:
            if not shard.up:
                why = "it starts" if shard.error is None else shard.error.message
                return f"shard {shard.identity.shard} does not serve: {why}"
        return self._also()

    async def health(self) -> Tree:
        """Returns the health of all shards; degraded: some need an operator, or do not serve.

        A replica that follows serves nobody: it has its `role`, and is healthy unless it says otherwise.
        """
        asked = list(self._shards)
        found = await self._ask_all(asked, "health")
        shards: list[Member] = []
        attention = self._attention()
        for shard, figures in zip(asked, found, strict=True):
            number = shard.identity.shard
            own = figures if isinstance(figures, dict) else {}
            role = {} if shard.role is None else {"healthy": True, **shard.role}
            said = own.get("attention") or own.get("reactions_failure")
            if shard.address is not None and not own:
                said = "it does not answer"
            if said is not None and attention is None:
                attention = f"shard {number}: {said}"
            shards.append(
                {
                    "shard": number, "serving": shard.address is not None, "address": shard.address, "pid": shard.pid,
                    "starts": shard.starts, "error": None if shard.error is None else shard.error.message, **role, **own,
                }
            )  # fmt: skip
        healthy = not shards or any(isinstance(each, dict) and each.get("healthy") is True for each in shards)
        healthy = healthy and not self._stopping()
        return {"healthy": healthy, "degraded": attention is not None, "attention": attention, "shards": shards}

    async def metrics(self) -> bytes:
        """Returns the text of /metrics: all shards in each family."""
        asked = list(self._shards)
        texts = await self._ask_all(asked, "metrics")
        lines = []
        for name, kind, help_text, value in _OWN:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f'{name}{{shard="{shard.identity.shard}"}} {value(shard)}' for shard in asked]
        lines += self._more()
        found = zip(asked, texts, strict=True)
        shards = merged([(shard.identity.shard, text) for shard, text in found if isinstance(text, str)])
        return ("\n".join(lines) + "\n" + shards).encode()

    async def _ask_all(self, shards: Sequence[ShardRunner], what: str) -> list[Member]:
        """Asks all shards at once: one that does not answer holds up no other."""
        found: list[Member] = [None] * len(shards)

        async def ask(place: int) -> None:
            found[place] = await shards[place].ask(what)

        async with trio.open_nursery() as nursery:
            for place in range(len(shards)):
                nursery.start_soon(ask, place)
        return found


class OnThreads:
    """The reports for the threads that answer HTTP."""

    def __init__(self, reports: NodeReports, token: trio.lowlevel.TrioToken) -> None:
        self._reports, self._token = reports, token

    def metrics(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        text = self._ask(self._reports.metrics)
        if text is None:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"stopping\n"]
        start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])
        return [text]

    def health(self) -> Stats:
        found: Any = self._ask(self._reports.health)
        return {"healthy": False} if found is None else found

    def _ask(self, report: Callable[[], Any]) -> Any:
        """Returns the report; None if the node has stopped meanwhile."""
        try:
            return trio.from_thread.run(report, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            return None


def merged(texts: Iterable[tuple[int, str]]) -> str:
    """Returns the texts of shards as one; the first shard that has a family gives its description."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for shard, text in texts:
        heads: list[str] = []
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("# HELP "):
                known = families.setdefault(line.split(" ", 3)[2], ([], []))
                heads, samples = ([], known[1]) if known[0] else known
                heads.append(line)
            elif line.startswith("# TYPE "):
                heads.append(line)
            elif line and not line.startswith("#"):
                samples.append(labelled(line, shard))
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads, *samples))


def labelled(sample: str, shard: int) -> str:
    """Returns a line of Prometheus with `shard` as its first label."""
    end = next(place for place, each in enumerate(sample) if each in "{ ")
    rest = sample[end:]
    if rest.startswith("{"):
        return f'{sample[:end]}{{shard="{shard}"{"" if rest[1] == "}" else ","}{rest[1:]}'
    return f'{sample[:end]}{{shard="{shard}"}}{rest}'
