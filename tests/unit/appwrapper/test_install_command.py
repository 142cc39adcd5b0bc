"""`shoal install --dry-run`: what a new user tries first."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from shoal import __version__
from shoal.cli.install import command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["--dry-run", "-o", "json", *arguments])


def printed(*arguments: str) -> list[dict[str, Any]]:
    answer = run(*arguments)
    assert answer.exit_code == 0, answer.output
    found: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
    return found


def rules(*arguments: str) -> list[dict[str, Any]]:
    """Of the controller; the roles for people are others."""
    (role,) = [
        one
        for one in printed(*arguments)
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "shoal-controller"
    ]
    found: list[dict[str, Any]] = role["rules"]
    return found


def test_it_prints_manifests_even_without_an_image_and_says_what_is_missing() -> None:
    (deployment,) = [one for one in printed() if one["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"shoal:{__version__}"
    assert "no --image was given" in run().stderr


def test_controllers_that_do_not_exist_are_refused_before_anything_is_installed() -> None:
    answer = run("--image", "x", "--only", "appwrapper,other")
    assert answer.exit_code == 2 and "there is no controller other; choose from appwrapper" in answer.output


def test_without_ray_no_controller_may_write_roles() -> None:
    def written(*arguments: str) -> set[str]:
        return {
            part
            for rule in rules(*arguments)
            for part in rule["resources"]
            if part in ("roles", "rolebindings", "rays")
        }

    for only in ("appwrapper", "queues", "appwrapper,queues", "appwrapper,queues,clusters"):
        assert written("--only", only) == set(), only
    for arguments in ((), ("--only", "ray"), ("--only", "appwrapper,ray")):
        assert written(*arguments) == {"roles", "rolebindings", "rays"}


def test_only_who_creates_as_users_may_act_as_them() -> None:
    assert not any("impersonate" in rule["verbs"] for rule in rules())
    acting = [rule["resources"] for rule in rules("--set", "create_as_creator=true") if "impersonate" in rule["verbs"]]
    assert acting == [["users", "groups", "serviceaccounts"], ["uids"]]
    assert not any("*" in part for rule in rules() for part in (*rule["verbs"], *rule["resources"]))
