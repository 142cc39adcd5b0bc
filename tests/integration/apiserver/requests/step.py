"""What is sent: one request, and short ways to write it down.

`{{uid_x}}`, `{{rv_x}}` and `{{continue}}` stand for what the last successful answer about an object named `x` (or the
last page) said, on each server its own.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

NS = "/api/v1/namespaces/diff"
JSON_PATCH, MERGE, STRATEGIC, APPLY = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


class Step(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: Any = None
    content: str = "application/json"
    raw: bytes | None = None
    accept: str = "application/json"
    headers: dict[str, str] = {}

    @property
    def data(self) -> bytes | None:
        if self.raw is not None:
            return self.raw
        return None if self.body is None else json.dumps(self.body).encode()

    def __str__(self) -> str:
        content = self.content if self.method == "PATCH" else ""
        body = str(self.body)[:160] if self.body is not None else (self.raw or b"")[:60]
        return f"{self.method} {self.path} {content} {body!s}"


def get(path: str, **more: Any) -> Step:
    return Step("GET", path, **more)


def post(path: str, body: Any, **more: Any) -> Step:
    return Step("POST", path, body, **more)


def put(path: str, body: Any, **more: Any) -> Step:
    return Step("PUT", path, body, **more)


def patch(path: str, body: Any, content: str = MERGE, **more: Any) -> Step:
    return Step("PATCH", path, body, content, **more)


def delete(path: str, body: Any = None, **more: Any) -> Step:
    return Step("DELETE", path, body, **more)


def cm(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **more}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels or {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}
