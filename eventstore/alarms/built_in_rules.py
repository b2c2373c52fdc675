"""The rules that there are without any configuration. A rule whose figure a process does not have says nothing there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore.alarms.rule import Rule, parse_rules

_TEXT: Final = """
store_poisoned: poisoned > 0
broker_poisoned: broker_poisoned > 0
disk_nearly_full: disk_free_bytes / disk_bytes < 0.1 for 60
slow_syncs: write_seconds / batches > 0.1 for 60
file_damaged: sort_stopped_at_file > 0
rot_found: rot_files > 0
directory_damaged: directory_damaged > 0
sorting_fails: sort_failures > 0 for 600
worker_cut_off: shards_away > 0 for 30
commands_not_stored: persist_failures > 0 for 60
aggregates_not_replayed: restore_failures > 0 for 60
reaction_waits: reaction_waiting > 0 for 10
reaction_parked: reaction_parked > 0
reaction_late: reaction_lag_seconds > 60 for 60
timers_late: timers_lag_seconds > 60 for 60
timers_parked: timers_parked > 0
timers_held: timers_held > 0
publishing_refused: publish_refused > 0
publication_parked: publication_parked > 0
publishing_late: publish_lag_seconds > 60 for 60
group_behind: group_backlog > 100000 for 600
group_without_members: group_unattended > 0 for 600
dead_letters_grow: group_messages_dead > 0 for 600
message_in_hand: group_oldest_in_hand_seconds > 300
projection_late: projection_lag_seconds > 60 for 60
projection_parked: projection_parked_keys > 0
projection_waits: projection_waiting > 0 for 10
projection_silent: projection_silent_seconds > 300
replica_missing: replicas_in_sync < replicas_wanted for 60
replica_behind: replica_lag_seconds > 2 for 30
shard_unserved: shard_unserved > 0 for 30
certificate_expires: certificate_days_left < 14
logins_refused: logins_refused > 1 for 60
audit_stuck: audit_waiting > 0 for 60
backup_old: backup_age_seconds > 172800
snapshot_differs: snapshot_differs > 0
"""

BUILT_IN: Final[Mapping[str, Rule]] = parse_rules(_TEXT, {})
