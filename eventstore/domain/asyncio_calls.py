"""Finds handlers and reactions that call asyncio, which servers and workers cannot run: they run on trio."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import DomainRefused

if TYPE_CHECKING:
    from eventstore.domain.domain import Domain

WAY_OUT: Final = (
    "servers and workers run on trio, not on asyncio; use anyio, which runs on both (anyio.sleep, anyio.to_thread.run_sync), "
    "and libraries that support trio, such as httpx"
)
_NEED_A_LOOP: Final = frozenset(
    {
        "as_completed",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "create_task",
        "ensure_future",
        "gather",
        "get_event_loop",
        "get_running_loop",
        "open_connection",
        "open_unix_connection",
        "run",
        "shield",
        "sleep",
        "start_server",
        "TaskGroup",
        "timeout",
        "timeout_at",
        "to_thread",
        "wait",
        "wait_for",
    }
)
_SAID_BY_ASYNCIO: Final = ("no running event loop", "There is no current event loop", "unrecognized yield message")


def refuse_asyncio(domain: Domain, *, reactions: bool) -> None:
    """Refuses a domain that servers and workers cannot run. `reactions`: whether they are to run as well.

    Looks at the code of the functions themselves; what they call is only found when it runs, see `way_out_of`.

    Raises:
        DomainRefused: one of them calls asyncio; names it, the call and the way out.
    """
    found: list[tuple[str, Callable[..., Any]]] = [(each.name, each.function) for each in domain.handlers.values()]
    if reactions:
        found += [(f"reaction {name}", each.function) for name, each in domain.reactions.items()]
    for name, function in found:
        for called in _asyncio_calls(inspect.unwrap(function)):
            raise DomainRefused(f"{name} calls asyncio.{called}; {WAY_OUT}", handler=name, call=called)


def way_out_of(error: BaseException, text: str) -> str:
    """Returns what to use instead, if the error with this text is that of asyncio on another event loop; else an empty text."""
    if isinstance(error, RuntimeError | TypeError) and any(said in text for said in _SAID_BY_ASYNCIO):
        return f"; {WAY_OUT}"
    return ""


def _asyncio_calls(function: Callable[..., Any]) -> Iterator[str]:
    """Yields the functions of asyncio that this code names and that need its event loop."""
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if not isinstance(code, CodeType):
        return
    module = False
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL":
            found = names.get(name)
            module = isinstance(found, ModuleType) and found.__name__ == "asyncio"
            if getattr(found, "__module__", "").startswith("asyncio.") and getattr(found, "__name__", "") in _NEED_A_LOOP:
                yield found.__name__  # type: ignore[union-attr] # as the line above says
        else:
            if module and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in _NEED_A_LOOP:
                yield name
            module = False
