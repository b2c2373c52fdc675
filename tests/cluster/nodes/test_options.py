"""How a node or a command asks etcd: the password is in the environment, files are there, and URLs are URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.cli.terminal.etcd_options import EtcdAccess
from eventstore.errors import InvalidArgument
from eventstore_cluster.nodes.options import PASSWORD


def test_the_password_comes_from_the_environment_and_not_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "secret")
    given = EtcdAccess("http://a:1/, https://b:2", user="root")
    assert "secret" not in str(given.plain())
    found = given.options()
    assert (found.endpoints, found.user, found.password) == (("http://a:1", "https://b:2"), "root", "secret")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (EtcdAccess(""), "no endpoint of etcd is given"),
        (EtcdAccess("127.0.0.1:2379"), "is not an http or https URL; --etcd takes such as http://127.0.0.1:2379"),
        (EtcdAccess("http://a:99999"), "'http://a:99999' is not an http or https URL"),
        (EtcdAccess("http://:1"), "'http://:1' is not an http or https URL"),
        (EtcdAccess("http://[::1"), r"'http://\[::1' is not an http or https URL"),
        (EtcdAccess("http://n\x1b:1"), r"'http://n\\x1b:1' is not an http or https URL"),
        (EtcdAccess("http://n 1:1"), "'http://n 1:1' is not an http or https URL"),
        (EtcdAccess("http://a:1", ca="/nowhere/ca"), "there is no file /nowhere/ca for --etcd-ca"),
        (EtcdAccess("http://a:1", cert="/nowhere/cert"), "there is no file /nowhere/cert for --etcd-cert"),
    ],
)
def test_what_leads_to_no_etcd_is_refused(given: EtcdAccess, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        given.options()


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    with pytest.raises(InvalidArgument, match="of no use without --etcd-cert"):
        EtcdAccess("http://a:1", key=str(tmp_path / "key")).options()
