"""The times and sizes that a replica goes by; times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SPLIT_UNSORTED_BYTES: Final = 16 * 1024 * 1024
_HAND_OVER_UNSORTED_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one replica.

    Attributes:
        poll_s: a Fetch that finds nothing new is answered after this time.
        mark_s: a Fetch is answered after this time if only the committed mark is new, which otherwise goes with the next
            records.
        silence_s: a leader that sends nothing for so long is left.
        rejoin_s: between attempts to join a leader that does not lead yet.
        lag_max_s: a member that is behind for longer is taken out of the in-sync set.
        hand_over_lag_s: a member that is behind for longer is not handed leadership, nor before it has sent a Fetch that
            follows an answer given after it was named.
        hand_over_silence_s: a member whose last Fetch is older is not handed leadership.
        stall_max_s: a leader that commits nothing for so long while something waits resigns.
        retry_s: between reads of the registry that nothing else asks for.
        rank_s: a member waits so long for each member that should lead before it.
        head_start_s: a member waits so long for the member that leadership is handed to.
        unreached_s: a member that others do not reach waits so much longer, if there is any other.
        split_file_bytes: a shard is split when its current event file has this size at most.
        split_files_lacking: a shard is split when its clones lack this many completed event files at most.
        split_max_s: a leader resigns if the slots that it holds back are not given away in this time.
        hand_over_file_bytes: a shard is handed over when its current event file has this size at most.
        hand_over_files_lacking: a shard is handed over when its successor has not sorted this many completed files at most.
        hand_over_sort_s: a shard is handed over after this time, sorted or not.
        files_begun_max: after so many files were begun for a split or hand-over, the size of the current file does not matter.
    """

    poll_s: float = 0.5
    mark_s: float = 0.1
    silence_s: float = 2.5
    rejoin_s: float = 0.05
    lag_max_s: float = 5.0
    hand_over_lag_s: float = 1.0
    hand_over_silence_s: float = 0.2
    stall_max_s: float = 10.0
    retry_s: float = 2.0
    rank_s: float = 0.1
    head_start_s: float = 0.5
    unreached_s: float = 2.0
    split_file_bytes: int = 1024 * 1024
    split_files_lacking: int = 0
    split_max_s: float = 10.0
    hand_over_file_bytes: int = 4 * 1024 * 1024
    hand_over_files_lacking: int = 0
    hand_over_sort_s: float = 60.0
    files_begun_max: int = 3


def limits_for(file_size_bytes: int) -> Limits:
    """Returns the limits of a shard with event files of this size. Small files may come faster than they are sorted. The new
    shards of a split, and a new leader, read unsorted files before they serve.
    """
    return Limits(
        split_files_lacking=_SPLIT_UNSORTED_BYTES // file_size_bytes,
        hand_over_files_lacking=_HAND_OVER_UNSORTED_BYTES // file_size_bytes,
    )
