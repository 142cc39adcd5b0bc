"""The controller in its pod: no place on disk that it may write."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from typing import Any

import pytest

from shoal.kube.certificates import make_authority, make_leaf
from shoal.kube.webhooks import WebhookServer
from tests.faults import proven


def _writes_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")


@proven(without=_writes_files)
async def test_f278_a_certificate_is_presented_without_a_writable_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """F278: the pod's root is read-only and has no directory for temporary files. Holds: the webhook presents the
    certificate that it is given, so that the replica becomes ready."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    leaf = make_leaf(make_authority(), "webhook", hosts=["127.0.0.1"])
    server = WebhookServer()
    server.present(leaf)
    port = await server.start("127.0.0.1", 0)
    try:
        presented = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=10)
    finally:
        await server.stop()
    assert presented.split() == leaf.certificate.decode().split()
