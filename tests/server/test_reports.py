"""The text of /metrics: made anew for each who asks, unless that takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric
from eventstore.server.feature import Feature
from eventstore.server.reports import Reports

ASKED = LabelledMetric("asked", "gauge", "how often", ("who",))


class Counted(LabelledCollector):
    """Takes so long of the processor, and says how often it was asked."""

    declared = (ASKED,)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._asked = seconds, 0

    def collect(self) -> Iterator[LabelledFigures]:
        self._asked += 1
        began = time.thread_time()
        while time.thread_time() - began < self._seconds:
            pass
        figures = LabelledFigures(ASKED)
        figures.add(["all"], self._asked)
        yield figures


@pytest.mark.parametrize(("seconds", "found"), [(0.0, [1, 2, 3]), (0.05, [1, 1, 2])])
def test_figures_that_take_long_are_kept_for_a_while_and_others_are_not(seconds: float, found: list[int]) -> None:
    now = 0.0
    reports = Reports(lambda: True, clock=lambda: now)
    reports.add(Feature(collectors=[Counted(seconds)]))

    def asked() -> int:
        return int(float(reports.metrics().split()[-1]))

    seen = [asked()]
    now = 0.19
    seen.append(asked())
    now = 10.0
    seen.append(asked())
    assert seen == found
