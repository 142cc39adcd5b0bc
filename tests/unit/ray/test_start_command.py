"""The `ray start` line: which flags, and what a shell makes of their values."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.controllers.ray import view
from shoal.controllers.ray.pods import builder, start_command
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from tests.faults import proven
from tests.unit.ray.builders import container, group, ray_cluster


def params(cluster: dict[str, object], index: int = 0) -> dict[str, str]:
    return start_command.parameters(cluster, view.groups(cluster)[index], is_head=False, address="head:6379")


@pytest.mark.parametrize(
    "limits, flag, value",
    [
        ({"cpu": "1500m"}, "num-cpus", "2"),  # rounded up, as Ray counts whole CPUs
        ({"memory": "2500Mi"}, "memory", "2621440000"),
        ({"nvidia.com/gpu": "2"}, "num-gpus", "2"),
        ({"nvidia.com/mig-1g.5gb": "3"}, "num-gpus", "3"),
        ({"google.com/tpu": "4"}, "resources", "'{\"TPU\":4}'"),
    ],
)
def test_flags_come_from_limits(limits, flag, value):
    worker = group(template={"spec": {"containers": [{"name": "w", "resources": {"limits": limits}}]}})
    assert params(ray_cluster("demo", worker))[flag] == value


def test_what_the_user_set_wins_over_limits():
    worker = group(rayStartParams={"num-cpus": "0"}, template={"spec": {"containers": [container("w", cpu="8")]}})
    assert params(ray_cluster("demo", worker))["num-cpus"] == "0"


@pytest.mark.parametrize("written", ['{"A": 1}', "'{\"A\": 1}'", '"{\\"A\\": 1}"', '{\\"A\\": 1}'])
def test_resources_are_understood_in_every_quoting_that_manifests_use(written):
    """Published manifests quote the JSON in several ways; all mean the same and all let accelerators join."""
    template = {"spec": {"containers": [{"name": "w", "resources": {"limits": {"google.com/tpu": "4"}}}]}}
    found = params(ray_cluster("demo", group(rayStartParams={"resources": written}, template=template)))
    assert json.loads(found["resources"].strip("'")) == {"A": 1, "TPU": 4}


def shell_sees(line: str, **environment: str) -> list[str]:
    """The words that a program called by bash would receive."""
    script = f"ray() {{ printf '%s\\0' \"$@\"; }}; {line}"
    out = subprocess.run(
        ["/bin/bash", "-c", "--", script], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin", **environment}
    )
    return out.stdout.decode(errors="surrogateescape").split("\0")[:-1]


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_command, "quoted", lambda value: value)


@proven(without=plain)
def test_f117_shell_text_in_a_start_parameter_reaches_ray_as_text():
    """F117: a start parameter holds separators, substitutions and quotes. Holds: Ray gets them as text."""
    hostile = [
        "a; touch /tmp/owned",
        "$(id)",
        "`id`",
        "a && b",
        "it's",
        'say "hi"',
        "a\nb",
        "* ?",
        "\\",
        "#x",
        "${X:-$(id)}",
    ]
    for value in hostile:
        line = start_command.command_line({"temp-dir": value}, is_head=True)
        assert shell_sees(line)[2:] == [f"--temp-dir={value}"]


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(blacklist_characters="$\0'\"", blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=30)
)
def test_any_text_is_one_word(value):
    line = start_command.command_line({"temp-dir": value}, is_head=False)
    assert shell_sees(line)[1:] == (
        [f"--temp-dir={value.strip()}"]
        if value.lower() not in ("true", "false")
        else ["--temp-dir"]
        if value.lower() == "true"
        else []
    )


@pytest.mark.parametrize("written", ["$REDIS_PASSWORD", "${REDIS_PASSWORD}"])
def test_a_plain_variable_expands_to_one_word(written):
    """As published manifests expect; a value with spaces or wild cards in it still is one word."""
    line = start_command.command_line({"redis-password": written}, is_head=True)
    assert shell_sees(line, REDIS_PASSWORD="two words *")[2:] == ["--redis-password=two words *"]


def test_the_kubelet_finds_nothing_to_expand():
    """The kubelet replaces `$(NAME)` before any shell runs; a value must not be able to pull in other variables."""
    line = start_command.command_line({"temp-dir": "$(RAY_AUTH_TOKEN)", "x": "'$(HOME)'"}, is_head=True)
    assert "$(" not in line


def test_a_port_that_is_no_number_never_reaches_a_probe():
    old = {**ray_cluster("demo", group(rayStartParams={"dashboard-agent-listen-port": "1;touch /tmp/x"}))}
    old["spec"]["rayVersion"] = "2.9.0"
    probe = builder.worker_pod(old, view.groups(old)[0], RaySettings())["spec"]["containers"][0]["livenessProbe"]
    assert "http://localhost:52365/api/local_raylet_healthz" in probe["exec"]["command"][2]
    assert "touch" not in str(probe)


def test_strange_keys_are_refused_and_never_printed():
    cluster = ray_cluster("demo", group(rayStartParams={"x; touch /tmp/owned #": "1"}))
    assert any("no flag" in problem for problem in problems_of_cluster(cluster, RaySettings()))
    assert "touch" not in start_command.command_line({"x; touch /tmp/owned #": "1"}, is_head=True)
