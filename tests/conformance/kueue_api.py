"""Judge `convert`, `webhook` and `names` cases: kinds between versions, what admission says, names of objects."""

from __future__ import annotations

from typing import Any

from shoal.api.kueue_convert import GROUP, convert
from shoal.api.meta import Json
from shoal.api.rules import validate
from shoal.controllers.queues.names import request_name, template_name, workload_name
from tests.conformance.kueue_given import Case, compared

LONGEST_NAME = 247


def convert_differences(given: Case, expect: Case) -> list[str]:
    obj = named(given["object"], given["kind"], given["from"])
    assert obj is not None
    found = convert(obj, f"{GROUP}/{given['to']}")
    wanted = {**expect["object"], "apiVersion": found["apiVersion"], "kind": given["kind"]}
    return compared("object", filled(found), filled(wanted))


def webhook_differences(given: Case, expect: Case) -> list[str]:
    obj = named(given["object"], given["kind"])
    assert obj is not None
    errors = validate(obj, named(given.get("oldObject"), given["kind"]), gates=given["featureGates"])
    ours = sorted((f"FieldValue{error.type}", error.path) for error in errors)
    return compared("errors", ours, sorted((error["type"], error["field"]) for error in expect["errors"]))


def names_differences(given: Case, expect: Case) -> list[str]:
    if "kind" in given:
        ours = workload_name(given["kind"], given["group"], given["name"], given["uid"], given["extra"])
        return compared("workload", ours, expect["workload"])
    request = request_name(given["workload"], given["check"], given["attempt"])
    found = {"provisioningRequest": request, "podTemplate": template_name(request, given["podSet"])}
    return compared("names", found, expect)


def hides_attempt(given: Case) -> bool:
    """Would the reference hide the attempt of a long name in a digest? Ours ends with it, as the specification asks."""
    return "attempt" in given and len(f"{given['workload']}-{given['check']}-{given['attempt']}") > LONGEST_NAME


def named(obj: Json | None, kind: str, version: str = "v1beta2") -> Json | None:
    return None if obj is None else {**obj, "apiVersion": f"{GROUP}/{version}", "kind": kind}


def filled(value: Any) -> Any:
    """Without zeros and empty parts: the reference writes or leaves them out as its language does."""
    if isinstance(value, dict):
        return {name: found for name, part in value.items() if (found := filled(part)) not in (None, 0, "", [], {})}
    return [filled(part) for part in value] if isinstance(value, list) else value
