"""History in PostgreSQL: the contract of the store against Debian's server (package postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.controllers.planning.history.log_store import LogStore
from shoal.controllers.planning.history.store import HistoryQuery, HistoryStore, HistoryTrouble
from tests.unit.history import contract


def binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.fail("PostgreSQL is not there; on Debian: apt-get install postgresql")
    return found[-1].parent


class PostgresServer:
    """On a socket of its own, as a user that PostgreSQL takes: not root."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.bin = folder, folder / "data", binaries()
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        if self._as:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)

    def _run(self, *words: str) -> None:
        subprocess.run([*self._as, *words], check=True, capture_output=True, cwd=self.folder)

    def create(self) -> None:
        self._run(str(self.bin / "initdb"), "-D", str(self.data), "-A", "trust", "-U", "shoal", "-E", "UTF8", "-N")

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._run(
            str(self.bin / "pg_ctl"), "-D", str(self.data), "-w", "-l", f"{self.folder}/log", "-o", options, "start"
        )

    def stop(self) -> None:
        self._run(str(self.bin / "pg_ctl"), "-D", str(self.data), "-m", "immediate", "-w", "stop")

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={self.folder}&user=shoal"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
    made = PostgresServer(folder)
    made.create()
    made.start()
    yield made
    made.stop()
    shutil.rmtree(folder)


@pytest.fixture
def store(server: PostgresServer) -> Iterator[HistoryStore]:
    made = HistoryStore(server.url, most_rows=10, kept_days=1)
    yield made
    connection = made.connect()
    connection.cursor().execute("DROP TABLE IF EXISTS shoal_runs, shoal_logs")
    connection.commit()
    made.close()


@pytest.mark.parametrize("promise", contract.ALL, ids=lambda one: one.__name__)
def test_postgresql_keeps_the_contract(promise: Callable[[HistoryStore], None], store: HistoryStore) -> None:
    promise(store)
    assert store.runs(HistoryQuery(limit=1)) or LogStore(store, days=1).known(), "nothing was written"


def test_a_server_that_was_away_is_used_again(server: PostgresServer, store: HistoryStore) -> None:
    store.write([contract.look("a", "waiting", 0)])
    server.stop()
    with pytest.raises(HistoryTrouble):
        store.write([contract.look("a", "running", 5)])
    server.start()
    store.write([contract.look("a", "running", 5), contract.look("a", "ended", 9, outcome="Succeeded")])
    (found,) = store.runs(HistoryQuery())
    assert (found.round, found.outcome) == (1, "Succeeded")


def test_two_controllers_that_write_the_same_leave_it_once(server: PostgresServer, store: HistoryStore) -> None:
    other = HistoryStore(server.url)
    store.write([contract.look("a", "waiting", 0)])
    for one in (other, store, other):
        one.write([contract.look("a", "running", 5)])
    other.close()
    (found,) = store.runs(HistoryQuery())
    assert found.round == 1 and found.started_at
