"""The broker behind the gate: which operation goes where, what it counts, how it is stopped.

It shares a process, the gate and a disk with the event store, and nothing else: its log has a committer and threads of its own.
A broker that is poisoned takes no more messages and says so: to senders, as a figure, and as the `attention` of `/health`. The
event store goes on, and consumers go on reading. Only a new start can judge what is on disk; an operator decides when.
"""

from __future__ import annotations

import trio

from eventstore.broker.broker import Broker
from eventstore.protocol import broker_requests as asked
from eventstore.protocol.requests import Request
from eventstore.server.dispatch import Route
from eventstore.server.gate import Gate
from eventstore.server.groups import GroupRequests
from eventstore.server.message_intake import MessageIntake
from eventstore.server.message_look_ups import MessageLookUps
from eventstore.server.pulls import MessagePulls
from eventstore.server.replies import Replies
from eventstore.server.topics import TopicRequests
from eventstore.store.embedded import Stats

_LOOK_UPS_AT_ONCE = 4


class BrokerService:
    """An open broker, as the clients of one gate see it."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.broker = broker
        self._changes = Replies(nursery)
        self._answers = Replies(nursery, at_once=_LOOK_UPS_AT_ONCE)
        self._intake = MessageIntake(broker, nursery)
        self._pulls = MessagePulls(broker, nursery)
        self._groups = GroupRequests(broker, self._changes)
        self.end_turn = self._intake.end_turn

    @property
    def routes(self) -> dict[type[Request], Route]:
        """Which request is answered where."""
        topics, look_ups = TopicRequests(self.broker, self._changes), MessageLookUps(self.broker, self._answers)
        groups = self._groups
        return {
            asked.SendMessages: self._intake.send, asked.Pull: self._pulls.begin,
            asked.Join: groups.join, asked.Heartbeat: groups.heartbeat, asked.Leave: groups.leave,
            asked.CommitOffsets: groups.commit, asked.FailMessages: groups.fail, asked.ReplayDead: groups.replay,
            asked.ResetGroup: groups.reset, asked.ListGroups: groups.list, asked.ShowGroup: groups.show,
            asked.ListMembers: groups.members, asked.DeleteGroup: groups.delete, asked.ForgetTopic: groups.forget_topic,
            asked.CreateTopic: topics.create, asked.ListTopics: topics.list, asked.ShowTopic: topics.show,
            asked.DeleteTopic: topics.delete, asked.AddQueues: topics.add_queues, asked.CloseQueue: topics.close_queue,
            asked.RemoveQueue: topics.remove_queue, asked.ListChunks: topics.chunks,
            asked.FindMessage: look_ups.find, asked.ReadMessage: look_ups.read, asked.FindKey: look_ups.find_key,
            asked.OffsetAt: look_ups.offset_at,
        }  # fmt: skip

    def connect(self, gate: Gate) -> None:
        for part in (self._changes, self._answers, self._intake, self._pulls, self._groups):
            part.connect(gate)

    def stop(self) -> None:
        """Takes no more messages, and sends those away who wait for some."""
        self._intake.stopping = True
        self._pulls.stop()

    async def drain(self) -> None:
        """Returns when what was sent is stored and answered, and nobody waits for messages. After `stop`."""
        await self.broker.committer.drain()
        await self._pulls.drain()

    @property
    def attention(self) -> str | None:
        """What an operator has to do, if anything."""
        failed = self.broker.engine.failed
        if failed is not None:
            return f"the broker takes no more messages: {failed.message}; events are served. Look at the disk, then restart"
        return self.broker.housekeeping.failure

    def figures(self) -> Stats:
        """What the broker counts, by name. Safe on any thread."""
        broker = self.broker
        engine, committer, held, rates = broker.engine, broker.committer, broker.housekeeping.held, broker.statistics.rates()
        return {
            "broker_topics": len(broker.topics.by_name),
            "broker_queues": len(engine.queues),
            "broker_groups": len(broker.groups.by_name),
            "broker_members": sum(len(group.members) for group in list(broker.groups.by_name.values())),
            "broker_messages": engine.visible_number,
            "broker_messages_refused": engine.sender.refused,
            "broker_chunks": len(engine.files.headers),
            "broker_chunks_mapped": len(engine.files.mapped),
            "broker_held_back": None if held is None else f"{held.group} in queue {held.queue} of {held.topic}",
            "broker_batches": committer.batches,
            "broker_batches_in_place": committer.batches_in_place,
            "broker_write_microseconds": round(committer.write_seconds * 1_000_000),
            "broker_waiting_bytes": self._intake.waiting_bytes,
            "broker_senders_held": self._intake.held,
            "broker_pulls": self._pulls.count,
            "broker_messages_written_a_second": round(rates.written),
            "broker_bytes_written_a_second": round(rates.written_bytes),
            "broker_messages_read_a_second": round(rates.read),
            "broker_bytes_read_a_second": round(rates.read_bytes),
            "broker_torn_bytes_at_start": broker.opened.report.torn_bytes,
            "broker_poisoned": engine.failed is not None,
        }
