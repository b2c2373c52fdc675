"""Prints the script with which a shell completes commands."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.errors import InvalidArgument


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    For bash, put into ~/.bashrc: eval "$(eventstore completion bash)"; for zsh the same in ~/.zshrc, after compinit. For
    fish: eventstore completion fish > ~/.config/fish/completions/eventstore.fish

    \b
    Example:
      eventstore completion bash
    """
    import typer.main

    from eventstore.cli.main import app
    from eventstore.cli.terminal.completion_scripts import SCRIPTS

    if shell not in SCRIPTS:
        raise InvalidArgument(f"SHELL is {shell!r}, expected {', '.join(SCRIPTS)}", field="shell", value=shell)
    print(SCRIPTS[shell](typer.main.get_command(app)), end="")
