"""A number of more than 4,300 digits, which Python reads in no number, is refused in one line as any other wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.fields import read_number
from eventstore.security.audit import FIRST
from tests.cli.processes import Server, refused

DIGITS = "1" * 5_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--verify", "--head", f"{DIGITS}:{FIRST}"],
        ["append", "a", "--type", "T", "--data", "1", "--expected-version", DIGITS],
        ["export", "--after", DIGITS],
        ["tail", "--no-follow", "--after", DIGITS],
    ],
    ids=lambda each: each[0],
)
def test_in_an_option_of_a_command_about_a_server(shared: Server, arguments: list[str]) -> None:
    assert "111111" in refused(*arguments, store=shared.store, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--listen", f"127.0.0.1:{DIGITS}"],
        ["serve", "--http", f"127.0.0.1:{DIGITS}"],
        ["serve", "--set", f"alarm_mail_server=mail:{DIGITS}"],
        ["access", "add", "billing", "--grant", "reader", "--limit", f"connections={DIGITS}"],
    ],
    ids=lambda each: "".join(each[-2:])[:20],
)
def test_in_an_option_of_a_server(tmp_path: Path, arguments: list[str]) -> None:
    assert "111111" in refused(*arguments, "--data", tmp_path / "data", code=2)


def test_in_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(f"requests_max = {DIGITS}")
    assert f"{config} cannot be read: it is not TOML" in refused(
        "serve", "--data", tmp_path / "data", "--config", config, code=2
    )


def test_a_number_is_ascii_digits_that_64_bits_may_hold() -> None:
    assert [read_number(text) for text in ("0", "007", "9" * 19)] == [0, 7, 10**19 - 1]
    assert [read_number(text) for text in ("", "-1", "+1", " 1", "1_0", "٣", "²", "9" * 20, DIGITS)] == [None] * 9
