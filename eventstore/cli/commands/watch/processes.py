"""Lists processes and their steps, and has one compensate or end."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore

processes = command_group("processes", "Processes: what waits for which step.")
Id = Annotated[str, typer.Argument(metavar="ID", help="The process, such as Fulfilment-order-1.")]
Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; it is kept with the step, with who and when.")]


@processes.command("list", cls=PlainCommand)
def list_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the process class.")],
    stuck: Annotated[bool, typer.Option("--stuck", help="Only those that have made no step for too long.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Those that have ended, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List the processes of a class that are under way, those first that have waited longest. Reads all their steps.

    \b
    Example:
      eventstore processes list Fulfilment --stuck
    """
    with _connect(store, "list") as connected:
        last: dict[str, tuple[int, dict[str, Any]]] = {}
        for event in connected.read_all(types=[f"{name}Stepped"]):
            step = event.json()
            if step["ended"] and not ended:
                last.pop(event.aggregate_id, None)
            else:
                last[event.aggregate_id] = event.timestamp, step
    found = [(each, *of) for each, of in last.items() if of[1]["kind"] == "quiet" or not stuck]
    found = sorted(found, key=lambda each: each[1])[:limit]
    if as_json:
        print_json([{"process": each, "since_us": since, **_members(step)} for each, since, step in found])
    elif found:
        rows = [(each, step["state"], moment(since), step["number"], _last(step)) for each, since, step in found]
        print_rows(("process", "state", "since", "steps", "last"), rows, [None] * len(rows))
    else:
        print_line(f"no process {name} is {'stuck' if stuck else 'under way'}")


def _members(step: dict[str, Any]) -> dict[str, Any]:
    return {"state": step["state"], "steps": step["number"], "stuck": step["kind"] == "quiet", "ended": step["ended"]}


def _last(step: dict[str, Any]) -> str:
    if step["kind"] == "quiet":
        return "stuck"
    return str(step["name"]) if step["kind"] == "event" else f"{step['kind']} {step['name']}".strip()


@processes.command("show", cls=PlainCommand)
def show(process: Id, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the steps of a process: what it took, the state after it, and what it sent.

    \b
    Example:
      eventstore processes show Fulfilment-order-1
    """
    with _connect(store, "show") as connected:
        steps = [(each.version, each.timestamp, each.json()) for each in connected.read(process) if each.type[0] != "$"]
    if as_json:
        print_json([{"version": version, "time_us": time, **step} for version, time, step in steps])
    elif steps:
        rows = [
            (moment(time), _last(step), step["source"] or "–", step["state"], ", ".join(each["type"] for each in step["sends"]))
            for _, time, step in steps
        ]
        print_rows(("time", "step", "event", "state after it", "sends"), rows, [None] * len(rows))
    else:
        print_line(f"there is no process {process}")
        raise typer.Exit(1)


@processes.command("compensate", cls=PlainCommand)
def compensate(process: Id, because: Because, store: StoreAddress = DEFAULT_STORE) -> None:
    """Send what takes back the commands of a process, the last one first. It goes on; `end` ends it.

    \b
    Example:
      eventstore processes compensate Fulfilment-order-1 --because "the warehouse burnt down"
    """
    _tell(store, process, "compensate", because)


@processes.command("end", cls=PlainCommand)
def end(process: Id, because: Because, store: StoreAddress = DEFAULT_STORE) -> None:
    """End a process: its deadlines are cancelled, and it takes nothing any more.

    \b
    Example:
      eventstore processes end Fulfilment-order-1 --because "shipped by hand"
    """
    _tell(store, process, "end", because)


def _tell(store: str, process: str, kind: str, because: str) -> None:
    from eventstore.commands import RawCommand

    name, dash, _ = process.partition("-")
    if not dash:
        raise typer.BadParameter(f"{process} is no process; name it as `eventstore processes list` does", param_hint="ID")
    step = json.dumps({"process": process, "kind": kind, "name": "", "value": because}).encode()
    with _connect(store, kind) as connected:
        done = connected.send(RawCommand(f"{name}Step", process, step), metadata={"who": getpass.getuser(), "why": because})
    if done.version is None:
        print_line(f"{process} has not begun, or has ended")
        raise typer.Exit(1)
    print_line(f"{process}: {kind} is done as step {done.version}")


def _connect(store: str, command: str) -> BlockingStore:
    from eventstore import blocking

    return blocking.connect(store, name=f"eventstore processes {command}", timeout=None)
