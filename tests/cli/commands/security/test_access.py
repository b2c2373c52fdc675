"""`eventstore access`, as it is run, beside a server that goes by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore.errors import InvalidArgument, PermissionDenied, Unauthenticated
from tests.cli.processes import output, refused, run
from tests.server_thread import ServerThread


def listed(data: Path) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(output("access", "list", "--json", "--data", data))}


def test_an_identity_is_added_listed_and_checked_and_may_do_what_that_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert listed(data) == {}
    added = run(
        "access", "add", "billing", "--grant", "append:invoice-", "--limit", "connections=3", "--days", 2, "--data", data
    )
    assert added.stderr.splitlines()[0] == f"billing is in {data / 'access.json'}: append:invoice-"
    token = added.stdout.strip()
    assert token.startswith("es_")
    output("access", "add", "node-1", "--grant", "cluster", "--certificate", "CN = node-1", "--data", data)
    found = listed(data)
    assert token.split("_", 2)[2] not in json.dumps(found) + output("access", "list", "--data", data)
    assert token.split("_", 2)[2] not in (data / "access.json").read_text()
    billing = found["billing"]
    assert (billing["grants"], billing["limits"], billing["certificates"]) == (["append:invoice-"], {"connections": 3}, [])
    assert found["node-1"]["certificates"] == ["CN=node-1"]
    assert found["node-1"]["tokens"] == []
    row = next(line for line in output("access", "list", "--data", data).splitlines() if line.split()[:1] == ["billing"])
    assert "append:invoice-" in row
    assert "connections=3" in row
    assert f"{token.split('_')[1]} until " in row

    assert output("access", "check", "billing", "append", "invoice-1", "--data", data) == "billing may append invoice-1\n"
    for wanted, said in (
        (("append", "order-1"), "append order-1"), (("append",), "append everything"),
        (("read", "invoice-1"), "read invoice-1"),
    ):  # fmt: skip
        denied = run("access", "check", "billing", *wanted, "--data", data)
        assert (denied.returncode, denied.stdout) == (1, f"billing may not {said}\n")
    told = refused("access", "check", "billing", "appends", "--data", data, code=2)
    assert told.startswith("there is no permission 'appends'; there are append, read, ")
    assert "there is no identity 'nobody'" in refused("access", "check", "nobody", "append", "--data", data, code=2)

    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        assert store.append("invoice-1", [es.NewEvent("T")], expected_version=0).version == 1
        with pytest.raises(PermissionDenied):
            store.append("order-1", [es.NewEvent("T")], expected_version=0)


def test_one_token_is_revoked_or_all_of_an_identity_while_a_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = (
        output("access", "add", "billing", "--grant", "writer", "--token", "--data", data).strip() for _ in range(2)
    )  # the second time it gets another token
    other = output("access", "add", "other", "--grant", "writer", "--data", data).strip()
    assert len(listed(data)["billing"]["tokens"]) == 2
    told = refused("access", "revoke", "billing", "--token", "0" * 8, "--data", data, code=2)
    assert told == "there is no token '00000000' of 'billing'; `eventstore access list` shows all"
    with ServerThread(data) as server:

        def known(token: str) -> bool:
            server.ask(lambda running: running.security.look())
            try:
                with es.blocking.connect(server.address, token=token, reconnect_timeout=0) as store:
                    return store.version("a") == 0
            except Unauthenticated:
                return False

        assert [known(each) for each in (first, second, other)] == [True, True, True]
        of_first = first.split("_")[1]
        said = output("access", "revoke", "billing", "--token", of_first, "--data", data)
        assert said == f"token {of_first} of billing was removed\n"
        assert [known(each) for each in (first, second, other)] == [False, True, True]
        assert output("access", "revoke", "billing", "--data", data) == "billing was removed\n"
        assert [known(each) for each in (first, second, other)] == [False, False, True]
    assert set(listed(data)) == {"other"}
    told = refused("access", "revoke", "billing", "--data", data, code=2)
    assert told == "there is no identity 'billing'; `eventstore access list` shows all"


def test_certificates_are_given_and_taken_one_by_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    both = ("--certificate", "CN=old", "--certificate", "CN=new")
    assert run("access", "add", "billing", "--grant", "reader", *both, "--data", data).stdout == ""  # and no token
    told = refused("access", "add", "billing", "--days", 3, "--certificate", "CN=x", "--data", data, code=2)
    assert told == "--days is for a token, and none is made; add --token"
    assert "is not a subject" in refused("access", "add", "billing", "--certificate", "billing", "--data", data, code=2)
    told = refused("access", "add", "other", "--certificate", "CN=old", "--data", data, code=2)
    assert told.startswith("the certificate CN=old is of billing, so it cannot be of other as well")
    told = refused("access", "revoke", "billing", "--certificate", "CN=x", "--data", data, code=2)
    assert told == "there is no certificate 'CN=x' of 'billing'; `eventstore access list` shows all"
    taken = output("access", "revoke", "billing", "--certificate", "CN = old", "--data", data)
    assert taken == "certificate CN=old of billing was removed\n"
    assert listed(data)["billing"]["certificates"] == ["CN=new"]
    assert run("access", "add", "billing", "--token", "--data", data).stdout.startswith("es_")


def test_what_is_reserved_is_told_apart_from_what_was_not_granted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tokens = {
        name: output("access", "add", name, "--grant", grant, "--data", data).strip()
        for name, grant in (("boss", "admin"), ("billing", "writer:invoice-"))
    }
    assert output("access", "check", "boss", "read", "$audit", "--data", data) == "boss may read $audit\n"
    for name in tokens:
        checked = run("access", "check", name, "append", "$audit", "--data", data)
        assert checked.stdout == f"{name} may not append $audit: ids that begin with $ are the server's own\n"
        assert checked.returncode == 1
    with ServerThread(data) as server:
        for name, expected, said in (
            ("boss", InvalidArgument, "aggregate_id '\\$audit' is reserved: ids that begin with \\$ are the server's own"),
            ("billing", PermissionDenied, "this needs the permission 'append'"),
        ):
            with es.blocking.connect(server.address, token=tokens[name]) as store, pytest.raises(expected, match=said):
                store.append("$audit", [es.NewEvent("T")], expected_version=0)


def test_an_identity_that_is_there_gets_another_token_only_if_one_is_asked_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    output("access", "add", "billing", "--grant", "reader", "--data", data)
    tokens = listed(data)["billing"]["tokens"]
    assert len(tokens) == 1
    changed = run("access", "add", "billing", "--grant", "writer:invoice-", "--limit", "connections=3", "--data", data)
    assert changed.stdout == ""
    said = "no token was made, because the identity was there before; --token makes one"
    assert changed.stderr.splitlines() == [f"billing is in {data / 'access.json'}: reader, writer:invoice-", said]
    found = listed(data)["billing"]
    assert (found["tokens"], found["limits"]) == (tokens, {"connections": 3})
    told = refused("access", "add", "billing", "--days", 3, "--data", data, code=2)
    assert told == "--days is for a token, and none is made; add --token"
    assert run("access", "add", "billing", "--token", "--days", 3, "--data", data).stdout.startswith("es_")
    assert len(listed(data)["billing"]["tokens"]) == 2


def test_a_certificate_of_two_identities_is_listed_and_revoked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("a", "b"):
        output("access", "add", name, "--grant", "reader", "--certificate", f"CN={name}", "--data", data)
    file = data / "access.json"
    file.write_text(file.read_text().replace("CN=b", "CN=a"))
    said = "the certificate CN=a is of a and b, so it lets no one in"
    assert said in run("access", "list", "--data", data).stderr
    output("access", "revoke", "b", "--certificate", "CN=a", "--data", data)
    shown = run("access", "list", "--json", "--data", data)
    assert said not in shown.stderr
    assert {each["name"]: each["certificates"] for each in json.loads(shown.stdout)} == {"a": ["CN=a"], "b": []}


@pytest.mark.parametrize("grant", ["park:", "read:", "writer:"])
def test_a_grant_with_nothing_after_its_colon_is_refused_by_name_and_changes_nothing(grant: str, tmp_path: Path) -> None:
    what = grant.rstrip(":")
    told = refused("access", "add", "billing", "--grant", grant, "--data", tmp_path, code=2)
    assert told == f"--grant {grant!r} has nothing after the colon: add the prefix, or write {what!r} if everything is meant"
    assert listed(tmp_path) == {}


@pytest.mark.parametrize("grant", ["stats:", "cluster:"])
def test_of_a_permission_that_no_prefix_limits_the_refusal_recommends_none(grant: str, tmp_path: Path) -> None:
    what = grant.rstrip(":")
    told = refused("access", "add", "billing", "--grant", grant, "--data", tmp_path, code=2)
    assert told == f"--grant {grant!r} has nothing after the colon: write {what!r}, which no prefix limits"


@pytest.mark.parametrize(("grant", "what"), [("foo:", "foo"), (":", "")])
def test_a_grant_of_nothing_known_is_refused_as_such_also_with_a_colon(grant: str, what: str, tmp_path: Path) -> None:
    told = refused("access", "add", "billing", "--grant", grant, "--data", tmp_path, code=2)
    assert told.startswith(f"there is no role or permission {what!r}; there are reader, ")


def test_a_list_that_has_such_a_grant_from_before_is_read_and_edited_as_ever(tmp_path: Path) -> None:
    output("access", "add", "billing", "--grant", "read", "--data", tmp_path)
    file = tmp_path / "access.json"
    file.write_text(file.read_text().replace('"read"', '"read:"'))
    output("access", "add", "billing", "--grant", "append:invoice-", "--data", tmp_path)
    assert listed(tmp_path)["billing"]["grants"] == ["read:", "append:invoice-"]
    assert output("access", "check", "billing", "read", "order-1", "--data", tmp_path) == "billing may read order-1\n"
    said = (
        "billing has the grant 'read:', with nothing after the colon, so it is for every name: "
        "`eventstore access add billing --grant read:PREFIX` limits it, `--grant read` says that all is meant"
    )
    assert run("access", "list", "--data", tmp_path).stderr.splitlines() == [said]
    output("access", "add", "billing", "--grant", "read:invoice-", "--data", tmp_path)
    assert listed(tmp_path)["billing"]["grants"] == ["append:invoice-", "read:invoice-"]
    assert run("access", "list", "--data", tmp_path).stderr == ""
