"""Small stored worlds for tests of the judge at rest: objects as a server would store them, without the noise."""

from __future__ import annotations

from typing import Any

from shoal.api.times import parse_time
from tests.checker.at_rest import Rules, judge_rest

Json = dict[str, Any]
NOW = parse_time("2026-01-01T12:00:00Z")
RULES = Rules(now=NOW)
EARLIER = "2026-01-01T10:00:00Z"


class World:
    """Objects as a server would store them, with whatever noise the judge does not need left out."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Json]] = {}
        self._number = 0
        self.put("namespaces", "default", namespaced=False)
        self.put("resourceflavors", "default", namespaced=False, spec={})

    def put(self, plural: str, name: str, *, namespaced: bool = True, kind: str = "", **parts: Any) -> Json:
        self._number += 1
        kind = kind or {"jobs": "Job", "workloads": "Workload", "pods": "Pod"}.get(plural, plural[:-1].title())
        metadata = {"name": name, "uid": f"{plural}-{name}", "creationTimestamp": EARLIER}
        metadata |= {"namespace": "default"} if namespaced else {}
        metadata |= parts.pop("metadata", {})
        obj = {"kind": kind, "metadata": metadata, **parts}
        self.objects.setdefault(plural, []).append(obj)
        return obj

    def node(self, name: str = "node", cpu: str = "16", **metadata: Any) -> Json:
        status = {"allocatable": {"cpu": cpu, "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
        return self.put("nodes", name, namespaced=False, status=status, metadata=metadata)

    def queue(self, name: str, cpu: str, limits: Json | None = None, **spec: Any) -> Json:
        """`limits`: of borrowing and lending."""
        quota = {"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpu, **(limits or {})}]}
        spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}], **spec}
        self.put("localqueues", name, spec={"clusterQueue": name})
        return self.put("clusterqueues", name, namespaced=False, kind="ClusterQueue", spec=spec)

    def cohort(self, name: str, parent: str = "", **spec: Any) -> Json:
        spec = {**({"parentName": parent} if parent else {}), **spec}
        return self.put("cohorts", name, namespaced=False, kind="Cohort", spec=spec)

    def gang(
        self, name: str, queue: str, cpu: str = "1", *, pods: int = 1, state: str = "", says: str = "", **spec: Any
    ) -> Json:
        """A Job and its Workload. `state`: empty (it waits), `reserved`, `admitted` or `leaving`."""
        labels = {"kueue.x-k8s.io/queue-name": queue}
        pod = template(cpu)
        job_spec = {"suspend": state != "admitted", "parallelism": pods, "completions": pods, "template": pod}
        job = self.put("jobs", name, metadata={"labels": labels}, spec=job_spec, status={})
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        conditions = [condition("QuotaReserved", bool(state), says or "couldn't assign flavors")]
        status: Json = {"conditions": conditions}
        if state:
            usage = f"{int(cpu) * pods}"
            given = {"name": "main", "count": pods, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": usage}}
            status["admission"] = {"clusterQueue": queue, "podSetAssignments": [given]}
            conditions.append(condition("Admitted", state in ("admitted", "leaving"), says))
        if state == "leaving":
            conditions.append(condition("Evicted", True, "Preempted to accommodate a workload (UID: x, JobUID: y)"))
        sets = [{"name": "main", "count": pods, "template": pod}]
        return self.put(
            "workloads",
            f"job-{name}",
            metadata={"ownerReferences": [owner]},
            spec={"queueName": queue, "podSets": sets, "active": True, **spec},
            status=status,
        )

    def pod(self, name: str, owner: Json | None = None, node: str = "", cpu: str = "1", **metadata: Any) -> Json:
        if owner is not None:
            reference = {"kind": owner["kind"], "uid": owner["metadata"]["uid"], "controller": True}
            metadata["ownerReferences"] = [reference]
        spec = {**template(cpu)["spec"], **({"nodeName": node} if node else {})}
        return self.put("pods", name, metadata=metadata, spec=spec, status={"phase": "Running" if node else "Pending"})

    def job(self, name: str) -> Json:
        return next(one for one in self.objects["jobs"] if one["metadata"]["name"] == name)

    def found(self, rules: Rules = RULES) -> list[str]:
        verdict = judge_rest(self.objects, rules)
        assert verdict.undecided == []
        return verdict.found

    def undecided(self, rules: Rules = RULES) -> list[str]:
        verdict = judge_rest(self.objects, rules)
        assert verdict.found == []
        return verdict.undecided


def template(cpu: str, **spec: Any) -> Json:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **spec}}


def condition(kind: str, holds: bool, message: str = "") -> Json:
    return {"type": kind, "status": str(holds), "reason": "R", "message": message, "lastTransitionTime": EARLIER}


def short(more: int = 1) -> str:
    missing = f"insufficient unused quota for cpu in flavor default, {more} more needed"
    return f"couldn't assign flavors to pod set main: {missing}"


def wrapper(world: World, name: str, cpu: str, status: Json) -> Json:
    pod = {"kind": "Pod", "metadata": {"name": f"{name}-0"}, "spec": template(cpu)["spec"]}
    spec = {"resources": {"GenericItems": [{"generictemplate": pod}]}}
    return world.put("appwrappers", name, kind="AppWrapper", spec=spec, status=status)
