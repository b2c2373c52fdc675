"""Gives every command that connects to a store the options that say who it is, and whom it trusts.

The clients take what is not given to them from the environment; the options are put there.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from eventstore.cli.terminal.settings_options import SETTINGS_OFFERED

_SECTION: Final = "Security"
_CONNECTS: Final = ("store", "source")
"""The parameters that name a store."""
_VARIABLES: Final = {
    "tls_ca": ("EVENTSTORE_TLS_CA", "Who signed the certificate of the server at tls://HOST:PORT. [the system's CAs]"),
    "tls_certificate": ("EVENTSTORE_TLS_CERTIFICATE", "A certificate that says who this client is."),
    "tls_key": ("EVENTSTORE_TLS_KEY", "The key of it."),
    "token_file": ("EVENTSTORE_TOKEN_FILE", "A file with a token that says who this client is."),
}


def offers_access(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as a command with these options, if it connects to a store; else as it is."""
    signature = inspect.signature(function, eval_str=True)
    if not set(_CONNECTS) & signature.parameters.keys():
        return function
    groups, _ = getattr(function, SETTINGS_OFFERED, ((), ()))
    names = [] if "Security" in groups else list(_VARIABLES)  # there they are settings

    @functools.wraps(function)
    def command(*arguments: Any, **given: Any) -> Any:
        for name in names:
            value = given.pop(name, None)
            if value is not None:
                os.environ[_VARIABLES[name][0]] = value
        return function(*arguments, **given)

    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    rest = [each for each in signature.parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    offered = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name)) for name in names
    ]
    command.__signature__ = signature.replace(parameters=[*own, *offered, *rest])  # type: ignore[attr-defined] # as inspect says
    return command


def _option(name: str) -> Any:
    flag, (variable, text) = "--" + name.replace("_", "-"), _VARIABLES[name]
    return Annotated[
        str | None, typer.Option(flag, metavar="FILE", envvar=variable, show_envvar=False, help=text, rich_help_panel=_SECTION)
    ]
