"""Makes `/metrics`, `/health` and STATS of a node from what its shards report, each named by its number.

Nothing here knows the library of Prometheus: its text is taken apart by lines, and `shard` becomes the first label of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from eventstore.chunks.documents import DocumentValue, Tree
from eventstore.metrics import LabelledMetric, MetricSource, StatValues, read_stats
from eventstore.server.process_metrics import PROCESS_METRICS
from eventstore_cluster.node_alarms import NodeAlarms
from eventstore_cluster.shard_runner import ShardRunner

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SHARD_METRICS: Final = (
    LabelledMetric("shard_serving", "gauge", "1: a process of this node serves the shard, and answers", ("shard",)),
    LabelledMetric("shard_up", "gauge", "1: it serves the shard, or follows its leader", ("shard",)),
    LabelledMetric("shard_starts", "counter", "processes that the shard has had on this node", ("shard",)),
)
_HANGS: Final = "its process here does not answer"
_VALUES: Final[tuple[Callable[[ShardRunner], int], ...]] = (
    lambda shard: int(shard.serves),
    lambda shard: int(shard.works),
    lambda shard: shard.starts,
)


class NodeReports:
    """What a node says about itself and its shards."""

    def __init__(
        self,
        shards: Sequence[ShardRunner],
        stopping: Callable[[], bool],
        first: Callable[[], str | None] = lambda: None,
        troubles: Callable[[], Mapping[int, str]] = dict,
        last: Callable[[], str | None] = lambda: None,
        more: Callable[[], Iterable[str]] = tuple,
        alarms: NodeAlarms | None = None,
    ) -> None:
        """Takes what a report is made of. All but `shards` and `alarms` are called for each report.

        `first`, `last`: return what needs attention before and after all shards; None if nothing does. `troubles`: returns what
        is known of shards besides what their own processes say, wherever they run. `more`: returns lines of /metrics. `alarms`:
        of the node itself.
        """
        self._shards, self._stopping, self._first, self._last, self._more = shards, stopping, first, last, more
        self._known, self._alarms = troubles, alarms

    def stats(self) -> StatValues:
        troubles = self._troubles()
        return {
            "shards": len(self._shards),
            "shards_serving": sum(shard.serves for shard in self._shards),
            "shards_up": sum(shard.works or not shard.identity.slots for shard in self._shards),  # or in preparation
            **read_stats([MetricSource(PROCESS_METRICS, lambda: None)]),
            **({} if self._alarms is None else self._alarms.stats()),
            "attention": self._attention(troubles),
            "trouble": self._first(),
            "troubles": json.dumps(troubles) if troubles else None,
        }

    def _troubles(self) -> dict[int, str]:
        """Returns what is wrong with shards, by their numbers. What their own processes said last comes first."""
        found = {shard.identity.shard: trouble for shard in self._shards if (trouble := _trouble_of(shard)) is not None}
        return {**self._known(), **found}

    def _attention(self, troubles: Mapping[int, str]) -> str | None:
        shards = next((f"shard {number}: {trouble}" for number, trouble in troubles.items()), None)
        alarms = None if self._alarms is None else self._alarms.alarms.attention
        return self._first() or shards or self._last() or alarms

    async def health(self) -> Tree:
        """Returns the health of all shards. Healthy: one of them at least is served here, or follows its leader; a node that is
        to have none is. Degraded: an operator has to know something, of whatever shard of the cluster.
        """
        asked = list(self._shards)
        found = await self._ask_all(asked, "health")
        shards: list[DocumentValue] = []
        known, troubles = self._known(), self._troubles()
        for shard, figures in zip(asked, found, strict=True):
            number = shard.identity.shard
            own = figures if isinstance(figures, dict) else {}
            if shard.up:  # what it answers now, not what it told before
                said = (own.get("attention") or own.get("reactions_failure") or known.get(number)) if own else _HANGS
                troubles.pop(number, None)
                if said is not None:
                    troubles[number] = str(said)
            shards.append(
                {
                    "shard": number,
                    "serving": shard.serves,
                    "address": shard.address,
                    "pid": shard.pid,
                    "starts": shard.starts,
                    "error": None if shard.error is None else shard.error.message,
                    **(shard.role or {}),
                    **own,
                    "degraded": number in troubles,  # a follower does not say, nor a leader what only others see
                }
            )
        healthy = not shards or any(isinstance(each, dict) and each.get("healthy") is True for each in shards)
        attention = self._attention(troubles)
        return {
            "healthy": healthy and not self._stopping(),
            "degraded": attention is not None,
            "attention": attention,
            "troubles": {str(number): trouble for number, trouble in troubles.items()},
            "shards": shards,
        }

    async def metrics(self) -> bytes:
        """Returns the text of /metrics: all shards in each family."""
        asked = list(self._shards)
        texts = await self._ask_all(asked, "metrics")
        lines = []
        for metric, value in zip(SHARD_METRICS, _VALUES, strict=True):
            name = f"eventstore_{metric.name}{'_total' if metric.kind == 'counter' else ''}"
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            lines += [f'{name}{{shard="{shard.identity.shard}"}} {value(shard)}' for shard in asked]
        lines += self._more()
        if self._alarms is not None:
            lines += self._alarms.lines()
        found = zip(asked, texts, strict=True)
        shards = merged([(shard.identity.shard, text) for shard, text in found if isinstance(text, str)])
        return ("\n".join(lines) + "\n" + shards).encode()

    async def _ask_all(self, shards: Sequence[ShardRunner], what: str) -> list[DocumentValue]:
        """Asks all shards at once, so a shard that does not answer holds up no other."""
        found: list[DocumentValue] = [None] * len(shards)

        async def ask(place: int) -> None:
            found[place] = await shards[place].ask(what)

        async with trio.open_nursery() as nursery:
            for place in range(len(shards)):
                nursery.start_soon(ask, place)
        return found


def _trouble_of(shard: ShardRunner) -> str | None:
    """Returns what a process of this node said last, or why there is none."""
    if shard.hangs:
        return _HANGS
    if shard.up:
        said = None if shard.role is None else shard.role.get("attention")
        return said if isinstance(said, str) else None
    return f"no process of it runs here: {'it starts' if shard.error is None else shard.error.message}"


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

    def health(self) -> StatValues:
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
