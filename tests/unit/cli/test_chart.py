"""The chart in charts/shoal is what the code of `shoal install` would write, and values are read alike by both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools import chart

from shoal.api.crds import DIRECTORY
from shoal.api.meta import Json
from shoal.cli import install


def test_the_chart_is_up_to_date() -> None:
    kept = chart.kept()
    made = chart.files()
    assert sorted(kept) == sorted(made)
    stale = [name for name in made if kept[name] != made[name]]
    assert stale == [], f"charts/shoal is stale ({', '.join(stale)}): run make chart"
    copied = {path.name: path.read_text() for path in (chart.CHART / chart.CRDS).glob("*.yaml")}
    assert copied == {path.name: path.read_text() for path in DIRECTORY.glob("*.yaml")}


def printed(tmp_path: Path, values: Json, *options: str) -> list[Json]:
    (tmp_path / "values.json").write_text(json.dumps(values))
    told = CliRunner().invoke(
        install.command, ["--values", str(tmp_path / "values.json"), "--dry-run", "-o", "json", *options]
    )
    assert told.exit_code == 0, told.output
    found: list[Json] = json.loads(told.stdout)["items"]
    return found


def one(objects: list[Json], kind: str) -> Json:
    (found,) = (obj for obj in objects if obj["kind"] == kind)
    return found


def test_values_shape_the_installation_and_options_win(tmp_path: Path) -> None:
    values = {
        "image": "registry.example/shoal:1",
        "only": ["appwrapper"],
        "settings": {"preemption": True, "bind_seconds": "120"},
        "resources": {"requests": {"cpu": "2"}, "limits": None},
        "priorityClassName": "system-cluster-critical",
        "podDisruptionBudget": False,
        "serviceMonitor": True,
        "webhooks": False,
    }
    made = printed(tmp_path, values, "--replicas", "3")
    spec = one(made, "Deployment")["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 3 and pod["priorityClassName"] == "system-cluster-critical"
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "256Mi"}}
    assert container["command"][-3:] == ["--only=appwrapper", "--set=bind_seconds=120", "--set=preemption=true"]
    assert "--webhooks" not in container["command"]
    kinds = [obj["kind"] for obj in made]
    assert "ServiceMonitor" in kinds and "PodDisruptionBudget" not in kinds
    assert "MutatingWebhookConfiguration" not in kinds
    assert not [obj for obj in made if obj["kind"] == "CustomResourceDefinition" and "kueue" in obj["metadata"]["name"]]


@pytest.mark.parametrize(
    "values, said",
    [
        ({"replica": 3}, "unknown field `replica`"),
        ({"only": ["rays"]}, "there is no controller rays"),
        ({"settings": {"no_such": "1"}}, "no_such"),
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, values: Json, said: str) -> None:
    (tmp_path / "values.json").write_text(json.dumps(values))
    told = CliRunner().invoke(install.command, ["--values", str(tmp_path / "values.json"), "--dry-run"])
    assert told.exit_code == 2 and said in told.output
