"""What a client does for a lone append: calls of functions, counted, so that a check or a copy in each call is noticed."""

from __future__ import annotations

import cProfile
import pstats

from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.model import Committed, NewEvent
from eventstore.protocol.answers import encode_outcomes
from eventstore.protocol.codes import OutcomeKind
from eventstore.records.raw_commit import encode_commit
from tests.client.peer import Peer, new_session

EVENT = [NewEvent("Opened", {"owner": "Ada"})]
TIMES = 10
CALLS_MAX = 106  # it is 103


def append(session: ClientSession[PolledSignal], version: int, answer: bytes) -> Committed:
    row = encode_commit("account-7", EVENT, version, f"c-{version}", None)
    part = session.appends.add_rows((row,), session.appends.kind.size_bytes(row))
    session.data_to_send()
    session.receive(answer)
    session.data_to_send()
    (outcome,) = part.outcomes()
    assert isinstance(outcome, Committed)
    return outcome


def test_a_lone_append_takes_few_calls() -> None:
    session = new_session()
    Peer(session)
    first = session._last_id + 1  # the answers are made before the calls are counted
    answers = [
        encode_outcomes(first + place, (int(OutcomeKind.COMMITTED), place + 1, place + 1, 1)) for place in range(2 * TIMES)
    ]

    def appended(places: range) -> int:
        profile = cProfile.Profile()
        profile.enable()
        outcomes = [append(session, place, answers[place]) for place in places]
        profile.disable()
        assert [each.version for each in outcomes] == [place + 1 for place in places]
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    appended(range(TIMES))
    calls = appended(range(TIMES, 2 * TIMES)) / TIMES
    assert calls <= CALLS_MAX
