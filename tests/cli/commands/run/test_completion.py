"""Completion, in real shells; one that is not installed is skipped."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.processes import output, refused


def bash(*words: str) -> list[str]:
    """Returns what bash would offer for the last word."""
    quoted = " ".join(f"'{each}'" for each in words)
    ask = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _eventstore; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = output("completion", "bash") + "complete -p eventstore >&2\n" + ask
    shell = ["bash", "--noprofile", "--norc", "-u", "-c", script]
    result = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=60)
    assert result.stderr == "complete -o default -F _eventstore eventstore\n"
    return result.stdout.split()


def test_bash_completes_commands_and_options() -> None:
    assert bash("eventstore", "ta") == ["tail"]
    assert {"serve", "import", "topic", "completion", "--version"} <= set(bash("eventstore", ""))
    assert bash("eventstore", "topic", "cre") == ["create"]
    assert bash("eventstore", "tail", "--type", "topic", "--e") == ["--end"]
    assert "--if-missing" not in bash("eventstore", "read", "--")
    assert "--command" in bash("eventstore", "read", "order-1", "--")
    assert "--json" in bash("eventstore", "topic", "list", "--")
    assert bash("eventstore", "read", "some") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str) -> None:
    script = output("completion", shell)
    assert "from-version" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    before = "autoload -U compinit && compinit -u\n" if shell == "zsh" else ""
    result = subprocess.run([shell, "-c", before + script], check=False, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_another_shell_is_refused() -> None:
    assert refused("completion", "tcsh", code=2) == "SHELL is 'tcsh', expected bash, zsh, fish"
