"""Kueue's configuration file as settings of ours: what is taken, what is named, what is refused."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli import choices, install, kueue_config
from shoal.engine.kueue import UsageSharing
from shoal.errors import BadInput

FILE = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
waitForPodsReady:
  timeout: 10m
  recoveryTimeout: 3m0s
  blockAdmission: true
  requeuingStrategy: {timestamp: Creation, backoffLimitCount: 5, backoffBaseSeconds: 30}
fairSharing:
  preemptionStrategies: [LessThanInitialShare]
integrations:
  frameworks: [batch/job, ray.io/rayjob, deployment, kubeflow.org/mpijob]
  labelKeysToCopy: [team, cost]
resources:
  excludeResourcePrefixes: [example.com/]
  transformations:
    - {input: nvidia.com/mig-1g.5gb, strategy: Replace, outputs: {example.com/credits: 10, example.com/memory: 5Gi}}
    - {input: example.com/license, multiplyBy: cpu, outputs: {example.com/seats: "1"}}
clientConnection: {qps: 50, burst: 100}
multiKueue: {origin: hub, dispatcherName: kueue.x-k8s.io/multikueue-dispatcher-incremental, gcInterval: 1m}
objectRetentionPolicies:
  workloads: {afterFinished: 24h}
manageJobsWithoutQueueName: true
managedJobsNamespaceSelector:
  matchLabels: {team: a}
  matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kueue-system]}
    - {key: trial, operator: DoesNotExist}
"""


def written(folder: Path, text: str) -> Path:
    (folder / "kueue.yaml").write_text(text)
    return folder / "kueue.yaml"


def test_what_has_a_meaning_becomes_settings_and_the_rest_is_named(tmp_path: Path) -> None:
    found = kueue_config.read(written(tmp_path, FILE))
    made = choices.queue_settings({}, choices.read(f"{name}={value}" for name, value in found.settings.items()))
    assert made.pods_ready is not None
    assert (made.pods_ready.timeout, made.pods_ready.recovery_timeout) == (600.0, 180.0)
    assert made.pods_ready.block_admission and made.pods_ready.requeue_by == "Creation"
    assert (made.pods_ready.backoff_limit, made.pods_ready.backoff_base) == (5, 30.0)
    assert made.fair_sharing and made.preemption_strategies == ("LessThanInitialShare",)
    assert made.copied_labels == ("team", "cost") and made.excluded_prefixes == ("example.com/",)
    assert made.keep_finished_seconds == 86400.0
    assert made.manage_jobs_without_queue_name
    excluded = "kubernetes.io/metadata.name notin (kube-system,kueue-system)"
    assert made.managed_namespaces == f"team=a,{excluded},!trial"
    assert made.frameworks == ("batch/job", "ray.io/rayjob", "deployment")
    first, second = made.transformations
    assert first.replace and first.outputs == {"example.com/credits": "10", "example.com/memory": "5Gi"}
    assert not second.replace and (second.input, second.multiply_by) == ("example.com/license", "cpu")
    assert (found.qps, found.burst) == (50.0, 100)
    clusters = choices.cluster_settings({}, choices.read(f"{name}={value}" for name, value in found.settings.items()))
    assert clusters.origin == "hub" and not clusters.chooses
    assert found.unused == ["integrations.frameworks kubeflow.org/mpijob", "namespace", "multiKueue.gcInterval"]


def test_frameworks_alone_leave_nothing_unused(tmp_path: Path) -> None:
    text = "apiVersion: config.kueue.x-k8s.io/v1beta2\nintegrations: {frameworks: [batch/job, pod]}"
    found = kueue_config.read(written(tmp_path, text))
    assert found == kueue_config.KueueConfig({"queues.frameworks": "batch/job,pod"}, [])


@pytest.mark.parametrize("enabled", [True, False])
def test_v1beta1_switches_parts_on_and_off(tmp_path: Path, enabled: bool) -> None:
    parts = {"waitForPodsReady": {"enable": enabled, "timeout": "5m"}, "fairSharing": {"enable": enabled}}
    text = json.dumps({"apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration", **parts})
    found = kueue_config.read(written(tmp_path, text))
    taken = {"queues.fair_sharing": "true", "queues.pods_ready.timeout": "300"}
    assert found == kueue_config.KueueConfig(taken if enabled else {}, [])


@pytest.mark.parametrize(
    "text, said",
    [
        ("apiVersion: v1", "apiVersion must be config.kueue.x-k8s.io/v1beta1 or"),
        (
            "apiVersion: config.kueue.x-k8s.io/v1beta2\nwaitForPodsReady: {timeout: soon}",
            "waitForPodsReady.timeout is no",
        ),
        ("a: [", "kueue.yaml"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        kueue_config.read(written(tmp_path, text))


def test_an_installation_takes_the_file_and_options_win(tmp_path: Path) -> None:
    file = str(written(tmp_path, FILE))
    told = CliRunner().invoke(
        install.command,
        ["--image", "x", "--kueue-config", file, "--set", "queues.pods_ready.timeout=60", "--dry-run", "-o", "json"],
    )
    assert told.exit_code == 0, told.output
    assert "without a meaning here: integrations.frameworks kubeflow.org/mpijob, namespace, " in told.stderr
    (deployment,) = (one for one in json.loads(told.stdout)["items"] if one["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert {"--kube-api-qps=50", "--kube-api-burst=100"} <= set(command)
    assert "--set=queues.pods_ready.timeout=60" in command and "--set=queues.fair_sharing=true" in command


def test_admission_fair_sharing_becomes_settings(tmp_path: Path) -> None:
    text = """
    apiVersion: config.kueue.x-k8s.io/v1beta2
    admissionFairSharing:
      usageHalfLifeTime: 168h
      usageSamplingInterval: 1m
      resourceWeights: {cpu: 2, nvidia.com/gpu: 0.5}
    """
    found = kueue_config.read(written(tmp_path, textwrap.dedent(text)))
    assert found.unused == []
    decided = choices.queue_settings({}, found.settings).decisions.usage_sharing
    day = 24 * 3600 * 1_000_000
    weights = {"cpu": 2.0, "nvidia.com/gpu": 0.5}
    assert decided == UsageSharing(half_life=7 * day, sampling=60_000_000, weights=weights)
