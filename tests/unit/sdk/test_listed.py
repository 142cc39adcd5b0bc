"""A listed object has everything that a row of `shoal get` reads of it."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
import pytest

from shoal.api import kinds, ray_gang
from shoal.api.kind import Kind
from shoal.api.log_text import _LOG_FOLLOWS, headline, without_codes
from shoal.sdk import alone, gangs, queued, rows
from shoal.sdk.listed import Listed, ListedMeta, ListedSpec

CONDITION = {
    "type": "Evicted",
    "status": "True",
    "reason": "Preempted",
    "message": "made way",
    "lastTransitionTime": "T",
}
STATUSES: list[dict[str, Any]] = [
    {},
    {"state": "Pending", "message": "2 cpu needed, 1 free"},
    {"state": "Running", "pending": 1, "running": 1, "pendingpodconditions": [{"podname": "p", "conditions": []}]},
    {"state": "Completed", "conditions": [{"type": "Completed", "status": "True", "lastTransitionMicroTime": "T"}]},
    {"state": "ready", "desiredWorkerReplicas": 3, "readyWorkerReplicas": 1},
    {"jobDeploymentStatus": "Running", "rayClusterName": "ray"},
    {"jobDeploymentStatus": "Complete", "endTime": "2026-01-01T00:00:00Z"},
    {"active": 2, "ready": 1},
    {"conditions": [CONDITION]},
    {
        "conditions": [{**CONDITION, "type": "QuotaReserved"}],
        "admissionChecks": [{"name": "check", "state": "Pending"}],
    },
    {"conditions": [{**CONDITION, "type": "Finished"}], "clusterName": "west"},
    {"admission": '{"cluster":"east"}'},
]
KINDS = (*gangs.KINDS, *gangs.QUEUED, kinds.WORKLOAD, kinds.JOB_SET, kinds.RAY_SERVICE)


class Read(dict[str, Any]):
    """Remembers which of its fields were asked for."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


def whole(status: dict[str, Any]) -> dict[str, Any]:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    return {
        "apiVersion": "x/v1",
        "kind": "Any",
        "metadata": {
            "name": "train",
            "namespace": "default",
            "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "main"},
            "ownerReferences": [reference],
            "managedFields": [{"manager": "kubectl", "fieldsV1": {}}],
        },
        "spec": {"suspend": True, "priority": 3, "active": False, "rayClusterSpec": {"headGroupSpec": {}}},
        "status": status,
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
@pytest.mark.parametrize("status", STATUSES, ids=range(len(STATUSES)))
def test_a_row_reads_nothing_that_a_listed_object_lacks(kind: Kind, status: dict[str, Any]) -> None:
    obj = whole(status)
    read = Read({**obj, "metadata": Read(obj["metadata"]), "spec": Read(obj["spec"])})
    for workload in (None, read):
        rows.row(kind, read, workload, [])
    ray_gang.stands_alone(read)
    queued.by_owner([read])
    alone.below(kind, read, {})
    assert read.asked <= set(get_type_hints(Listed))
    assert read["metadata"].asked <= set(get_type_hints(ListedMeta))
    assert read["spec"].asked <= set(get_type_hints(ListedSpec))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
@pytest.mark.parametrize("status", STATUSES, ids=range(len(STATUSES)))
def test_a_listed_object_gives_the_row_of_the_whole_one(kind: Kind, status: dict[str, Any]) -> None:
    obj = whole(status)
    listed = msgspec.json.decode(msgspec.json.encode(obj), type=Listed)
    assert "rayClusterSpec" not in (listed["spec"] or {}) and "managedFields" not in listed["metadata"]
    for workload, brief in ((None, None), (obj, listed)):
        assert rows.row(kind, dict(listed), brief and dict(brief), []) == rows.row(kind, obj, workload, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  spaces around  ",
        "one plain line",
        "x" * 300,
        "first\nsecond",
        "\x1b[31mred\x1b[0m",
        "overwritten\rby this",
        "failed, last available logs (truncated to 20,000 chars): Traceback",
        "failed, Last Available Logs (Truncated to 5 lines): Traceback",
        "a name in brackets (truncated to fit)",
        "soft\u00adhyphen and \u2028 separator",
    ],
)
def test_a_plain_line_is_shown_as_any_other(text: str) -> None:
    before = _LOG_FOLLOWS.split(without_codes(text).strip(), maxsplit=1)[0]
    line = next((one.strip() for one in before.split("\n") if one.strip()), "")
    assert headline(text, 200) == (line if len(line) <= 200 else line[:199] + "…")
