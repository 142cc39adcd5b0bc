"""Eviction: a pod is deleted politely, if the budgets that protect it can spare one more.

`kubectl drain` asks for it. What a budget allows is kept in its status by the disruption controller; here one is taken
from it, so that two evictions at once never spend the same.
"""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock
from shoal.kube.transport import Request
from shoal.local.apiserver.kinds import objects
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.primitives.status import Refused, bad_request, cause, conflict, not_found, too_many_requests
from shoal.local.apiserver.requests.body import decode_object
from shoal.local.apiserver.requests.call import Answer, Call, decoded, object_answer
from shoal.local.apiserver.requests.route import Route
from shoal.local.apiserver.requests.selectors import label_selector
from shoal.local.apiserver.verbs.deleting import DeleteVerbs, Options, Preconditions
from shoal.local.apiserver.verbs.system_writes import SYSTEM
from shoal.local.apiserver.verbs.writing import WriteVerbs

_OVER = ("Succeeded", "Failed", "Pending")  # no budget counts these


class Evictor:
    def __init__(self, registry: Registry, clock: Clock, writer: WriteVerbs, deleter: DeleteVerbs) -> None:
        self.registry = registry
        self.clock = clock
        self.writer = writer
        self.deleter = deleter

    async def evict(self, call: Call, pod: Json) -> Answer:
        options = _options(call, await self._admitted(call))
        _check_preconditions(call, options.preconditions, pod["metadata"])
        if (pod.get("status") or {}).get("phase") not in _OVER and not pod["metadata"].get("deletionTimestamp"):
            for budget in self._budgets(call, pod):
                await self._spend(call, budget, pod)
            if not call.dry_run:
                await self._mark(call)
        record = call.resource.collection.head(call.namespace, call.route.name)
        if record is None:
            raise not_found("", "pods", call.route.name)
        options = msgspec.structs.replace(
            options,
            preconditions=Preconditions(uid=pod["metadata"]["uid"]),  # its revision is ours by now
        )
        await self.deleter.delete_record(call, record, options)
        return object_answer(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
        )

    async def _admitted(self, call: Call) -> Json:
        eviction = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        objects.check_metadata(eviction, "Eviction")
        return await self.writer.admission.admit_part(call, eviction)

    async def _mark(self, call: Call) -> None:
        """Say on the pod why it goes: policies of Jobs tell an eviction from a failure by that."""
        where = Route("update", "", "v1", "pods", call.namespace, call.route.name, "status")
        now = seconds_text(self.clock.now())
        mark = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": None, "lastTransitionTime": now}  # fmt: skip

        def produce(old: Json | None) -> Json:
            assert old is not None
            status = old.get("status") or {}
            others = [one for one in status.get("conditions") or () if one.get("type") != mark["type"]]
            return {**old, "status": {**status, "conditions": [*others, mark]}}

        request = Request(method="PUT", path="")
        # As apply is, so that no field owner is recorded: the server itself owns nothing.
        await self.writer.change(Call(request, SYSTEM, where, call.resource, call.version), produce, apply=True)

    def _budgets(self, call: Call, pod: Json) -> list[Json]:
        """Those that protect the pod. One that is not ready may leave where that makes nothing worse."""
        budgets = self.registry.find("policy", "poddisruptionbudgets")
        assert budgets is not None
        labels = pod["metadata"].get("labels") or {}
        found = []
        for budget in map(decoded, budgets.collection.heads(call.namespace)):
            spec, status = budget.get("spec") or {}, budget.get("status") or {}
            if not label_selector(spec.get("selector"))(labels):
                continue
            healthy, wanted = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
            spare = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted > 0
            if _is_ready(pod) or not spare:
                found.append(budget)
        return found

    async def _spend(self, call: Call, budget: Json, pod: Json) -> None:
        resource = self.registry.find("policy", "poddisruptionbudgets")
        assert resource is not None
        name = budget["metadata"]["name"]
        where = Route("update", "policy", "v1", resource.plural, call.namespace, name, "status")
        query = {"dryRun": "All"} if call.dry_run else {}
        request = Request(method="PUT", path="", query=query)

        def produce(old: Json | None) -> Json:
            assert old is not None
            status = old.get("status") or {}
            if int(status.get("observedGeneration") or 0) < int(old["metadata"].get("generation") or 0):
                raise _refused(f"The disruption budget {name} is still being processed by the server.", 10)
            left = int(status.get("disruptionsAllowed") or 0)
            if left <= 0:
                wanted, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
                words = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
                raise _refused(words, 0)
            gone = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: seconds_text(self.clock.now())}
            return {**old, "status": {**status, "disruptionsAllowed": left - 1, "disruptedPods": gone}}

        await self.writer.change(Call(request, SYSTEM, where, resource, resource.versions["v1"]), produce)


def _options(call: Call, eviction: Json) -> Options:
    if eviction.get("apiVersion") not in (None, "", "policy/v1", "policy/v1beta1"):
        version = str(eviction["apiVersion"])[:80]
        raise bad_request(
            f'Eviction in version "{version.rpartition("/")[2]}" cannot be handled as a Eviction: no kind '
            f'"Eviction" is registered for version "{version}"'
        )
    objects.check_metadata(eviction, "Eviction")
    if eviction["metadata"].get("name") not in (None, "", call.route.name):
        raise bad_request("name in URL does not match name in Eviction object")
    try:
        return msgspec.convert(eviction.get("deleteOptions") or {}, Options)
    except msgspec.ValidationError as error:
        raise bad_request(f"Eviction cannot be decoded: deleteOptions: {error}") from None


def _check_preconditions(call: Call, asked: Preconditions | None, metadata: Json) -> None:
    """Before anything is taken from a budget or written on the pod."""
    for word, wanted, found in (
        ("UID", asked and asked.uid, metadata["uid"]),
        ("ResourceVersion", asked and asked.resource_version, metadata["resourceVersion"]),
    ):
        if wanted and wanted != found:
            words = f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
            raise conflict("", "pods", call.route.name, words)


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _refused(words: str, seconds: int) -> Refused:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return too_many_requests(message, seconds, [cause("DisruptionBudget", words)])
