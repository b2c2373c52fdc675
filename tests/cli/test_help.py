from __future__ import annotations

import re
import subprocess
import sys

import pytest

from eventstore.security.permissions import Permission
from eventstore.security.roles import ROLES
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import settings_by_group
from tests.cli.processes import output, refused, run

COMMANDS = (
    "serve",
    "settings",
    "work",
    "send",
    "project",
    "import",
    "export",
    "read",
    "tail",
    "query",
    "append",
    "stats",
    "inspect",
    "verify",
    "rebuild",
    "salvage",
    "publish",
    "top",
    "node",
)
GROUPS = {
    "topic": ("create", "list", "show", "delete"),
    "queue": ("add", "remove"),
    "group": ("list", "show", "reset", "delete"),
    "message": ("get", "tail", "send"),
    "cluster": ("status", "top"),
    "deadletter": ("list", "replay", "purge"),
}
HEAVY = ("trio", "numpy", "lmdb", "rich", "structlog", "pydantic", "anyio", "msgpack")


def test_help_lists_every_command_in_a_whole_sentence() -> None:
    text = output("--help")
    assert all(f"\n  {command} " in text for command in (*COMMANDS, *GROUPS))
    assert "..." not in text.partition("\nRun:\n")[2]


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_of_commands_lists_them_and_each_has_help_with_an_example(group: str) -> None:
    text = output(group, "--help")
    for command in GROUPS[group]:
        assert f"\n  {command} " in text
        own = output(group, command, "--help")
        assert f"Example:\n    eventstore {group} {command}" in own
        assert "--json" in own
        assert not re.search(r"<|\{\w", own.replace("'{", "")), command


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_commands_without_a_command_shows_its_help(group: str) -> None:
    result = run(group)
    assert (result.returncode, result.stderr) == (2, "")
    assert result.stdout == output(group, "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    text = output(command, "--help")
    assert f"Example:\n    eventstore {command}" in text


def test_version() -> None:
    assert output("--version").startswith("eventstore ")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from eventstore.cli.main import run; run(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_an_unknown_command_is_refused_in_one_line() -> None:
    assert "No such command" in refused("conquer", code=2)
    assert refused("sreve", code=2).endswith("Did you mean 'serve'? See --help")


def test_a_missing_argument_is_refused_in_one_line() -> None:
    assert "Missing argument" in refused("read", code=2)


def test_no_command_shows_help() -> None:
    result = run()
    assert (result.returncode, result.stderr) == (2, "")
    assert result.stdout == output("--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_types_of_python(command: str) -> None:
    assert not re.search(r"<|\{\w", output(command, "--help").replace("'{", "")), command


@pytest.mark.parametrize("command", ["serve", "node", "work"])
def test_help_shows_no_links_of_pages(command: str) -> None:
    assert "](" not in output(command, "--help")


def test_serve_lists_its_options_in_groups_and_every_setting_has_one() -> None:
    text = output("serve", "--help")
    for group, members in settings_by_group(ServerSettings).items():
        section = text.split(f"\n{group}:\n")[1].split("\n\n")[0]
        for declared in members:
            assert re.search(rf"^  {declared.flag.split('/')[0]}\b", section, flags=re.MULTILINE), declared.name


def test_the_package_is_a_program() -> None:
    result = subprocess.run([sys.executable, "-m", "eventstore", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("eventstore ")


def test_a_wrong_option_is_refused_in_plain_words() -> None:
    assert refused("read", "a", "--limit", "x", code=2) == "Invalid value for '--limit': it must be a whole number; see --help"
    for listing in (["read", "a"], ["list"]):
        expected = "Invalid value for '--limit': it must be greater than or equal to 1; see --help"
        assert refused(*listing, "--limit", 0, code=2) == expected
    assert refused("export", "-o", code=2) == "Option '-o' requires an argument; see --help"


def test_the_help_of_access_names_every_role_and_permission() -> None:
    text = " ".join(output("access", "add", "--help").split())
    assert f"Roles: {', '.join(ROLES)}. Permissions: {', '.join(Permission)}." in text
