"""The provisioning check: one ProvisioningRequest per attempt, and its answer in the Workload's check.

Called by the reconciler with a Workload as stored. Templates are created before the request that names them; a request
is never kept after the end of what it was made for. Writes only entries of checks that are ours.
"""

from __future__ import annotations

import logging
from random import Random

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key, Kind
from shoal.api.kueue import AdmissionCheck, ProvisioningRequestConfig
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.node_pools import OBTAINS
from shoal.api.times import parse_time
from shoal.controllers.demand.devices import tolerating_template
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks import requests
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.inject import StartError
from shoal.controllers.queues.stored import StoredWorkload, is_true
from shoal.controllers.queues.workloads import infos_of
from shoal.errors import BadInput
from shoal.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound

replace = msgspec.structs.replace
log = logging.getLogger(__name__)

JITTER = 0.0001
NOT_ACTIVE = "the check is not active"
NOT_NEEDED = "the provisioning request is not needed"


class Provisioning:
    def __init__(self, context: QueueContext, random: Random | None = None) -> None:
        self._context = context
        self._caches = context.caches
        self._random = random or Random()
        self._handed: set[str] = set()
        """UIDs of requests that own their templates."""

    async def look(self, workload: StoredWorkload) -> StoredWorkload:
        """Bring the requests of one Workload to where its status says, and its checks to where the requests say."""
        if is_true(workload, "Finished") or is_true(workload, "Evicted") or not is_true(workload, "QuotaReserved"):
            await self._drop(self._caches.requests_of(workload))
            return workload
        ours = [one.name for one in workload.status.admission_checks or () if self._is_ours(one.name)]
        await self._drop(self._of_other_checks(workload, ours))
        if not ours:
            return workload
        draft = WorkloadDraft(workload, self._context.clock.now())
        for name in ours:
            await self._serve(draft, name)
        return await self._context.store(draft) if draft.change else workload

    def _is_ours(self, name: str) -> bool:
        found = self._caches.check(name)
        return found is not None and found.spec.controller_name == kueue_names.PROVISIONING_CHECK

    def config_of(self, check: str) -> ProvisioningRequestConfig | None:
        found = self._caches.check(check)
        return config_of(found, self._caches) if found is not None else None

    async def _serve(self, draft: WorkloadDraft, name: str) -> None:
        workload = draft.workload
        check = next(one for one in draft.get("admissionChecks") if one["name"] == name)
        config = self.config_of(name)
        if config is None:
            if check.get("state") == "Pending":
                self._answer(draft, check, requests.RequestAnswer(state="Pending", message=NOT_ACTIVE))
            return
        if {one.name for one in workload.spec.pod_sets} - requests.admitted_pod_sets(workload):
            return  # not an admission of what it asks for: its own controller gives it back
        try:
            wanted = requests.wanted_pod_sets(
                workload, config, infos_of(_without_updates(workload), self._caches.flavor)
            )
        except StartError as error:
            self._answer(draft, check, requests.RequestAnswer(state="Rejected", message=str(error)))
            return
        if not wanted:
            await self._drop([one for _, one in requests.attempts(self._caches.requests_of(workload), workload, name)])
            if check.get("state") != "Ready":
                self._answer(draft, check, requests.RequestAnswer(state="Ready", message=NOT_NEEDED))
            return
        numbered = requests.attempts(self._caches.requests_of(workload), workload, name)
        stale = [one for _, one in numbered if not requests.fits_config(one, config)]
        numbered = [pair for pair in numbered if pair[1] not in stale]
        await self._drop([*stale, *(one for _, one in numbered[1:])])
        await self._drop_templates(stale)
        if not numbered:
            if check.get("state") == "Pending":
                await self._create(draft, check, config, wanted, int(check.get("retryCount") or 0) + 1)
            return
        attempt, request = numbered[0]
        await self._hand_over(request)
        if (
            self._is_spent(request, draft)
            and check.get("state") == "Pending"
            and attempt <= int(check.get("retryCount") or 0)
        ):
            await self._create(draft, check, config, wanted, attempt + 1)
            await self._drop([request])
            return
        admitted = draft.is_true("Admitted")
        late = self._late(request, draft.now)
        self._answer(
            draft,
            check,
            requests.answer(
                request,
                attempt,
                check,
                config,
                wanted,
                admitted=admitted,
                jitter=lambda: self._random.random() * JITTER,
                late=late,
            ),
        )

    def _late(self, request: Json, now: int) -> str:
        limit = self._context.settings.provisioning_seconds
        made = request["metadata"].get("creationTimestamp")
        if limit is None or not made or now - parse_time(made) < limit * SECOND:
            return ""
        return f"nothing was provided within {limit:g} s"

    def next_look(self, workload: Workload) -> float | None:
        """Seconds until a request that is waited for has taken too long."""
        limit = self._context.settings.provisioning_seconds
        waits = is_true(workload, "QuotaReserved") and not is_true(workload, "Admitted")
        if limit is None or not waits or is_true(workload, "Evicted"):
            return None
        now = self._context.clock.now()
        made = [one["metadata"].get("creationTimestamp") for one in self._caches.requests_of(workload)]
        left = [limit - (now - parse_time(text)) / SECOND for text in made if text]
        return max(0.1, min(left)) if left else None

    def _is_spent(self, request: Json, draft: WorkloadDraft) -> bool:
        return requests.holds(request, "Failed") or (
            requests.holds(request, "BookingExpired") and not draft.is_true("Admitted")
        )

    async def _create(
        self,
        draft: WorkloadDraft,
        check: Json,
        config: ProvisioningRequestConfig,
        wanted: list[requests.Wanted],
        attempt: int,
    ) -> None:
        """Templates first, then the request, then the templates go over to it."""
        context, workload = self._context, draft.workload
        templates, body = requests.objects(workload, check["name"], attempt, config, wanted)
        if context.settings.device_tolerations:
            for template in templates:
                tolerating_template(template["template"])
        name = body["metadata"]["name"]
        try:
            for template in templates:
                await self._make(kinds.POD_TEMPLATE, template, workload)
            request = await self._make(kinds.PROVISIONING_REQUEST, body, workload)
        except (BadInput, Invalid, Forbidden) as error:
            said = f"Error creating ProvisioningRequest {name!r}: {error}"
            context.tell(workload.raw, "Warning", "FailedCreate", said)
            self._answer(draft, check, requests.RequestAnswer(state="Pending", message=said))
            return
        self._caches.requests.note_write(request)
        context.tell(workload.raw, "Normal", "ProvisioningRequestCreated", f'Created ProvisioningRequest: "{name}"')
        await self._hand_over(request)

    async def _hand_over(self, request: Json) -> None:
        """From now on the templates go with the request. Also done for one that was made before a restart."""
        uid, namespace = request["metadata"]["uid"], request["metadata"].get("namespace")
        if uid in self._handed:
            return
        owner = requests.reference(kinds.PROVISIONING_REQUEST, request["metadata"]["name"], uid)
        for one in (request.get("spec") or {}).get("podSets") or ():
            try:
                template = await self._context.client.get(kinds.POD_TEMPLATE, one["podTemplateRef"]["name"], namespace)
            except NotFound:
                continue
            await self._context.writer.patch(kinds.POD_TEMPLATE, template, {"metadata": {"ownerReferences": [owner]}})
        self._handed.add(uid)

    async def _make(self, kind: Kind, body: Json, workload: Workload) -> Json:
        """Create it, or find what an earlier try made under the same name. Raises BadInput for a stranger's."""
        writer = self._context.writer
        try:
            return await writer.create(kind, body)
        except AlreadyExists:
            metadata = body["metadata"]
            found: Json = await self._context.client.get(kind, metadata["name"], metadata["namespace"])
            owners = {one.get("uid") for one in found["metadata"].get("ownerReferences") or () if one.get("controller")}
            known = {
                workload.metadata.uid,
                *(one["metadata"]["uid"] for one in self._caches.requests_of(workload)),
            }
            if not owners & known:
                where = f"{metadata['namespace']}/{metadata['name']}"
                raise BadInput(f"{body['kind']} {where} exists and belongs to another owner; remove it") from None
            return found

    def _answer(self, draft: WorkloadDraft, check: Json, given: requests.RequestAnswer) -> None:
        """Write what the request says into its check; the time changes only with the state."""
        before = str(check.get("state") or "")
        changed = before != given.state
        check["message"] = kueue_names.bounded(given.message)
        if changed:
            check["state"] = given.state
            check["lastTransitionTime"] = draft.moment(check)
            said = f"Admission check {check['name']} updated state from {before} to {given.state}"
            if given.message:
                said += f" with message: {given.message}"
            draft.tell("Normal", "AdmissionCheckUpdated", said)
        if given.requeue_after is not None and changed:
            check["requeueAfterSeconds"] = given.requeue_after
        if given.state == "Ready" and given.updates is not None and changed:
            check["podSetUpdates"] = list(given.updates)

    def _of_other_checks(self, workload: Workload, names: list[str]) -> list[Json]:
        """Requests that were made for checks which do not apply any more."""
        mine = {
            one["metadata"]["uid"]
            for name in names
            for _, one in requests.attempts(self._caches.requests_of(workload), workload, name)
        }
        made = (one for one in self._caches.requests_of(workload) if _is_made_by_a_check(one))
        return [one for one in made if one["metadata"]["uid"] not in mine]

    async def _drop(self, found: list[Json]) -> None:
        for request in found:
            if _is_made_by_a_check(request) and not request["metadata"].get("deletionTimestamp"):
                await self._context.writer.delete(kinds.PROVISIONING_REQUEST, request)
                self._caches.requests.note_delete(request)
                self._handed.discard(request["metadata"]["uid"])

    async def _drop_templates(self, found: list[Json]) -> None:
        """The request that follows at once has the same name and the same templates': the garbage collector, which
        comes later, would find them in its way."""
        for request in found:
            for one in (request.get("spec") or {}).get("podSets") or ():
                name, namespace = one["podTemplateRef"]["name"], request["metadata"].get("namespace")
                try:
                    template = await self._context.client.get(kinds.POD_TEMPLATE, name, namespace)
                except NotFound:
                    continue
                owners = template["metadata"].get("ownerReferences") or ()
                if any(owner.get("uid") == request["metadata"]["uid"] for owner in owners):
                    await self._context.writer.delete(kinds.POD_TEMPLATE, template)


def config_named(check: AdmissionCheck) -> str | None:
    """Name of the ProvisioningRequestConfig of a check; None when it names none, or something else."""
    named = check.spec.parameters
    if named is None or named.kind != "ProvisioningRequestConfig" or named.api_group != kueue_names.GROUP:
        return None
    return named.name


def config_of(check: AdmissionCheck, caches: QueueCaches) -> ProvisioningRequestConfig | None:
    """None where the check names none, or one that does not exist."""
    return caches.configs.get(Key("", config_named(check) or ""))


def _is_made_by_a_check(request: Json) -> bool:
    """Not one by which a gang without any check asks for nodes."""
    return OBTAINS not in (request["metadata"].get("annotations") or {})


def _without_updates(workload: Workload) -> Workload:
    """The Workload before any check added something: what the pods that are asked for will look like."""
    entries = tuple(replace(one, pod_set_updates=None) for one in workload.status.admission_checks or ())
    return replace(workload, status=replace(workload.status, admission_checks=entries))
