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


def test_a_wrong_rule_is_named(watches: ProjectionWatches) -> None:
    with pytest.raises(InvalidArgument, match="there is no figure projection_lags; did you mean"):
        ProjectorAlarms(AlarmSettings(rules="mine: projection_lags > 3"), watches)
