"""What the command mailboxes count, declared as metrics; times are sums over all commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.metrics import Metric, counter, gauge, text
from eventstore_mailbox.stats import MailboxesStats as MailboxesStats

_RANKED_MAX: Final = 8


def _ranking(ranked: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{ascii(name)[1:-1]}: {count}" for name, count in ranked[:_RANKED_MAX])


MAILBOX_METRICS: Final[tuple[Metric[MailboxesStats], ...]] = (
    gauge("mailboxes", "command mailboxes", lambda stats: len(stats.mailboxes)),
    gauge(
        "mailbox_depth",
        "commands and appends accepted and not answered yet",
        lambda stats: stats.depth,
        "it only grows: the disk, or a handler, does not keep up",
    ),
    gauge(
        "mailbox_depth_max",
        "the same, of the fullest mailbox",
        lambda stats: max(each.depth for each in stats.mailboxes),
        "it comes near `mailbox_capacity`: senders will be refused with Overloaded",
    ),
    counter(
        "appends_passed",
        "plain appends that had no command of their aggregate to wait for",
        lambda stats: stats.fast_path_total,
    ),
    counter(
        "commands_accepted",
        "commands that mailboxes have accepted: the sum of their greatest offsets",
        lambda stats: sum(each.max_offset for each in stats.mailboxes),
        "it grows faster than `commands_consumed`",
    ),
    counter(
        "commands_consumed",
        "commands that the mailboxes' processors have seen: the sum of their consume offsets",
        lambda stats: sum(each.consume_offset for each in stats.mailboxes),
    ),
    counter("commands_handled", "commands handled", lambda stats: sum(each.handled for each in stats.mailboxes)),
    counter(
        "command_wait_microseconds",
        "time commands waited for their handler",
        lambda stats: round(sum(each.wait_s for each in stats.mailboxes) * 1_000_000),
        "`command_wait / commands_handled` grows",
    ),
    counter(
        "command_handle_microseconds",
        "time spent in handlers",
        lambda stats: round(sum(each.handle_s for each in stats.mailboxes) * 1_000_000),
        "`command_handle / commands_handled` is the cost of one command",
    ),
    counter(
        "command_conflicts",
        "changes that lost against another writer",
        lambda stats: sum(each.conflicts for each in stats.mailboxes),
        "it grows fast: two processes handle commands of the same aggregates; `hottest_aggregates` names them",
    ),
    counter(
        "command_creation_races",
        "commands that found their aggregate created by another writer in the meantime",
        lambda stats: sum(each.creation_races for each in stats.mailboxes),
        "it grows: two senders make up the same ids; the log names them",
    ),
    counter(
        "command_reruns",
        "commands handled again because of a conflict",
        lambda stats: sum(each.reruns for each in stats.mailboxes),
    ),
    counter("command_repeats", "commands sent again while the first was in flight", lambda stats: stats.in_flight_duplicates),
    counter(
        "handlers_slow",
        "handlers that blocked all others for over 50 ms",
        lambda stats: sum(each.slow for each in stats.mailboxes),
        "it grows: the log names the handler",
    ),
    gauge("aggregates_in_memory", "aggregates kept for commands", lambda stats: stats.aggregates),
    counter(
        "aggregates_evicted",
        "aggregates dropped to keep to `aggregates_max`",
        lambda stats: stats.evicted,
        "its rate comes near that of commands: raise `aggregates_max`",
    ),
    counter("aggregates_restored", "aggregates replayed from the store", lambda stats: stats.restored),
    gauge(
        "aggregates_restoring",
        "aggregates being replayed now, or waiting for it",
        lambda stats: stats.restoring + stats.restores_waiting,
    ),
    counter(
        "persist_failures",
        "batches retried because the store could not be reached",
        lambda stats: stats.persist_failures,
        "it grows",
    ),
    counter(
        "restore_failures",
        "replays retried because the store could not be reached",
        lambda stats: stats.restore_failures,
        "it grows",
    ),
    text("hottest_aggregates", "aggregates with the most conflicts", lambda stats: _ranking(stats.hottest)),
    text("busiest_aggregates", "aggregates with the most commands", lambda stats: _ranking(stats.busiest)),
)
