"""Scripts with which a shell completes commands and options, made from the commands as they are declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

_BASH: Final = """\
_eventstore() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="" index words=""
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$path/${{COMP_WORDS[index]}}" in
            {paths}) path="$path/${{COMP_WORDS[index]}}" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _eventstore eventstore
"""
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


def words_by_path(program: Any) -> dict[tuple[str, ...], list[str]]:
    """Returns what may follow each command: `()` is the program, `("topic", "list")` a command of a group."""
    return dict(_walk(program, ()))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    options = [name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]
    names = sorted(getattr(command, "commands", ()))
    yield path, [*names, *options, "--help"]
    for name in names:
        yield from _walk(command.get_command(None, name), (*path, name))


def bash_script(program: Any) -> str:
    words = words_by_path(program)
    paths = "|".join(f'"/{"/".join(path)}"' for path in words if path)
    cases = "\n".join(
        f'        "{"".join("/" + name for name in path)}") words="{" ".join(each)}" ;;' for path, each in words.items()
    )
    return _BASH.format(paths=paths, cases=cases)


def zsh_script(program: Any) -> str:
    return _ZSH + bash_script(program)


def fish_script(program: Any) -> str:
    words = words_by_path(program)
    lines = []
    for path, each in words.items():
        conditions = [f"__fish_seen_subcommand_from {name}" for name in path] or ["__fish_use_subcommand"]
        names = [word for word in each if not word.startswith("--")]
        if path and names:
            conditions.append(f"not __fish_seen_subcommand_from {' '.join(names)}")
        when = "; and ".join(conditions)
        lines += [
            f"complete -c eventstore -n '{when}' " + (f"-l {word[2:]}" if word.startswith("--") else f"-a {word}")
            for word in each
        ]
    return "\n".join(lines) + "\n"


SCRIPTS: Final[dict[str, Callable[[Any], str]]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
