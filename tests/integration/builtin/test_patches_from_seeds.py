"""Sixty applies and patches by three managers, from a seed, on both servers: every answer must be the same.

Left out on purpose: empty label maps, whose ownership the real server records and ours does not.
"""

from __future__ import annotations

import random

import pytest

from shoal.kube.kubeconfig import load
from shoal.local.apiserver import Server
from tests.integration.builtin.exchange import APPLY, MERGE, STRATEGIC, differences, patch, post, send

pytestmark = pytest.mark.controlplane


class Author:
    """Writes deployments, whole and in parts."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def some(self, words, most, least=0):
        return self.chance.sample(words, self.chance.randint(least, most))

    def likely(self, share):
        return self.chance.random() < share

    def container(self):
        made = {"name": self.chance.choice("xyz")}
        if self.likely(0.8):
            made["image"] = self.chance.choice(["i:1", "j:2"])
        if self.likely(0.5):
            made["env"] = [{"name": name, "value": self.chance.choice("12")} for name in self.some("ABC", 3)]
        if self.likely(0.3):
            made["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in self.some([80, 81, 82], 2)]
        if self.likely(0.3):
            made["args"] = self.some("abc", 2)
        if self.likely(0.3):
            made["resources"] = {"limits": {"cpu": self.chance.choice("12")}}
        return made

    def pod(self):
        containers = {made["name"]: made for made in (self.container() for _ in range(self.chance.randint(0, 3)))}
        made = {"containers": list(containers.values())} if containers else {}
        if self.likely(0.3):
            made["tolerations"] = [{"key": key, "operator": "Exists"} for key in self.some("ab", 2)]
        if self.likely(0.3):
            made["nodeSelector"] = dict.fromkeys(self.some("ab", 2), "v")
        if self.likely(0.3):
            made["volumes"] = [{"name": name, "emptyDir": {}} for name in self.some("vw", 2)]
        return made

    def spec(self):
        made = {}
        if self.likely(0.5):
            made["replicas"] = self.chance.randint(0, 3)
        if self.likely(0.3):
            made["minReadySeconds"] = self.chance.randint(0, 3)
        if self.likely(0.3):
            made["paused"] = self.likely(0.5)
        if self.likely(0.6):
            pod = self.pod()
            template = {"spec": pod} if pod else {}
            if self.likely(0.3):
                template["metadata"] = {"annotations": {key: self.chance.choice("12") for key in self.some("pq", 2)}}
            if template:
                made["template"] = template
        return made

    def body(self):
        metadata = {"name": "d"}
        if self.likely(0.5):
            metadata["labels"] = {key: self.chance.choice("12") for key in self.some("abc", 3, 1)}
        if self.likely(0.3):
            metadata["finalizers"] = [f"t.example/{key}" for key in self.some("fg", 2)]
        return {"metadata": metadata, "spec": self.spec()}

    def thinned(self, value):
        """Some members become null, which removes them."""
        if not isinstance(value, dict):
            return value
        return {
            name: None if name != "name" and self.likely(0.1) else self.thinned(item) for name, item in value.items()
        }

    def step(self, path):
        manager, kind, body = self.chance.choice(["m1", "m2", "m3"]), self.chance.random(), self.body()
        if kind < 0.6:
            applied = {"apiVersion": "apps/v1", "kind": "Deployment", **body}
            return patch(path, APPLY, applied, manager, query={"force": self.chance.choice(["true", "true", "false"])})
        if kind < 0.85:
            return patch(path, STRATEGIC, self.thinned(body), manager)
        body["spec"].pop("template", None)
        return patch(path, MERGE, self.thinned(body), manager)


def ordered(answer):
    """Managers of one second are listed by name, and the two servers are not equally fast."""
    status, body = answer
    managers = (body.get("metadata") or {}).get("managedFields")
    if managers:
        managers.sort(key=lambda entry: (entry["operation"], entry["manager"]))
    (body.get("metadata") or {}).pop("generation", None)
    return status, body


@pytest.mark.parametrize("seed", [1, 2, 3, 12])
async def test_answers_are_the_same(control_plane, seed):
    namespace = f"seed-{seed}"
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    template = {"metadata": {"labels": {"l": "m"}}, "spec": {"containers": [{"name": "x", "image": "i:1"}]}}
    first = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"l": "m"}}, "template": template},
    }
    author = Author(seed)
    steps = [post(path, first), *(author.step(f"{path}/d") for _ in range(60))]
    real, embedded = load(control_plane.kubeconfig), Server(None)
    await embedded.start()
    ours = embedded.transport()
    found = {}
    try:
        for server in (real, ours):
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            assert (await send(server, post("/api/v1/namespaces", space)))[0] == 201
        for number, step in enumerate(steps):
            left, right = ordered(await send(real, step)), ordered(await send(ours, step))
            lines = differences(step, left, right)
            if left[0] >= 400 and left[0] == right[0] and left[1].get("reason") == right[1].get("reason"):
                continue  # refused alike; the words have tests of their own
            if lines:
                found[f"{number} {step.media} {step.body}"] = lines
    finally:
        await real.close()
        await embedded.stop()
    assert found == {}
