"""A server that starts among many objects serves them within three seconds; they are decoded when they are used."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.local.apiserver import Server
from shoal.local.apiserver.storage.state_file import FILE

MANY = 50_000


async def test_fifty_thousand_objects_are_recovered_in_three_seconds(tmp_path: Path) -> None:
    first = Server(tmp_path)
    await first.start()
    await Client(first.transport()).create(
        CONFIG_MAP, {"metadata": {"name": "model"}, "data": {"x": "y" * 2500}}, "default"
    )
    await first.stop()
    database = sqlite3.connect(tmp_path / FILE)
    identity, resource, revision, value = database.execute(
        "SELECT id, resource, revision, value FROM objects WHERE name = 'model'"
    ).fetchone()
    database.executemany(
        "INSERT INTO objects VALUES (?, ?, 'default', ?, ?, ?)",
        (
            (identity + index, resource, f"c{index:05}", revision, value.replace(b'"model"', b'"c%05d"' % index))
            for index in range(1, MANY)
        ),
    )
    database.execute("UPDATE meta SET clean = 0")  # as after a kill: the file is checked, too
    database.commit()
    database.close()
    again = Server(tmp_path)
    began = time.process_time()
    await again.start()
    took = time.process_time() - began  # of this process: its neighbours do not count
    client = Client(again.transport())
    assert took < 3, f"{took:.1f} s"
    listed = await client.list_raw(CONFIG_MAP, "default")
    assert len(listed.items or ()) >= MANY
    assert msgspec.json.decode((listed.items or [])[0])["metadata"]["name"] == "c00001"
    await again.stop()
