"""The reactions of a server or worker, and the alarms of these and of nodes, to look at and administer.

A call that changes something is not sent again: if the connection is lost before the answer, it fails with ConnectionLost, and
`outcome` is "unknown".
"""

from __future__ import annotations

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import limited
from eventstore.protocol import reaction_requests as requests
from eventstore.protocol.reaction_info import ParkedEvent, ParkedHandled, ReactionInfo
from eventstore.protocol.server_info import AlarmInfo


class NetworkReactions:
    """The reactions of the server this client is connected to. `who` and `why` are kept: 1 to 1,000 bytes each."""

    def __init__(self, connection: NetworkConnection) -> None:
        self._call = connection.call
        self._timeout = connection.options.timeout

    @limited
    async def progress(self, *, timeout: float | None = None) -> list[ReactionInfo]:
        """Returns how far each reaction is, on each shard."""
        return await self._call(requests.ListReactions())

    @limited
    async def parked(self, reaction: str, skip: int = 0, *, timeout: float | None = None) -> list[ParkedEvent]:
        """Returns what a reaction has parked, at most 1,000 events after the first `skip`. Raises InvalidArgument."""
        return await self._call(requests.ListParked(reaction, skip))

    @limited
    async def retry(
        self, reaction: str, aggregate_id: str | None = None, *, who: str, why: str, timeout: float | None = None
    ) -> ParkedHandled:
        """Has parked events of one aggregate or of all handled again, in order until one fails. Raises InvalidArgument."""
        request = requests.RetryParked(reaction, aggregate_id, who, why)
        return await self._call(request)

    @limited
    async def skip(
        self, reaction: str, aggregate_id: str, *, who: str, why: str, timeout: float | None = None
    ) -> ParkedHandled:
        """Takes the first parked event of an aggregate off, and has those after it handled. Raises InvalidArgument."""
        return await self._call(requests.SkipParked(reaction, aggregate_id, who, why))

    @limited
    async def replay(self, reaction: str, sequence: int, *, who: str, why: str, timeout: float | None = None) -> int:
        """Lets a reaction continue with the event of this sequence; returns the one it stands at. Raises InvalidArgument."""
        return await self._call(requests.ReplayReaction(reaction, sequence, who, why))


class NetworkAlarms:
    """The alarms of the server or node this client is connected to. `who` and `why` are kept: 1 to 1,000 bytes each."""

    def __init__(self, connection: NetworkConnection) -> None:
        self._call = connection.call
        self._timeout = connection.options.timeout

    @limited
    async def list(self, skip: int = 0, *, timeout: float | None = None) -> list[AlarmInfo]:
        """Returns the alarms that are pending or raised, and one for each rule that is quiet: at most 1,000, after the first
        `skip`.
        """
        return await self._call(requests.ListAlarms(skip))

    @limited
    async def silence(self, alarm: str, seconds: int, *, who: str, why: str, timeout: float | None = None) -> None:
        """Sends nothing about an alarm for this number of seconds, at most 90 days; 0 ends that. Raises InvalidArgument."""
        await self._call(requests.SilenceAlarm(alarm, seconds, who, why))

    @limited
    async def test(self, *, who: str, timeout: float | None = None) -> tuple[str, ...]:
        """Has a test sent every way in which alarms are; returns the names of these: `mail`, `webhook`."""
        ways = await self._call(requests.TestAlarms(who))
        return tuple(ways)
