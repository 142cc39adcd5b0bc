"""The launcher pod of a `Ray` object and the ConfigMap it mounts. Pure.

The launcher of the proposal ran `ray up`, whose Kubernetes provider Ray no longer has. Ours waits until the cluster
that the operator makes is up, lists its nodes and ends: same name, labels and outcome, and no rights at all.
"""

from __future__ import annotations

import shlex

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import auth, builder
from shoal.controllers.ray.ray_kind.launch_timeout import DEFAULT_TIMEOUT, launch_timeout
from shoal.controllers.ray.ray_kind.translation import LABEL, Translation
from shoal.controllers.ray.settings import RaySettings

LAUNCHER_LABEL = "ray-launcher"
IMAGE = "ray.k8s.io/launcher-image"
RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}}
FILE = "example-full.yaml"
_MOUNT = "/mounted-configmap"

_WAIT_FOR_NODES = """
import json, os, sys, time, urllib.request
url, wanted, deadline = sys.argv[1], int(sys.argv[2]), time.time() + float(sys.argv[3])
token = os.environ.get("RAY_AUTH_TOKEN")
headers = {"x-ray-authorization": "Bearer " + token} if token else {}
while True:
    try:
        request = urllib.request.Request(url + "/api/v0/nodes?limit=1000", headers=headers)
        answer = json.load(urllib.request.urlopen(request, timeout=10))
        nodes = [n for n in answer["data"]["result"]["result"] if n["state"] == "ALIVE"]
    except Exception as error:
        nodes = []
        print("waiting for the head:", error, flush=True)
    if len(nodes) > wanted:
        break
    if time.time() > deadline:
        sys.exit(f"only {len(nodes)} of {wanted + 1} nodes are up")
    time.sleep(2)
for node in nodes:
    print(node["node_ip"], "head" if node["is_head_node"] else "worker", node["node_id"])
print("the Ray cluster is up")
""".strip()


def config_map_name(ray: Json) -> str:
    return f"{view.name(ray)}-config"


def config_map(ray: Json, translation: Translation) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(ray),
            "namespace": view.namespace(ray),
            "labels": {LABEL: view.name(ray)},
            "ownerReferences": [view.owner_reference(ray, "ray.k8s.io/v1alpha1", "Ray")],
        },
        "data": {FILE: msgspec.yaml.encode(translation.configuration).decode()},
    }


def launcher_pod(ray: Json, cluster: Json, translation: Translation, settings: RaySettings) -> Json:
    name, hashed = view.name(ray), translation.hash
    prefix = f"{name[:40]}-{hashed}-"
    image = view.annotations_of(ray).get(IMAGE) or view.ray_container(view.head(cluster)).get("image")
    host = builder.head_host(cluster, settings)
    timeout = launch_timeout(ray) or DEFAULT_TIMEOUT
    url = f"http://{host}:{view.dashboard_port(cluster)}"
    # no head is up within a second; where pods are only simulated, this says how long the launcher runs
    script = f"sleep 1; python -c {shlex.quote(_WAIT_FOR_NODES)} {url} {translation.initial} {timeout}"
    container: Json = {
        "name": "ray-launcher",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", script],
        "resources": RESOURCES,
        "volumeMounts": [{"name": "configuration", "mountPath": _MOUNT, "readOnly": True}],
    }
    auth.prepare(container, cluster, settings)
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": prefix,
            "name": prefix + names.suffix(view.uid(ray), hashed),
            "namespace": view.namespace(ray),
            "labels": {LABEL: name, LAUNCHER_LABEL: name},
            "ownerReferences": [view.owner_reference(ray, "ray.k8s.io/v1alpha1", "Ray")],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "configuration", "configMap": {"name": config_map_name(ray)}}],
        },
    }
    auth.name_secret(pod["metadata"], cluster, settings)
    return pod
