"""The times a replica goes by, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SPLIT_UNSORTED_BYTES: Final = 16 * 1024 * 1024
_HAND_OVER_UNSORTED_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """`poll_s`: a Fetch that finds nothing new is answered after this time; after `mark_s` if only the committed mark is
    new, which goes with the next records otherwise. `silence_s`: a leader that sends nothing for so long is left.
    `rejoin_s`: between attempts to join a leader that does not lead yet. `lag_max_s`: a member that is behind for longer
    is taken out of the in-sync set; `hand_over_lag_s`: it is not handed leadership, nor before it has sent a Fetch that
    follows an answer of after it was named, nor if its last one is older than `hand_over_silence_s`. `stall_max_s`: a
    leader that commits nothing for so long while something waits resigns. `retry_s`: between reads of the registry that
    nothing else asks for. `rank_s`: a member waits so long for each that should lead before it, `head_start_s` for the
    one that leadership is handed to, and `unreached_s` for any if the others do not reach it. A shard is split when its
    clones lack `split_files_lacking` event files at most of those before the current one, and that has
    `split_file_bytes` at most, or others were begun for that `files_begun_max` times; its leader resigns if the slots
    that it holds back are not given away in `split_max_s`. Likewise it is handed over with `hand_over_file_bytes` at
    most, and when the successor has sorted the files before, but for `hand_over_files_lacking`; or after
    `hand_over_sort_s`.
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
    """Returns those of a shard with event files of this size. Small ones may come faster than they are sorted; the new shards
    of a split, and a new leader, read what is not, before they serve.
    """
    return Limits(
        split_files_lacking=_SPLIT_UNSORTED_BYTES // file_size_bytes,
        hand_over_files_lacking=_HAND_OVER_UNSORTED_BYTES // file_size_bytes,
    )
