"""`--set NAME=VALUE`: every setting of AppWrappers can be chosen, and a mistake is answered with what there is."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shoal.cli import choices, controller, install, uninstall
from shoal.errors import BadInput


def test_settings_are_read_in_their_own_types() -> None:
    chosen = choices.read(
        [
            "bind-seconds=120",
            "pod_groups=true",
            "count_autoscaled_workers=maximum",
            "patience.retry_limit=5",
            "supply=fit",
        ]
    )
    found = choices.wrapper_settings({"supply": "aggregate", "preemption": True}, chosen)
    assert (found.bind_seconds, found.pod_groups, found.count_autoscaled_workers) == (120.0, True, "maximum")
    assert (found.patience.retry_limit, found.preemption, found.supply) == (5, True, "fit")


def test_a_list_is_written_with_commas() -> None:
    found = choices.queue_settings(
        {},
        choices.read(
            [
                "queues.excluded_prefixes=example.com/, other.io/",
                "queues.preemption_strategies=LessThanInitialShare",
                "queues.quota_check_strategy=IgnoreUndeclared",
            ]
        ),
    )
    assert found.excluded_prefixes == ("example.com/", "other.io/")
    assert found.decisions.share_strategies == ("LessThanInitialShare",)
    assert found.decisions.ignore_undeclared


def test_victims_of_quota_trees_can_be_spared() -> None:
    found = choices.wrapper_settings({}, choices.read(["minimal_victims=true"]))
    assert found.planning.decisions.minimal_victims


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "queues.preemption_strategies=Any",
            "'Any' is none of LessThanOrEqualToFinalShare, LessThanInitialShare",
        ),
        ("bind_seconds", "write NAME=VALUE"),
        ("bind=1", "there is no such setting; choose from backoff_seconds"),
        ("bind_seconds=soon", "bind_seconds: expected a number$"),
        ("bind_seconds=-1", "bind_seconds: expected a number of at least 0"),
        ("bind_seconds=nan", "bind_seconds: expected a number"),
        ("create_seconds=inf", "create_seconds: expected a number of at most"),
        ("backoff_seconds=0", "backoff_seconds: expected a number of at least 0.1"),
        ("preemption=perhaps", "preemption: expected true or false"),
        ("quota=sometimes", "quota: 'sometimes' is none of auto, always, never"),
        ("queues.check_seconds=0", "queues.check_seconds: expected a number of at least 0.1"),
        ("queues.pods_ready.requeue_by=x", "queues.pods_ready.requeue_by: 'x' is none of Eviction, Creation"),
        ("patience.admission=900", r"patience: admission \(900 s\) is longer than warm_up \(300 s\)"),
        ("patience.failure=90000", "patience: failure is longer than maximum"),
        ("patience.success_ttl=0", "patience: success_ttl must be more than 0"),
        ("bind_seconds.more=1", "has no parts"),
        ("patience.tries=1", "choose from admission"),
    ],
)
def test_mistakes_are_answered_with_what_there_is(text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        choices.read([text])


@pytest.mark.parametrize(
    ("flag", "value", "complaint"),
    [
        ("--policy", "nonsense", "policy 'nonsense' is unknown; use one of fifo, priority"),
        ("--policy", "no.such.module:x", "cannot be loaded: No module named 'no'"),
        ("--policy", "os:path", "lacks name, order, may_preempt"),
        ("--policy", ":", "cannot be loaded"),
        ("--set", "policy=nonsense", "policy 'nonsense' is unknown"),
        ("--set", "bind_seconds=soon", "bind_seconds: expected a number"),
        ("--only", "other", "there is no controller other; choose from appwrapper"),
        ("--only", "", "choose from appwrapper"),
        ("--supply", "most", "is not one of 'fit', 'aggregate'"),
        ("--health-port", "70000", "is not in the range"),
        ("--namespace", "Not A Name", "is no name of a namespace"),
        ("--webhook-url", "http://10.0.0.5", "such as https://10.0.0.5:9443"),
        ("--webhook-url", "https://10.0.0.5:99999", "is no address of a webhook"),
    ],
)
def test_a_controller_does_not_start_with_a_flag_that_makes_no_sense(flag: str, value: str, complaint: str) -> None:
    answer = CliRunner().invoke(controller.command, [flag, value])
    assert (answer.exit_code, flag in answer.output) == (2, True), answer.output
    assert complaint in " ".join(answer.output.split())


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--image", ""),
        ("--image", "two words"),
        ("--namespace", "-"),
        ("--replicas", "-1"),
        ("--webhook-url", "localhost"),
        ("--set", "policy=nonsense"),
        ("--only", ""),
    ],
)
def test_nothing_is_installed_with_a_flag_that_makes_no_sense(flag: str, value: str) -> None:
    answer = CliRunner().invoke(install.command, [flag, value])
    assert (answer.exit_code, flag in answer.output) == (2, True), answer.output


def test_an_order_of_ones_own_is_looked_for_where_the_controller_runs() -> None:
    arguments = ["--dry-run", "--image", "own:1", "--set", "policy=only.in.that.image:Order"]
    answer = CliRunner().invoke(install.command, arguments)
    assert answer.exit_code == 0
    assert "--set=policy=only.in.that.image:Order" in answer.output


def test_nothing_is_uninstalled_from_a_namespace_that_cannot_be() -> None:
    assert CliRunner().invoke(uninstall.command, ["--namespace", "Not A Name"]).exit_code == 2


def test_every_setting_of_the_ray_operator_can_be_given() -> None:
    """By KubeRay's environment names and by --set, which wins; what this way of running needs is laid in between."""
    environment = {"SHOAL_RAY_FEATURE_GATES": "SidecarSubmitterRestart=true", "CLUSTER_DOMAIN": "example.org"}
    chosen = choices.read(["ray.feature_gates=RayJobDeletionPolicy=false", "ray.stop_timeout=60"])
    found = choices.ray_settings(environment, chosen, token_by_agent=True)
    assert found.gate("SidecarSubmitterRestart") and not found.gate("RayJobDeletionPolicy")
    assert (found.cluster_domain, found.stop_timeout, found.token_by_agent) == ("example.org", 60, True)
    assert not choices.ray_settings({}, {"ray.token_by_agent": "false"}, token_by_agent=True).token_by_agent
    with pytest.raises(BadInput, match="no such setting"):
        choices.read(["ray.tokens=1"])
    with pytest.raises(BadInput, match="expected a number"):
        choices.read(["ray.stop_timeout=soon"])


@pytest.mark.parametrize(
    "gates, complaint",
    [("RayClusterRollingUpgrad=true", "none of that name"), ("RayCronJob=perhaps", "neither true nor false")],
)
def test_a_feature_gate_that_there_is_not_is_refused_as_kuberay_does(gates: str, complaint: str) -> None:
    for environment, chosen in (({"SHOAL_RAY_FEATURE_GATES": gates}, {}), ({}, {"ray.feature_gates": gates})):
        with pytest.raises(BadInput, match=complaint):
            choices.ray_settings(environment, chosen)
    assert choices.ray_settings({}, {"ray.feature_gates": "AsyncJobInfoQuery=true"}).gate("RayCronJob")
