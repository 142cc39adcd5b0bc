"""Helm renders charts/shoal to the objects that `shoal install` prints, and a real server takes them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shoal.api.meta import Json
from shoal.cli import install, installation
from tests.controlplane import build
from tests.controlplane.plane import ControlPlane
from tests.faults import proven

CHART = Path(__file__).parents[2] / "charts" / "shoal"
KEPT = "helm.sh/resource-policy"
IMAGE = {"image": "registry.example/shoal:1"}
CASES: dict[str, Json] = {
    "as it is": {},
    "beside KubeRay": {"only": ["appwrapper", "queues"], "replicas": 1, "topologySpread": False},
    "beside Kueue, with the old groups": {"only": ["appwrapper", "ray"], "legacy": True},
    "a hub": {"only": ["appwrapper", "queues", "ray", "clusters"], "networkPolicy": True, "serviceMonitor": True},
    "outside the cluster": {"webhookUrl": "https://shoal.example:9443/", "podDisruptionBudget": False},
    "outside the cluster, beside Kueue": {"webhookUrl": "https://shoal.example:9443", "only": ["appwrapper"]},
    "without webhooks": {"webhooks": False, "logFormat": "json", "settings": {"trust_unstamped": True}},
    "the page by port-forward": {"page": True, "networkPolicy": True},
    "the page behind a proxy": {"pageUrl": "https://shoal.example", "networkPolicy": True},
    "as the creator": {"settings": {"create_as_creator": "true", "supply": "aggregate", "bind_seconds": "120"}},
    "certificates of cert-manager": {"certificates": "cert-manager"},
    "certificates of an issuer": {
        "certificates": "cert-manager",
        "certificateIssuer": {"kind": "ClusterIssuer", "name": "lab"},
        "webhookUrl": "https://shoal.example:9443",
    },
    "certificates for an address": {"certificates": "cert-manager", "webhookUrl": "https://10.0.0.5:9443"},
    "two namespaces": {"namespaces": ["red", "blue"], "only": ["appwrapper", "queues", "ray"]},
    "its own namespace": {"namespaces": ["lab"], "only": ["appwrapper"], "openMetrics": True, "flowControl": False},
    "as the creator in one namespace": {"namespaces": ["red"], "settings": {"create_as_creator": True}},
    "jobs without a queue": {"settings": {"queues.manage_jobs_without_queue_name": "true"}},
    "few requests, with traces": {"kubeApiQps": 50, "kubeApiBurst": 120, "tracesUrl": "http://collector.example:4318"},
    "history and notices": {
        "historySecret": "history",
        "notifySecret": "notices",
        "notifyAllow": ["https://hooks.example/a", "https://hooks.example/b"],
    },
    "placed": {
        "resources": {"requests": {"cpu": "2"}, "limits": None},
        "priorityClassName": "system-cluster-critical",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
}


@pytest.fixture(scope="module")
def helm() -> Path:
    return build.program("helm", build.HELM)


def rendered(helm: Path, values: Json, folder: Path, namespace: str = "shoal-system") -> str:
    (folder / "values.json").write_text(json.dumps(values))
    command = [helm, "template", "shoal", CHART, "--namespace", namespace, "--values", folder / "values.json"]
    command += ["--no-hooks", "--kube-version", build.KUBERNETES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=own_home(folder))
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def own_home(folder: Path) -> dict[str, str]:
    """Helm keeps nothing of this machine's user."""
    homes = {f"HELM_{one}_HOME": str(folder / one.lower()) for one in ("CACHE", "CONFIG", "DATA")}
    return {**os.environ, **homes}


def documents(text: str) -> list[Json]:
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one is not None]


def printed(values: Json, folder: Path, *more: str) -> list[Json]:
    (folder / "values.json").write_text(json.dumps(values))
    told = CliRunner().invoke(
        install.command, ["--values", str(folder / "values.json"), "--dry-run", "-o", "json", *more]
    )
    assert told.exit_code == 0, told.output
    found: list[Json] = json.loads(told.stdout)["items"]
    return found


def by_name(objects: list[Json]) -> dict[str, Json]:
    """Helm makes the namespace itself, and keeps CRDs when it is told to by an annotation."""
    found = {}
    for obj in objects:
        if obj is None or obj["kind"] == "Namespace":
            continue
        annotations = obj["metadata"].get("annotations") or {}
        kept = annotations.pop(KEPT, None)
        assert (kept == "keep") == (obj["kind"] == "CustomResourceDefinition" and kept is not None)
        if not annotations:
            obj["metadata"].pop("annotations", None)
        found[f"{obj['kind']}/{obj['metadata']['name']}"] = obj
    return found


def _forgets_to_write_the_chart(patch: pytest.MonkeyPatch) -> None:
    fewer = installation.rules()[1:]
    patch.setattr(installation, "rules", lambda *parts: fewer)


@proven(without=_forgets_to_write_the_chart)
@pytest.mark.parametrize("case", CASES)
def test_f273_helm_renders_what_shoal_install_applies(helm: Path, tmp_path: Path, case: str) -> None:
    """F273: a right or an object changes in the code of `shoal install`, or is chosen by a value. Holds: the chart
    renders the very same objects, and keeps its CRDs when it is uninstalled."""
    values = {**IMAGE, **CASES[case]}
    of_chart = documents(rendered(helm, values, tmp_path, "lab"))
    definitions = [one for one in of_chart if one["kind"] == "CustomResourceDefinition"]
    assert definitions and all(one["metadata"]["annotations"][KEPT] == "keep" for one in definitions)
    expected, found = by_name(printed(values, tmp_path, "--namespace", "lab")), by_name(of_chart)
    assert sorted(found) == sorted(expected)
    for name, obj in expected.items():
        assert found[name] == obj, name


@pytest.mark.parametrize(
    "values, said",
    [({}, "set image to the image that holds the shoal command"), ({**IMAGE, "replica": 2}, "replica")],
)
def test_values_that_cannot_work_are_refused(helm: Path, tmp_path: Path, values: Json, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        rendered(helm, values, tmp_path)


def test_a_real_server_takes_the_chart(full_control_plane: ControlPlane, helm: Path, tmp_path: Path) -> None:
    text = rendered(helm, IMAGE, tmp_path, "default")
    taken = full_control_plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=text)
    assert taken.count("(server dry run)") == len(documents(text))
