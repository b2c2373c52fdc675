"""The console by HTTP: what every page keeps to, signing in, and what it is about."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

import eventstore as es
from eventstore.console import history
from eventstore.extras import advice
from tests.console.conftest import Serve
from tests.console.http import Visitor, read_until
from tests.security.access_file import give, take_away
from tests.security.conftest import Certificates, certificates  # noqa: F401 # a fixture
from tests.server_thread import ServerThread
from tests.waiting import wait_until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the figures more often than a person would."""
    monkeypatch.setattr(history, "INTERVAL_S", 0.05)


def test_metrics_and_health_are_beside_it(shared: ServerThread) -> None:
    visitor = Visitor(shared.http)
    assert json.loads(visitor.get("/health").text)["healthy"] is True
    assert "# TYPE eventstore_events_total counter" in visitor.get("/metrics").text
    found = visitor.get("/else")
    assert (found.status, found.text) == (404, "there are /metrics, /health and /console\n")


def test_without_it_the_others_are_served_as_before(serve: Serve) -> None:
    visitor = Visitor(serve(console=False).http)
    assert json.loads(visitor.get("/health").text)["healthy"] is True
    assert visitor.get("/metrics").status == 200
    assert visitor.get("/console").text == "there are /metrics and /health\n"


def test_without_its_libraries_the_others_are_served_as_before_and_say_what_is_missing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eventstore.console.subject.LIBRARIES", ("a_library_that_is_not_installed",))
    caplog.set_level("INFO")
    visitor = Visitor(serve().http)
    assert visitor.get("/metrics").status == 200
    told = f"/console is not served, for its libraries are not installed; {advice('console')}"
    for path in ("/console", "/console/log"):
        found = visitor.get(path)
        assert (found.status, found.text) == (404, f"{told}\n")
    assert visitor.get("/consoles").text == "there are /metrics and /health\n"
    assert [each.message for each in caplog.records if each.name == "eventstore.server.http"] == [told]


def test_every_answer_forbids_what_is_not_of_the_console(shared: ServerThread) -> None:
    for path in ("/console", "/console/static/console.js", "/console/nowhere"):
        headers = Visitor(shared.http).get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("console", [True, False])
def test_figures_and_health_come_with_the_headers_of_pages(serve: Serve, console: bool) -> None:
    visitor = Visitor(serve(console=console).http)
    for path, status in (("/metrics", 200), ("/health", 200), ("/nowhere", 404)):
        answer = visitor.get(path)
        assert answer.status == status
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "strict-transport-security" not in answer.headers, "it is not asked by TLS"
    if console:
        assert "nosniff" in visitor.get("/console", Host="evil.example").headers["x-content-type-options"]


@pytest.mark.parametrize("console", [True, False])
def test_over_tls_every_answer_tells_browsers_to_stay_there(
    tmp_path: Path,
    certificates: Certificates,  # noqa: F811
    console: bool,
) -> None:
    with ServerThread(tmp_path / "data", http="127.0.0.1:0", console=console, **certificates.settings()) as server:
        visitor = Visitor(server.http.replace("127.0.0.1", "localhost"), certificates.context())
        for path in ("/metrics", "/health", *(("/console", "/console/static/console.js") if console else ())):
            assert visitor.get(path).headers["strict-transport-security"] == "max-age=86400"


def test_a_name_of_a_stranger_that_points_to_this_machine_is_refused(shared: ServerThread) -> None:
    visitor = Visitor(shared.http)
    assert visitor.get("/console", Host="evil.example:80").status == 421
    assert visitor.get("/console", Host="localhost:80").status == 200


@pytest.mark.usefixtures("quick")
def test_live_figures_come_while_the_page_is_open(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store, Visitor(server.http).updates("/console/live") as updates:
        read_until(updates, "event: figures")
        store.append("a", [es.NewEvent("T")] * 17, 0)
        read_until(updates, "<dt>Events</dt><dd>17</dd>")


@pytest.mark.usefixtures("quick")
def test_the_overview_has_a_chart_with_words_for_each_figure(serve: Serve) -> None:
    visitor = Visitor(serve().http)
    wait_until(lambda: "Events appended" in visitor.get("/console").text, "the first figures")
    page = visitor.get("/console")
    labels = re.findall(r'<svg [^>]*role="img" aria-label="([^"]+)"', page.text)
    assert any(each.startswith("Events appended in the last hour: now 0 /s, at most ") for each in labels)
    assert len(labels) == len(history.SERIES)
    assert "Nothing needs attention." in page.words


def test_who_has_no_token_sees_the_form_alone(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "stats")
    visitor = Visitor(serve().http)
    for path in ("/console", "/console/live", "/console/sign-out"):
        found = visitor.post(path, {}) if path.endswith("out") else visitor.get(path)
        assert found.status == 303
        assert found.headers["location"].startswith("/console/sign-in?to=%2Fconsole")
    nowhere = visitor.get("/console/nowhere")
    assert (nowhere.status, "There is no page /console/nowhere." in nowhere.words, "<nav" in nowhere.text) == (404, True, False)
    assert visitor.sign_in("a-wrong-one").status == 401
    assert visitor.sign_in("").status == 400
    assert visitor.cookie is None
    answer = visitor.sign_in(token)
    assert (answer.status, answer.headers["location"]) == (303, "/console")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert "ann" in visitor.get("/console").words
    nowhere = visitor.get("/console/nowhere")
    assert (nowhere.status, "There is no page /console/nowhere." in nowhere.words, "<nav" in nowhere.text) == (404, True, True)
    assert token not in visitor.get("/console").text


def test_a_record_of_the_audit_trail_is_coloured_as_other_json_is(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "admin")
    visitor = Visitor(serve().http)
    visitor.sign_in("a-wrong-one")
    visitor.sign_in(token)
    wait_until(lambda: "LOGIN_REFUSED" in visitor.get("/console/log").text, "the refusal is recorded")
    for page in ("/console/log", "/console/aggregates/one?id=%24audit"):
        assert (
            '<span class="key">&#34;what&#34;</span>: <span class="text">&#34;LOGIN_REFUSED&#34;</span>'
            in visitor.get(page).text
        )


def test_signing_in_leads_to_the_page_that_was_asked_for_with_its_parameters(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "reader")
    http = serve().http
    for asked in ("/console/aggregates?prefix=a%26b%3F&from=c", "/console/log", "/console?x=1"):
        visitor = Visitor(http)
        form = visitor.get(visitor.get(asked).headers["location"])
        (to,) = re.findall(r'name="to" value="([^"]*)"', form.text)
        found = visitor.post("/console/sign-in", {"token": token, "to": html.unescape(to)})
        assert found.headers["location"] == asked
    assert Visitor(http).post("/console/do/retry?reaction=r", {}).headers["location"] == "/console/sign-in?to=%2Fconsole"


def test_signing_in_leads_to_no_other_site(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "stats")
    visitor = Visitor(serve().http)
    visitor.get("/console/sign-in")
    for to in ("https://evil.example", "//evil.example", "/consoles", "/\\evil.example"):
        assert visitor.post("/console/sign-in", {"token": token, "to": to}).headers["location"] == "/console"
    found = visitor.post("/console/sign-in", {"token": token, "to": "/console"}, **{"Sec-Fetch-Site": "cross-site"})
    assert found.status == 403


def test_only_its_own_form_signs_in_whatever_the_browser_says_of_where_it_comes_from(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "stats")
    http = serve().http
    form, other = {"token": token, "to": "/console"}, Visitor(http)
    other.get("/console/sign-in")
    for said in ({}, {"Sec-Fetch-Site": "same-origin"}):
        blind = Visitor(http)
        assert blind.post("/console/sign-in", form, **said).status == 403
        assert blind.post("/console/sign-in", {**form, "csrf": ""}, **said).status == 403
        assert (blind.cookie, list(blind.cookies)) == (None, ["eventstore_console_form"])
        foreign = re.findall(r'name="csrf" value="([^"]+)"', other.last.text if other.last else "")
        assert blind.post("/console/sign-in", {**form, "csrf": foreign[0]}, **said).status == 403
        blind.get("/console/sign-in")
        answer = blind.post("/console/sign-in", form, **said)
        assert (answer.status, blind.cookie is None) == (303, False)


def test_who_is_signed_out_or_revoked_sees_nothing_more(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "stats")
    server = serve()
    ann, other = Visitor(server.http), Visitor(server.http)
    ann.sign_in(token)
    other.sign_in(token)
    assert ann.get("/console").status == 200
    assert ann.post("/console/sign-out", {"csrf": "of-another"}).status == 403
    assert ann.post("/console/sign-out", {}).status == 303
    assert ann.get("/console").status == 303
    assert other.get("/console").status == 200
    with other.updates("/console/live"):
        take_away(tmp_path / "data", "ann")
        wait_until(lambda: other.get("/console").status == 303, "the token does not count any more")


def test_who_may_not_see_figures_is_told_which_permission_that_needs(serve: Serve, tmp_path: Path) -> None:
    token = give(tmp_path / "data", "bob", "read:order-")
    visitor = Visitor(serve().http)
    visitor.sign_in(token)
    found = visitor.get("/console")
    assert found.status == 403
    assert "stats" in found.words


def test_over_tls_the_cookie_is_secure_and_the_certificate_may_have_any_name(
    tmp_path: Path,
    certificates: Certificates,  # noqa: F811
) -> None:
    token = give(tmp_path / "data", "ann", "stats")
    certificate, key = certificates.files("billing")
    settings = certificates.settings(tls_certificate=certificate, tls_key=key, tls_clients="required")
    with ServerThread(tmp_path / "data", http="127.0.0.1:0", **settings) as server:
        context = certificates.context("shipping")
        context.check_hostname = False
        visitor = Visitor(server.http, context)
        assert visitor.get("/metrics").status == 401
        answer = visitor.sign_in(token)
        assert answer.status == 303
        assert "Secure" in answer.headers["set-cookie"]
        assert visitor.get("/console").status == 200
