"""docs/examples/order_service: its own tests; under gunicorn and load, through a deployment; and from Celery's tasks.

A sender knows what each answer has to be: its orders are its own. A request whose answer did not come, or that was answered by
503, is sent again under its key. The load ends once enough was answered after the deployment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

import eventstore as es
from tests.client.forks.service import children
from tests.documents.pages import ROOT, text_of
from tests.domain import postgresql
from tests.ports import free_port
from tests.server_process import ServerProcess
from tests.waiting import wait_until

EXAMPLE: Final = ROOT / "docs/examples/order_service"
PAGE: Final = text_of("docs/FRAMEWORKS.md").partition("## Django and gunicorn")[2].partition("\n## ")[0]
DOMAIN: Final = "order_service.orders:app"
PATIENCE_S: Final = 60.0
"""For one answer: longer than any timeout of the service."""
SENDERS: Final = 4
ENOUGH: Final = 40
"""Orders that are placed, read, repeated and cancelled before the deployment, and again after it."""


@pytest.mark.heavy
def test_its_own_tests_pass(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "order_service")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "eventstore.pytest_plugin", "."]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTSTORE_", "PYTEST_", "DJANGO_"))}
    done = subprocess.run(
        command, cwd=tmp_path / "order_service", env=clean, capture_output=True, text=True, timeout=200, check=False
    )
    assert "6 passed" in done.stdout, done.stdout


def test_the_page_shows_the_program_as_it_is() -> None:
    shown = [block.partition("\n") for block in PAGE.split("```python ")[1:]]
    assert {name for name, _, _ in shown} >= {"clients.py", "views.py", "shipping.py"}
    for name, _, block in shown:
        for part in block.partition("```")[0].split("\n\n\n"):
            assert part.strip() in (EXAMPLE / name).read_text(), f"{name} of the page: {part}"


def program(name: str) -> list[str]:
    """Returns the command of a program. gunicorn is its script: it begins itself anew, which a module cannot."""
    return [str(Path(sys.executable).with_name(name))] if name == "gunicorn" else [sys.executable, "-m", name]


class Service:
    """The store, a worker with the domain, gunicorn, the projector and the process that ships, on a copy of the example."""

    def __init__(self, folder: Path, stack: ExitStack, database: str) -> None:
        self.folder, self._stack = folder, stack
        shutil.copytree(EXAMPLE, folder / "app" / "order_service")
        self.store = stack.enter_context(ServerProcess(folder / "data"))
        self.workers = free_port(), free_port()
        self.port = free_port()
        self.environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "app"), str(ROOT)]), "DATABASE_URL": database,
            "EVENTSTORE_STORE": self.store.address, "DJANGO_SETTINGS_MODULE": "order_service.settings",
            "ORDERS_WORKERS": "tcp://" + ",".join(f"127.0.0.1:{port}" for port in self.workers),
        }  # fmt: skip

    @contextmanager
    def _running(self, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*program(command[0]), *command[1:]], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            process.kill()
            process.wait()

    def start(self, name: str, *command: str, said: str = "") -> subprocess.Popen[bytes]:
        """Starts a program, and waits until its log says this once more."""
        before = self.log(name).count(said)
        process = self._stack.enter_context(self._running(name, *command))
        wait_until(lambda: self.log(name).count(said) > before or process.poll() is not None or not said, f"{name} is there")
        assert process.poll() is None, self.log(name)
        return process

    def work(self, number: int, *options: str) -> subprocess.Popen[bytes]:
        listen = f"127.0.0.1:{self.workers[number]}"
        return self.start(
            f"worker-{number}", "eventstore", "work", "--domain", DOMAIN, "--listen", listen, *options, said="working"
        )

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def deploy(self) -> None:
        """Puts the next version of the program where this one is; it takes larger orders."""
        for name, before, after in (
            ("views.py", "VERSION = 1", "VERSION = 2"),
            ("orders.py", "CENTS_MAX = 1_000_000", "CENTS_MAX = 2_000_000"),
        ):
            path = self.folder / "app/order_service" / name
            assert before in path.read_text()
            path.write_text(path.read_text().replace(before, after))

    def ask(self, path: str, body: object = None, key: str = "") -> tuple[int, Any, str]:
        """Returns status, answer and version of a request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Idempotency-Key": key},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer), answer.headers.get("X-Version", "")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null"), ""


class Load:
    """`right`: the rounds that were answered as they have to be; `wrong`: the answers that were not."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped = threading.Event()
        self.right = Counter[int]()
        self.again = Counter[object]()
        self.versions = Counter[str]()
        self.wrong: list[str] = []
        self.orders: list[str] = []
        self._threads = [threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(SENDERS)]
        for each in self._threads:
            each.start()

    def _send(self, sender: int) -> None:
        number = 0
        while not self._stopped.is_set() and not self.wrong:
            number += 1
            order = f"o-{sender}-{number}"
            placed = {"customer": f"c-{sender}", "cents": number}
            self.orders.append(order)
            for path, body, key, expected in (
                (f"/orders/{order}", placed, f"place-{order}", (201, {"version": 1})),
                (f"/orders/{order}", None, "", (200, {**placed, "cancelled": False, "version": 1})),
                (f"/orders/{order}/cancel", {"why": "late"}, f"cancel-{order}", (201, {"version": 2})),
                (f"/orders/{order}", placed, f"place-{order}", (201, {"version": 1})),
            ):
                found = self._answer(path, body, key)
                if found != expected:
                    self.wrong.append(f"{path} {body}: {found}, expected {expected}")
            self.right[sender] += 1

    def _answer(self, path: str, body: object, key: str) -> tuple[int, Any]:
        while True:
            try:
                status, answer, version = self._service.ask(path, body, key)
            except TimeoutError as error:
                return 0, f"no answer: {error}"
            except (OSError, ValueError, HTTPException) as error:
                self.again[type(error).__name__] += 1
            else:
                self.versions[version] += 1
                if status != 503:
                    return status, answer
                self.again[status] += 1
            self._stopped.wait(0.02)

    def more(self, rounds: int) -> None:
        """Waits until so many more rounds are answered."""
        until = self.right.total() + rounds
        wait_until(lambda: self.right.total() >= until or self.wrong, "the service answers", 2 * PATIENCE_S)

    def stop(self) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join(2 * PATIENCE_S)
            assert not each.is_alive(), "a sender waits without end"


@pytest.mark.long
@pytest.mark.skipif(postgresql.why_not() is not None, reason=str(postgresql.why_not()))
@pytest.mark.parametrize("preload", [False, True], ids=["reloaded", "preloaded"])
def test_each_answer_is_right_through_a_deployment(tmp_path: Path, preload: bool) -> None:
    pytest.importorskip("django")
    with ExitStack() as stack:
        service = Service(tmp_path, stack, stack.enter_context(postgresql.running_server()))
        to = service.environment["DATABASE_URL"]
        old = service.work(0, "--checkpoint", str(tmp_path / "reactions.json"))
        service.start(
            "project", "eventstore", "project", "--projection", "order_service.orders:Orders", "--to", to, said="caught up"
        )
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "--verbosity", "0"], env=service.environment, cwd=tmp_path, check=True
        )
        shipping = service.start("shipping", "order_service.shipping")
        pid = tmp_path / "gunicorn.pid"
        web = service.start(
            "gunicorn", "gunicorn", "order_service.wsgi", "--workers", "3", "--threads", "2", "--pid", str(pid),
            "--bind", f"127.0.0.1:{service.port}", "--control-socket", str(tmp_path / "gunicorn.ctl"),
            *(["--preload"] * preload), said="Listening at",
        )  # fmt: skip
        load = Load(service)
        try:
            load.more(ENOUGH)
            service.deploy()
            service.work(1)
            load.more(ENOUGH // 4)
            old.terminate()
            assert old.wait(PATIENCE_S) == 0
            service.work(0, "--checkpoint", str(tmp_path / "reactions.json"))
            load.more(ENOUGH // 4)
            _replace(service, web, pid, preload)
            wait_until(lambda: load.versions["2"] or load.wrong, "the new version answers")
            load.more(ENOUGH)
        finally:
            load.stop()
        assert load.wrong == [], service.log("gunicorn")[-5000:]
        assert "WORKER TIMEOUT" not in service.log("gunicorn")
        assert service.ask("/orders/large", {"customer": "c", "cents": 1_500_000}, "large")[0] == 201
        with es.blocking.connect(service.store.address) as store:
            for order in load.orders:
                assert [event.type for event in store.read(order)] == ["OrderPlaced", "OrderCancelled"], order
            (last,) = store.read("large")
            wait_until(lambda: all(each.position >= last.sequence for each in store.projections()), "the table has all")
        for sender in range(SENDERS):
            own = sorted(order for order in load.orders if order.startswith(f"o-{sender}-"))
            status, rows, _ = service.ask(f"/customers/c-{sender}/orders")
            assert (status, [row["order"] for row in rows]) == (200, own[:100])
            assert all(row["cancelled"] for row in rows)
        shipped = {f"shipped {order} to c-{order.split('-')[1]}" for order in load.orders}
        wait_until(lambda: shipped <= set(service.log("shipping").splitlines()), "all is shipped")
        lines = service.log("shipping").splitlines()
        assert len(lines) == len(set(lines)), "nothing is shipped twice"
        shipping.terminate()
        assert shipping.wait(PATIENCE_S) == 0
        assert service.log("shipping").splitlines()[-1] == "left the group"


def _replace(service: Service, web: subprocess.Popen[bytes], pid: Path, preload: bool) -> None:
    """Has gunicorn run the code that is there now: by new workers, or, if it was loaded before the fork, by a new gunicorn."""
    if not preload:
        web.send_signal(signal.SIGHUP)
        return
    web.send_signal(signal.SIGUSR2)
    new = pid.with_name(f"{pid.name}.2")
    wait_until(lambda: new.exists() and new.read_text().strip() and len(children(int(new.read_text()))) == 3, "a new gunicorn")
    successor = int(new.read_text())
    service._stack.callback(_end, successor)
    web.terminate()
    assert web.wait(PATIENCE_S) == 0


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{pid}/stat").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), "it has ended")


def celery_tasks(service: Service, name: str) -> subprocess.Popen[bytes]:
    """Starts processes of Celery that carry out the tasks, with their queue and results in files."""
    folder = service.folder
    for each in ("queue", "control", "results"):
        (folder / each).mkdir(exist_ok=True)
    (folder / "queued.py").write_text(
        "import pathlib\n"
        "from order_service.tasks import app\n"
        "from tests.client.forks.whole_files import keep_in_files\n"
        f"keep_in_files(app, pathlib.Path({str(folder)!r}))\n"
    )
    service.environment["PYTHONPATH"] += os.pathsep + str(folder)
    options = "--pool prefork --concurrency 3 --without-gossip --without-mingle --without-heartbeat --loglevel INFO"
    return service.start(name, "celery", "-A", "queued", "worker", "-n", f"{name}@%h", *options.split(), said=" ready.")


@pytest.mark.heavy
def test_tasks_of_celery_place_each_order_once_however_often_they_run(tmp_path: Path) -> None:
    pytest.importorskip("celery")
    with ExitStack() as stack:
        service = Service(tmp_path, stack, "sqlite:read.db")
        service.work(0)
        tasks = celery_tasks(service, "celery")
        program = (
            "from queued import app\n"
            "task = app.tasks['order_service.tasks.place_order']\n"
            "sent = [task.apply_async((f'o-{n}', 'ada', n), task_id=f't-{n}') for n in range(1, 13) for _ in range(2)]\n"
            "print(sorted(each.get(timeout=60, interval=0.02) for each in sent))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], env=service.environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stdout == f"{[1] * 24}\n", done.stderr + service.log("celery")[-3000:]
        tasks.terminate()
        assert tasks.wait(PATIENCE_S) == 0
        with es.blocking.connect(service.store.address) as store:
            assert {row.aggregate_id: row.version for row in store.aggregates("o-")} == {f"o-{n}": 1 for n in range(1, 13)}


SENDS_TASKS: Final = """
import itertools
import pathlib
import sys
import threading

from queued import app

task = app.tasks["order_service.tasks.place_order"]
stop = pathlib.Path("stop")


def send(sender):
    for number in itertools.count(1):
        order = f"o-{sender}-{number}"
        sent = [task.apply_async((order, f"c-{sender}", number), task_id=f"place-{order}") for _ in range(2)]
        print(f"sent {order}\\n", end="", flush=True)
        print(f"placed {order} {[each.get(timeout=60, interval=0.02) for each in sent]}\\n", end="", flush=True)
        if stop.exists():
            return


senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]
for each in senders:
    each.start()
for each in senders:
    each.join()
large = task.apply_async(("large", "c", 1_500_000), task_id="large")
print("placed large", [large.get(timeout=60, interval=0.02)], flush=True)
"""


@pytest.mark.long
def test_tasks_of_celery_are_right_through_a_deployment(tmp_path: Path) -> None:
    pytest.importorskip("celery")
    (tmp_path / "load.py").write_text(SENDS_TASKS)
    with ExitStack() as stack:
        service = Service(tmp_path, stack, "sqlite:read.db")
        old = service.work(0)
        tasks = celery_tasks(service, "celery-1")
        load = service.start("load", "load", said="placed")

        def more(rounds: int) -> None:
            until = service.log("load").count("placed") + rounds
            wait_until(
                lambda: service.log("load").count("placed") >= until or load.poll() is not None,
                "tasks are done",
                2 * PATIENCE_S,
            )
            assert load.poll() is None, service.log("load")[-3000:]

        more(ENOUGH)
        service.deploy()
        service.work(1)
        more(ENOUGH // 4)
        old.terminate()
        assert old.wait(PATIENCE_S) == 0
        service.work(0)
        celery_tasks(service, "celery-2")
        more(ENOUGH // 4)
        tasks.terminate()
        assert tasks.wait(PATIENCE_S) == 0
        more(ENOUGH)
        (tmp_path / "stop").touch()
        assert load.wait(2 * PATIENCE_S) == 0, service.log("load")[-3000:]
        lines = service.log("load").splitlines()
        orders = [line.split()[1] for line in lines if line.startswith("sent ")]
        assert {line for line in lines if line.startswith("placed ")} == {f"placed {each} [1, 1]" for each in orders} | {
            "placed large [1]"
        }
        with es.blocking.connect(service.store.address) as store:
            for order in [*orders, "large"]:
                assert [event.type for event in store.read(order)] == ["OrderPlaced"], order
