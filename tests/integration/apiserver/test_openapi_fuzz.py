"""schemathesis reads the server's own OpenAPI and sends what it describes, and what it forbids: never a 500 (I50)."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.chaos.test_odd_requests import World

schemathesis = pytest.importorskip("schemathesis")

GROUPS = ("api/v1", "apis/apps/v1", "apis/batch/v1", "apis/rbac.authorization.k8s.io/v1", "apis/example.com/v1",
          "apis/apiextensions.k8s.io/v1", "apis/policy/v1", "apis/coordination.k8s.io/v1")  # fmt: skip


def send(world: World, case: Any) -> None:
    """A generated request, once as it is and once aimed at a place that exists, where it gets further."""
    body = case.body if isinstance(case.body, (dict, list, str, int, float, bool)) or case.body is None else b""
    encoded = body if body == b"" else msgspec.json.encode(body)
    content = case.media_type or "application/json"
    query = {str(name): str(value) for name, value in (case.query or {}).items()}
    world.send(case.method, unquote(case.formatted_path), encoded, content, query)
    if isinstance(body, dict):
        named = {**body.get("metadata", {})} if isinstance(body.get("metadata"), dict) else {}
        body = {**body, "metadata": {**named, "name": "target"}}
        body.pop("apiVersion", None)
        body.pop("kind", None)
        encoded = msgspec.json.encode(body)
    case.path_parameters = {name: "default" if name == "namespace" else "target" for name in case.path_parameters or {}}
    world.send(case.method, case.formatted_path, encoded, content, {})


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_document_describes_and_what_it_forbids(group: str) -> None:
    world = World()
    sent: set[str] = set()
    try:
        document = world.server.openapi.answer(f"/openapi/v3/{group}")
        assert document is not None
        for found in schemathesis.openapi.from_dict(document).get_all_operations():
            operation = found.ok()
            for mode in schemathesis.GenerationMode:
                creates = operation.method.upper() == "POST"
                if mode is schemathesis.GenerationMode.NEGATIVE and not creates:
                    continue  # making bad data is slow, and every kind is created somewhere

                def check(case: Any) -> None:
                    sent.add(case.method)
                    send(world, case)

                settings(
                    max_examples=2 if creates else 1,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )(given(case=operation.as_strategy(generation_mode=mode))(check))()
        assert {"GET", "POST", "PUT", "PATCH", "DELETE"} <= sent
        assert world.send("GET", "/api/v1/namespaces") == 200
    finally:
        world.close()
