"""A random schema, eighty random objects, two servers: the same objects stored, the same faults named in the same
words.
"""

from __future__ import annotations

import random

import pytest

from shoal.kube.kubeconfig import load
from shoal.local.apiserver import Server
from tests.integration.builtin.exchange import differences, post, send, until_served

pytestmark = pytest.mark.controlplane

TEXTS = ["a", "b", "abc", "", "aaaaaa", "zzz", "1.2.3.4", "2024-01-01T00:00:00Z", "1h"]
ODD = [None, True, 0, -3, 1.5, "", "abc", [], {}, ["a"], {"a": 1}]


class Author:
    """Writes schemas, and objects that mostly fit them."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def likely(self, share):
        return self.chance.random() < share

    def leaf(self):
        kind = self.chance.choice(["string", "integer", "number", "boolean"])
        schema = {"type": kind}
        if self.likely(0.2):
            schema["nullable"] = True
        if self.likely(0.15):
            return {**schema, "default": {"string": "abc", "integer": 10, "number": 10, "boolean": True}[kind]}
        bounds = {
            "string": [("maxLength", [2, 5, 20]), ("minLength", [1, 3]), ("pattern", ["^a", "b$", "^[a-c]*$"]),
                       ("enum", [["a", "b", "abc"]])],
            "integer": [("minimum", [0, 1, 5]), ("maximum", [5, 10]), ("multipleOf", [2, 5])],
            "number": [("minimum", [0, 1, 5]), ("maximum", [5, 10]), ("multipleOf", [2, 5])],
        }  # fmt: skip
        for word, values in bounds.get(kind, ()):
            if self.likely(0.3):
                schema[word] = self.chance.choice(values)
        return schema

    def schema(self, depth=0):
        kind = self.chance.random()
        if depth >= 3 or kind < 0.45:
            return self.leaf()
        if kind < 0.65:
            made = {
                "type": "object",
                "properties": {
                    self.chance.choice("abcdef"): self.schema(depth + 1) for _ in range(self.chance.randint(1, 4))
                },
            }
            if self.likely(0.4):
                made["required"] = [self.chance.choice(list(made["properties"]))]
            return {**made, **({"x-kubernetes-preserve-unknown-fields": True} if self.likely(0.2) else {})}
        if kind < 0.75:
            return {
                "type": "object",
                "additionalProperties": self.schema(depth + 1),
                **({"maxProperties": 2} if self.likely(0.4) else {}),
            }
        if kind < 0.82:
            return {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}
        if kind < 0.9:
            item = {
                "type": "object",
                "required": ["k"],
                "properties": {"k": {"type": "string"}, "v": self.schema(depth + 2)},
            }
            return {
                "type": "array",
                "items": item,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
            }
        return {"x-kubernetes-int-or-string": True}

    def value(self, schema):
        if self.likely(0.04):
            return self.chance.choice(ODD)
        if schema.get("x-kubernetes-int-or-string"):
            return self.chance.choice([1, "50%"])
        choices = {"string": TEXTS, "integer": [0, 1, 2, 5, 7, 10, 12, 5.0], "number": [0, 1, 2.5, 5, 10, 11.5],
                   "boolean": [True, False]}  # fmt: skip
        kind = schema["type"]
        if kind in choices:
            return self.chance.choice(choices[kind])
        if kind == "array":
            return [self.value(schema["items"]) for _ in range(self.chance.randint(0, 3))]
        made = {name: self.value(child) for name, child in (schema.get("properties") or {}).items() if self.likely(0.8)}
        if isinstance(schema.get("additionalProperties"), dict):
            for name in self.chance.sample("xyz", self.chance.randint(0, 3)):
                made[name] = self.value(schema["additionalProperties"])
        return {**made, **({"zz": {"q": 1}} if self.likely(0.15) else {})}


def causes(answer):
    found = answer[1]["details"].get("causes", [])
    return sorted({(cause.get("field"), cause["reason"], cause["message"]) for cause in found})


@pytest.mark.parametrize("seed", [1, 11, 12, 13])
async def test_the_same_is_stored_and_refused(control_plane, seed):
    author = Author(seed)
    spec = {"type": "object", "properties": {f"p{number}": author.schema() for number in range(5)}}
    group = f"seed{seed}.example"
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                }
            ],
        },
    }
    real, embedded = load(control_plane.kubeconfig), Server(None)
    await embedded.start()
    ours = embedded.transport()
    found, stored = {}, 0
    try:
        for server in (real, ours):
            assert (await send(server, post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)))[0] == 201
        await until_served(real, f"/apis/{group}/v1/namespaces/default/things")
        for number in range(80):
            body = {
                "apiVersion": f"{group}/v1",
                "kind": "Thing",
                "metadata": {"name": f"t{number}"},
                "spec": author.value(spec),
            }
            step = post(f"/apis/{group}/v1/namespaces/default/things", body)
            left, right = await send(real, step), await send(ours, step)
            if left[0] == right[0] == 422:
                lines = [] if causes(left) == causes(right) else [f"{causes(left)} / {causes(right)}"]
            else:
                lines = differences(step, left, right)
            stored += left[0] == 201
            if lines:
                found[str(body["spec"])] = lines
    finally:
        await real.close()
        await embedded.stop()
    assert found == {}
    assert stored > 2
