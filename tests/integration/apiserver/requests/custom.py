"""A custom kind: its definition, validation, defaults, subresources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import APPLY, JSON_PATCH, STRATEGIC, Step, delete, get, patch, post, put


def definition(**version: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 100},
                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "names": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 5}},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "either": {"x-kubernetes-int-or-string": True},
                },
                "x-kubernetes-validations": [
                    {"rule": "self.size < 50 || self.color == 'blue'", "message": "large ones are blue"}
                ],
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "ready": {"type": "boolean"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.diff.example"},
        "spec": {
            "group": "diff.example",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
                    },
                    **version,
                }
            ],
        },
    }


def custom() -> Iterator[Step]:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    where = "/apis/diff.example/v1/namespaces/diff/widgets"
    yield get(where)
    bad = definition()
    bad["metadata"]["name"] = "wrong.diff.example"
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0].pop("schema")
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0]["storage"] = False
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("type")
    yield post(crds, bad)
    yield post(crds, definition())
    yield Step("WAIT", where)

    def widget(name: str, spec: Any, **more: Any) -> dict[str, Any]:
        return {"apiVersion": "diff.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec, **more}

    yield post(where, widget("w", {"size": 2}))
    for index, spec in enumerate(
        (
            {},
            {"size": "x"},
            {"size": 0},
            {"size": 1.5},
            {"size": 101},
            {"size": 2, "color": "green"},
            {"size": 60},
            {"size": 60, "color": "blue"},
            {"size": 2, "names": ["a", "b", "c", "d"]},
            {"size": 2, "names": ["too long a name"]},
            {"size": 2, "names": "x"},
            {"size": 2, "unknown": 1},
            {"size": 2, "free": {"anything": [1, 2]}},
            {"size": 2, "either": "5%"},
            {"size": 2, "either": 5},
            {"size": 2, "either": True},
            None,
            [],
            "x",
            {"size": None},
        )
    ):
        yield post(where, widget(f"w{index}", spec))
    yield post(f"{where}?fieldValidation=Strict", widget("strict", {"size": 2, "unknown": 1}))
    yield post(where, {"kind": "Widget", "metadata": {"name": "x"}, "spec": {"size": 1}})
    yield post(where, {"apiVersion": "diff.example/v1", "metadata": {"name": "x"}, "spec": {"size": 1}})
    yield post(where, widget("withstatus", {"size": 2}, status={"ready": True}))
    yield put(f"{where}/w", widget("w", {"size": 3}))
    yield patch(f"{where}/w", {"spec": {"size": 4}})
    yield patch(f"{where}/w", {"spec": {"size": 4}}, STRATEGIC)
    yield patch(f"{where}/w", {"spec": {"size": 400}})
    yield patch(f"{where}/w", [{"op": "replace", "path": "/spec/free", "value": {"x": 1}}], JSON_PATCH)
    yield patch(f"{where}/w/status", {"status": {"ready": True, "replicas": 1}, "spec": {"size": 9}})
    yield patch(f"{where}/w/status", {"status": {"ready": "x"}})
    yield get(f"{where}/w/scale")
    yield patch(f"{where}/w/scale", {"spec": {"replicas": 7}})
    yield patch(f"{where}/w/scale", {"spec": {"replicas": 700}})
    yield patch(f"{where}/w?fieldManager=m", widget("w", {"size": 8}), APPLY)
    yield patch(f"{where}/w?fieldManager=m&force=true", widget("w", {"size": 8}), APPLY)
    yield patch(f"{where}/new?fieldManager=m", widget("new", {"size": 8}), APPLY)
    yield get(f"{where}?labelSelector=a")
    yield get(f"{where}?fieldSelector=metadata.name%3Dw")
    yield get(f"{where}?fieldSelector=spec.size%3D1")
    yield get(f"{where}/w/log")
    yield get("/apis/diff.example/v2/namespaces/diff/widgets")
    yield get("/apis/diff.example/v1/widgets")
    yield post("/apis/diff.example/v1/widgets", widget("x", {"size": 1}))
    yield patch(f"{crds}/widgets.diff.example", {"spec": {"scope": "Cluster"}})
    yield patch(f"{crds}/widgets.diff.example", {"spec": {"names": {"kind": "Other"}}})
    yield delete(f"{where}/w")
    yield delete(where)
