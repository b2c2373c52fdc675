"""The alarms of a projector, without its process."""

from __future__ import annotations

import pytest

from eventstore.domain.projections.projector import Progress
from eventstore.errors import InvalidArgument
from eventstore.server.alarms.projector_alarms import ProjectorAlarms
from eventstore.server.projection_watch import ProjectionWatches
from eventstore.settings.alarms import AlarmSettings
from tests.examples import EXAMPLES


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> ProjectionWatches:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from bank import Balances

    return ProjectionWatches([Balances()])


def raised(alarms: ProjectorAlarms) -> str | None:
    """Evaluates the rules, and returns the names of those that are raised."""
    alarms.alarms.take(list(alarms.figures(alarms.alarms.watch.figures)))
    return alarms.alarms.names_raised


def test_built_in_rules_say_what_is_parked_and_late(watches: ProjectionWatches) -> None:
    watch = watches.by_name["balances"]
    alarms = ProjectorAlarms(AlarmSettings(rules="projection_late: projection_lag_seconds > 60", quiet_s=0), watches)
    assert raised(alarms) is None
    watch.take(Progress(3, 1, 9, False, (), 2, None, 9))
    assert raised(alarms) == "projection_parked"
    watch.oldest_us = 1
    assert raised(alarms) == "projection_late, projection_parked"
    watch.take(Progress(3, 1, 12, True, (), 0, None, 12))
    assert raised(alarms) is None


def test_of_several_projections_an_alarm_names_the_one(watches: ProjectionWatches) -> None:
    from bank import Balances

    class Others(Balances):
        name = "others"

    both = ProjectionWatches([Balances(), Others()])
    rules = "behind: projection_lag_seconds{projection=others} > 60\nfails: projection_waiting > 0"
    alarms = ProjectorAlarms(AlarmSettings(rules=rules, quiet_s=0), both)
    both.by_name["balances"].oldest_us = 1
    assert raised(alarms) is None
    both.by_name["others"].oldest_us = 1
    assert raised(alarms) == "behind"
    both.by_name["others"].failure = "it has failed"
    assert raised(alarms) == "behind, fails"
    assert both.attention == "others: it has failed"
    assert "projection=others" in str([each.text for each in alarms.alarms.watch.raised()])
    both.by_name["others"].take(Progress(1, 1, 1, True))
    assert (raised(alarms), both.attention) == (None, None)
    assert alarms.alarms.source.startswith("projector of 2 tables on ")


def test_a_wrong_rule_is_named(watches: ProjectionWatches) -> None:
    with pytest.raises(InvalidArgument, match="there is no figure projection_lags; did you mean"):
        ProjectorAlarms(AlarmSettings(rules="mine: projection_lags > 3"), watches)
