"""How a node or a command asks etcd: the password is in the environment, files are there, and URLs are URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventstore.cli.terminal.etcd_options import etcd_of
from eventstore.errors import InvalidArgument
from eventstore_cluster.nodes.options import PASSWORD, etcd_options


def test_the_password_comes_from_the_environment_and_not_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "secret")
    given = etcd_of("http://a:1/, https://b:2", "root", None, None, None)
    assert "secret" not in str(given)
    found = etcd_options(given)
    assert (found.endpoints, found.user, found.password) == (("http://a:1", "https://b:2"), "root", "secret")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("", None, None, None, None), "no endpoint of etcd is given"),
        (("127.0.0.1:2379", None, None, None, None), "is not an http or https URL"),
        (("http://a:1", None, "/nowhere/ca", None, None), "there is no file /nowhere/ca for --etcd-ca"),
        (("http://a:1", None, None, "/nowhere/cert", None), "there is no file /nowhere/cert for --etcd-cert"),
    ],
)
def test_what_leads_to_no_etcd_is_refused(given: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        etcd_options(etcd_of(*given))


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    with pytest.raises(InvalidArgument, match="of no use without --etcd-cert"):
        etcd_options(etcd_of("http://a:1", None, None, None, str(tmp_path / "key")))
