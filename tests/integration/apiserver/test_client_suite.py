"""The suite of the client and the cache, written for the real control plane, runs against the embedded server too.

The tests are the very same functions; only where they connect differs. Every history is judged by the invariants. The
rows of reading are walked on both by `tests/unit/kube/test_reading.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from shoal.kube.client import Client
from shoal.kube.history import History, RecordingTransport
from shoal.kube.kubeconfig import load
from tests.checker import assert_holds
from tests.integration.apiserver.conftest import Embedded
from tests.integration.kube.conftest import start  # noqa: F401 (a fixture)
from tests.integration.kube.test_cache import test_many_caches_share_one_connection_pool  # noqa: F401
from tests.integration.kube.test_client import (  # noqa: F401
    test_a_certificate_of_a_stranger_is_named,
    test_a_token_of_a_service_account,
    test_acting_as_someone_else,
    test_create_get_list_update_delete,
    test_events_arrive_and_are_counted,
    test_lists_page_and_select,
    test_status_is_written_apart,
    test_the_four_patches_and_dry_run,
    test_typed_refusals,
    test_watching_from_a_revision_and_with_initial_events,
)


class Plane:
    """The embedded server in the shape of the real control plane's fixture: files instead of data in the kubeconfig."""

    def __init__(self, embedded: Embedded) -> None:
        self.server = embedded.url
        self.kubeconfig: Path = embedded.folder / "kubeconfig.files"
        authority = embedded.folder / "ca.crt"
        authority.write_bytes(embedded.server.identity.ca.certificate)
        config = yaml.safe_load(embedded.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": self.server, "certificate-authority": str(authority)}
        self.kubeconfig.write_text(yaml.safe_dump(config))


@pytest.fixture
def control_plane(embedded: Embedded) -> Plane:
    return Plane(embedded)


@pytest.fixture
async def client(control_plane: Plane) -> AsyncIterator[Client]:
    history = History()
    transport = load(control_plane.kubeconfig)
    yield Client(RecordingTransport(transport, history, replica="test"))
    await transport.close()
    assert_holds(history.entries)
