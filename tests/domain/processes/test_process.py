"""Processes by the test kit: steps, states, deadlines, refusals, compensation, and code that has changed."""

from __future__ import annotations

import xml.etree.ElementTree
from dataclasses import dataclass
from typing import Any

import pytest

import eventstore.domain as d
from eventstore.domain.processes.picture import mermaid, svg
from eventstore.domain.processes.registration import process_type
from eventstore.domain.testing import AGGREGATE_ID, given_process
from eventstore.errors import DomainRefused, Rejected, UnknownEvent
from fulfilment import Accept, Cancel, Cancelled, Fulfilment, Paid, Placed, Release, Reserve, Reserved
from tests.documents.pages import text_of
from tests.examples import EXAMPLES

ORDER = AGGREGATE_ID
"""The aggregate of the events of a scenario, which name the process by it."""


@dataclass(frozen=True)
class Begun:
    job: str


@dataclass(frozen=True)
class Went:
    job: str
    number: int


@dataclass(frozen=True)
class Do:
    worker: str
    what: str


@dataclass(frozen=True)
class Undo:
    worker: str
    what: str


def test_it_sends_waits_and_ends() -> None:
    process = given_process(Fulfilment).when(Placed("a-1")).then_sends(Reserve("a-1", ORDER)).then_is("reserving")
    process.when(Reserved(ORDER)).then_sends(Accept(ORDER)).then_is("waiting for payment")
    process.when(Paid()).then_sends().then_is("paid").then_ended()
    process.after("3h").then_sends()
    assert not process.process.stuck


def test_a_deadline_takes_everything_back() -> None:
    process = given_process(Fulfilment, Placed("a-1"), Reserved(ORDER)).after("29m").then_sends()
    process.after("2m").then_sends(Cancel(ORDER, "it was not paid")).then_is("cancelling")
    process.when(Cancelled("it was not paid")).then_sends(Release("a-1", ORDER)).then_is("cancelled").then_ended()
    process.when(Paid()).then_sends().then_is("cancelled")


def test_a_refusal_is_taken_and_what_was_refused_is_not_taken_back() -> None:
    process = given_process(Fulfilment, Placed("a-1")).when_refused(Reserve("a-1", ORDER), "sold_out")
    process.then_sends(Cancel(ORDER, "sold_out")).when(Cancelled("sold_out")).then_sends().then_ended()


def test_an_event_that_comes_before_its_state_is_kept_until_then() -> None:
    process = given_process(Fulfilment, Placed("a-1")).when(Paid()).then_sends().then_is("reserving")
    assert [each.name for each in process.process.kept] == ["Paid"]
    process.when(Reserved(ORDER)).then_is("paid").then_ended()
    assert process.process.kept == ()


def test_what_comes_before_it_begins_is_passed_over() -> None:
    process = given_process(Fulfilment, Paid(), Reserved(ORDER)).then_sends()
    assert process.process.version == 0
    process.when(Placed("a-1")).then_is("reserving")


def test_one_that_makes_no_step_counts_as_stuck_until_it_makes_one() -> None:
    process = given_process(Fulfilment, Placed("a-1")).after("1h59m")
    assert not process.process.stuck
    process.after("2m")
    assert process.process.stuck
    process.when(Reserved(ORDER)).then_is("waiting for payment")
    assert not process.process.stuck


def job(**options: Any) -> type[d.Process]:
    """Returns a new process class that does what `Went` says, of a domain of its own."""

    class Job(d.Process):
        code = options.get("code", 1)
        done: tuple[str, ...] = ()

        @d.on(Begun, by="job", starts=True)
        def begun(self, event: Begun) -> None:
            self.done = ("begun",)

        @d.on(Went, by="job")
        def went(self, event: Went) -> None:
            what = f"{event.number} of {self.begun_with}"
            self.done += (what,)
            for number in range(event.number):
                self.send(Do("w", f"{what}.{number}"), undo=Undo("w", f"{what}.{number}"))

        @d.refused(Do)
        def not_done(self, rejection: object) -> None:
            self.compensate()

    domain = d.Domain()
    domain.process(Job)
    return Job


def test_what_was_done_is_taken_back_in_reverse_order_once() -> None:
    process = given_process(job(), Begun("j"), Went("j", 1), Went("j", 2))
    process.compensate().then_sends(Undo("w", "2 of 1.1"), Undo("w", "2 of 1.0"), Undo("w", "1 of 1.0"))
    process.compensate().then_sends()


def test_what_comes_after_a_refused_command_was_not_sent_and_is_not_taken_back() -> None:
    process = given_process(job(), Begun("j"), Went("j", 1), Went("j", 3)).when_refused(Do("w", "3 of 1.1"))
    process.then_sends(Undo("w", "3 of 1.0"), Undo("w", "1 of 1.0"))


def test_one_that_is_under_way_knows_the_code_that_it_began_with() -> None:
    old = given_process(job(), Begun("j"), Went("j", 1))
    changed = job(code=2)
    new = given_process(changed, Begun("j"), Went("j", 1)).then_sends(Do("w", "1 of 2.0"))
    assert new.process.begun_with == 2
    kind = process_type(changed)
    process = d.restore(changed, "Job-j", old._scenario._history or [])  # its steps, as the code of before has stored them
    assert process.begun_with == 1
    process.take(kind.taken(kind.told_of(Went("j", 1), "j", "j/9")), process.code)
    assert process.done[-1] == "1 of 1"


class Waiting(d.Process):
    """Waits for half an hour after it was told to."""

    stuck_after = "2h"

    @d.on(Begun, by="job", starts=True, to="waiting")
    def begun(self, event: Begun) -> None:
        self.later("over", after="30m")
        self.send(Do("w", "it"), undo=Undo("w", "it"))

    @d.on(Went, by="job")
    def went(self, event: Went) -> None:
        if event.number:
            self.later("over", after="30m")
        else:
            self.cancel("over")

    @d.deadline("over", to="over")
    def over(self) -> None: ...

    @d.refused(Do, at="waiting", to="refused")
    def not_done(self, rejection: object) -> None: ...


_waiting = d.Domain()
_waiting.process(Waiting)


@pytest.mark.parametrize("number", [0, 1])
def test_a_deadline_that_is_cancelled_or_set_again_while_its_command_is_on_its_way_is_not_over(number: int) -> None:
    process = given_process(Waiting, Begun("j"), Went("j", number))
    process._run(process_type(Waiting).command("deadline", "Waiting-j", "over", "1")).then_is("waiting")
    process.after("31m").then_is("over" if number else "waiting")
    assert "over" not in process.process.deadlines


def test_one_that_has_made_a_step_while_it_was_to_be_told_that_it_is_stuck_is_not() -> None:
    process = given_process(Waiting, Begun("j"), Went("j", 0))
    process._run(process_type(Waiting).command("quiet", "Waiting-j", "", "1"))
    assert not process.process.stuck
    assert process.after("3h").process.stuck


def test_what_was_refused_in_another_state_is_not_taken_back() -> None:
    process = given_process(Waiting, Begun("j")).after("31m").when_refused(Do("w", "it")).then_is("over")
    process.compensate().then_sends()


def test_the_picture_has_its_states_and_what_leads_from_one_to_the_next() -> None:
    assert mermaid(Fulfilment) == (
        "stateDiagram-v2\n"
        "    s0 : reserving\n"
        "    s1 : cancelling\n"
        "    s2 : waiting for payment\n"
        "    s3 : paid\n"
        "    s4 : cancelled\n"
        "    [*] --> s0 : Placed\n"
        "    s0 --> s1 : refused: Reserve\n"
        "    s0 --> s2 : Reserved\n"
        "    s2 --> s3 : Paid\n"
        "    s1 --> s3 : Paid\n"
        "    s2 --> s1 : after payment\n"
        "    s1 --> s4 : Cancelled\n"
    )


def test_the_page_shows_the_process_as_it_is() -> None:
    section = text_of("docs/DOMAIN.md").partition("## Processes")[2].partition("\n## ")[0]
    shown, kit = (block.partition("```")[0] for block in section.split("```py\n")[1:])
    assert shown.strip() in (EXAMPLES / "fulfilment.py").read_text()
    names: dict[str, Any] = {}
    exec(kit, names)
    names["test_an_order_that_is_not_paid_is_cancelled"]()


def test_the_drawing_has_what_strangers_name_escaped_and_the_way_of_a_process_stronger() -> None:
    class Strange(d.Process):
        @d.on(Begun, by="job", starts=True, to="<b>&")
        def begun(self, event: Begun) -> None: ...

        @d.on(Went, by="job", to="over")
        def went(self, event: Went) -> None: ...

    d.Domain().process(Strange)
    drawn = xml.etree.ElementTree.fromstring(svg(Strange, ["<b>&", "over"]))
    texts = [each.text for each in drawn.iter("text")]
    assert sorted(filter(None, texts)) == ["<b>&", "Begun", "Went", "over"]
    assert [each.get("stroke-width") for each in drawn.iter("rect")] == ["2.5", "2.5"]
    assert [each.text for each in drawn.iter("text") if each.get("font-weight")] == ["over"]


def test_what_is_declared_wrongly_is_refused_by_name() -> None:
    class Never(d.Process):
        @d.on(Went, by="job")
        def went(self, event: Went) -> None: ...

    class Twice(d.Process):
        @d.on(Begun, by="job", starts=True)
        def one(self, event: Begun) -> None: ...

        @d.on(Begun, by="job")
        def other(self, event: Begun) -> None: ...

    app = d.Domain()
    with pytest.raises(DomainRefused, match="never begins"):
        app.process(Never)
    with pytest.raises(DomainRefused, match="two methods for Begun, one and other"):
        app.process(Twice)
    with pytest.raises(DomainRefused, match="takes a subclass of Process"):
        app.process(Begun)  # type: ignore[arg-type]
    with pytest.raises(DomainRefused, match="registered already"):
        app.process(Fulfilment)
    with pytest.raises(DomainRefused, match="is not registered"):
        given_process(Never)
    with pytest.raises(DomainRefused, match="stuck_after of process"):
        app.process(type("Hasty", (Fulfilment,), {"stuck_after": "2 hours"}))
    with pytest.raises(DomainRefused, match="a name of its own"):

        @d.on(Begun, starts=True)
        def _(self: object, event: Begun) -> None: ...


def test_a_deadline_without_a_method_and_an_event_whose_method_is_gone_are_refused_by_name() -> None:
    class Typo(d.Process):
        @d.on(Begun, by="job", starts=True)
        def begun(self, event: Begun) -> None:
            self.later("paymnet", after="30m")

    d.Domain().process(Typo)
    with pytest.raises(Exception, match="has no method marked with deadline\\('paymnet'\\)"):
        given_process(Typo, Begun("j"))

    class Less(d.Process):
        @d.on(Begun, by="job", starts=True)
        def begun(self, event: Begun) -> None: ...

    d.Domain().process(Less, name="Job")
    steps = given_process(job(), Begun("j"), Went("j", 1))._scenario._history or []
    with pytest.raises(UnknownEvent, match="Less has no method for Went, which it has taken before"):
        d.restore(Less, "Job-j", steps)


def test_an_event_that_names_no_process_and_sending_outside_a_step_are_refused() -> None:
    class Loose(d.Process):
        @d.on(Went, by="number", starts=True)
        def went(self, event: Went) -> None: ...

    d.Domain().process(Loose)
    with pytest.raises(Exception, match="names process Loose by 'number', which is 1, not text"):
        given_process(Loose, Went("j", 1))
    with pytest.raises(RuntimeError, match="only in its methods"):
        given_process(Fulfilment, Placed("a-1")).process.send(Cancel("o", "w"))


async def test_delivered_again_a_command_that_was_refused_is_not_sent_a_second_time() -> None:
    """It might be accepted now, and the process was told otherwise."""
    scenario = given_process(Fulfilment, Placed("a-1"))
    (step,) = scenario._fresh
    kind = process_type(Fulfilment)
    sent: list[object] = []

    async def send(command: object, command_id: str, *, metadata: object) -> None:
        """Asks the process as a server does; has every other command refused."""
        sent.append(command)
        if isinstance(command, kind.command_class):
            scenario._scenario.when(command)
            handled = scenario._scenario._handled
            if handled is not None and handled.error is not None:
                scenario._scenario._handled = None
                raise handled.error
        else:
            raise Rejected("no stock", reason="no_stock")

    reaction = kind.domain.reactions["Fulfilment_sends"]
    (stored,) = [each for each in scenario._scenario._history or [] if each.type == "FulfilmentStepped"]
    for _ in range(2):
        await reaction.run(stored, send)  # type: ignore[arg-type] # it returns nothing
    reserves = [each for each in sent if not isinstance(each, kind.command_class)]
    assert len(reserves) == 1
    assert scenario.process.state == "cancelling"
    assert step.number == 1


async def test_commands_keep_their_ids_when_the_class_gets_a_method_for_what_was_refused() -> None:
    """A step that was parked for want of it is retried then: what was accepted before must not be done again."""

    class Job(d.Process):
        @d.on(Begun, by="job", starts=True)
        def begun(self, event: Begun) -> None:
            self.send(Do("w", "one"))
            self.send(Do("w", "two"))

    class Mended(Job):
        @d.refused(Do)
        def not_done(self, rejection: object) -> None: ...

    sent: list[dict[str, str]] = []
    for cls in (Job, Mended):
        domain = d.Domain()
        domain.process(cls, name="Job")
        scenario = given_process(cls, Begun("j"))
        (stored,) = scenario._scenario._history or []
        ids = dict[str, str]()

        async def send(command: Any, command_id: str, *, metadata: object, ids: dict[str, str] = ids) -> None:
            ids[command_id] = getattr(command, "payload", b"").decode()

        await domain.reactions["Job_sends"].run(stored, send)  # type: ignore[arg-type] # it returns nothing
        sent.append({key: value for key, value in ids.items() if "w" in value})
    assert len(sent[0]) == 2
    assert sent[0] == sent[1]
