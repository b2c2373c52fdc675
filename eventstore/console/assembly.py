"""Puts the console together: what the HTTP listener of a server or node needs of it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from eventstore.console.console import PATH, Console, refusing
from eventstore.console.gatekeeping import App, for_this_machine
from eventstore.console.pages.actions import action_routes
from eventstore.console.pages.aggregates import aggregate_routes
from eventstore.console.pages.alarms import alarm_page_routes
from eventstore.console.pages.broker import broker_routes
from eventstore.console.pages.chain import chain_routes
from eventstore.console.pages.clients import client_routes
from eventstore.console.pages.cluster import cluster_routes
from eventstore.console.pages.log import log_routes
from eventstore.console.pages.overview import overview_routes
from eventstore.console.pages.reactions import reaction_routes
from eventstore.console.pages.sign_in import sign_in_routes
from eventstore.console.pages.timers import timer_routes
from eventstore.console.rendering import FOLDER
from eventstore.console.subject import Subject


def assembled(subject: Subject) -> tuple[Console, App]:
    """Returns the console, which has to run beside, and its application, which answers below `PATH`."""
    console = Console(subject)
    pages = Starlette(
        routes=[
            *overview_routes(console),
            *aggregate_routes(console),
            *chain_routes(console),
            *log_routes(console),
            *broker_routes(console),
            *client_routes(console),
            *cluster_routes(console),
            *reaction_routes(console),
            *timer_routes(console),
            *alarm_page_routes(console),
            *action_routes(console),
            *sign_in_routes(console),
            Mount(f"{PATH}/static", StaticFiles(directory=FOLDER / "static")),
        ],
        exception_handlers={HTTPException: refusing(console)},
    )
    return console, for_this_machine(pages) if subject.open_to_strangers else pages
