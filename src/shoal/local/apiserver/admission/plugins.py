"""Built-in admission: what the server adds to objects and refuses, beyond their own validity.

The set that a usual cluster runs: namespace lifecycle, service accounts, priorities, tolerations, limit ranges,
resource quota, and the stamp of who created an AppWrapper or asks a Question. Webhooks come between, from webhooks.py.
Each rule is one function.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable

import msgspec

from shoal.api.appwrapper_rules import user_labels, wraps_the_same
from shoal.api.gang import CREATED_BY
from shoal.api.labels import NODE_NOT_READY, NODE_UNREACHABLE
from shoal.api.meta import Json
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.local.apiserver.admission import limit_ranges
from shoal.local.apiserver.admission.quota import check_quota, may_grow
from shoal.local.apiserver.admission.webhooks import Webhooks, review_of
from shoal.local.apiserver.auth.authorization import MASTERS, AccessRule, Action, Authorizer, parse_rules
from shoal.local.apiserver.crd.serving import CustomKinds
from shoal.local.apiserver.kinds import strategy
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.primitives.status import Refused, bad_request, cause, forbidden, not_found
from shoal.local.apiserver.requests.call import Call, decoded
from shoal.local.apiserver.validation.claims import requested_storage

IMMORTAL_NAMESPACES = frozenset(("default", "kube-system", "kube-public"))
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
_OWN_RESOURCES = ("kubernetes.io/", "requests.")
Judge = Callable[[AdmissionRequest], AdmissionVerdict | Awaitable[AdmissionVerdict]]
_STAMPED_GROUPS = ("workload.codeflare.dev", "mcad.ibm.com")


class AdmissionPlugins:
    def __init__(
        self,
        registry: Registry,
        chance: random.Random,
        webhooks: Webhooks,
        custom_kinds: CustomKinds,
        authorizer: Authorizer,
        *,
        extended_resource_toleration: bool = True,
    ) -> None:
        self.registry = registry
        self.custom_kinds = custom_kinds
        self.authorizer = authorizer
        self.chance = chance
        self.webhooks = webhooks
        self.extended_resource_toleration = extended_resource_toleration
        self.judges: dict[tuple[str, str], Judge] = {}
        """By group and resource: who else may refuse an object, without a webhook in between."""
        self.status_judges: dict[tuple[str, str], Judge] = {}
        """The same for writes of its status."""
        self.preparers: dict[tuple[str, str], Judge] = {}
        """By group and resource: who else may change a new object, without a webhook in between."""
        self.updaters: dict[tuple[str, str], Judge] = {}
        """The same for updates."""

    async def mutate(self, call: Call, obj: Json, old: Json | None) -> Json:
        """The object as it will be judged. May be a new one when webhooks changed it."""
        resource = call.resource
        if old is None:
            self._check_namespace(call, obj)
            if resource.kind == "Pod" and not resource.group:
                self._complete_pod(call, obj)
            elif resource.kind == "Service" and not resource.group:
                strategy.allocate_addresses(obj, resource.collection, self.chance)
            elif resource.kind == "PriorityClass" and resource.group == "scheduling.k8s.io":
                self._check_one_default(call, obj)
        elif resource.name == "pods" and not call.route.subresource and type(obj.get("spec")) is dict:
            complete_update(obj["spec"], old.get("spec") or {})
        if resource.kind == "CustomResourceDefinition" and call.route.subresource != "status" and not resource.custom:
            self.custom_kinds.settle(obj, old)
        elif resource.group == "rbac.authorization.k8s.io" and not resource.custom:
            self._check_escalation(call, obj)
        self._stamp(call, obj, old)
        preparer = (self.preparers if old is None else self.updaters).get((resource.group, resource.plural))
        if preparer is not None and not call.route.subresource:
            obj = await ask(preparer, call, obj, old) or obj
        if self.webhooks.mutating and not call.asked:
            obj = await self._changed(call, obj, old)
            self._stamp(call, obj, old)
        return obj

    def _stamp(self, call: Call, obj: Json, old: Json | None) -> None:
        resource = call.resource
        if resource.kind == "AppWrapper" and resource.group in _STAMPED_GROUPS:
            stamp_creator(call, obj, old)
        elif resource.kind == "Question" and resource.group == "shoal.dev" and not call.route.subresource:
            annotations = obj["metadata"].get("annotations") or {}
            obj["metadata"]["annotations"] = {**annotations, CREATED_BY: user_text(call)}  # the caller wrote it last

    async def validate(self, call: Call, obj: Json, old: Json | None) -> None:
        subresource = call.route.subresource
        judges = self.status_judges if subresource == "status" else self.judges
        judge = judges.get((call.resource.group, call.resource.plural))
        if judge is not None and subresource in ("", "status"):
            await ask(judge, call, obj, old)
        if self.webhooks.validating and not call.asked:
            if call.view is not None and old is not None:
                await self.webhooks.validate(call.view.call, call.view.show(obj), call.view.show(old))
            else:
                await self.webhooks.validate(call, obj, old)
        if old is not None and call.resource.name == "persistentvolumeclaims" and not call.route.subresource:
            self._check_growth(obj, old)
        resized = old is not None and subresource == "resize"
        if (old is None or resized) and call.resource.name == "pods":
            limits = self.registry.find("", "limitranges")
            if limits is not None:
                limit_ranges.check(obj, limits.collection.heads(call.namespace))
        if (old is None or may_grow(call.resource, subresource)) and call.resource.namespaced:
            quotas = self.registry.find("", "resourcequotas")
            assert quotas is not None
            if call.namespace in quotas.collection.objects or quotas.collection.pending:
                check_quota(call.resource, obj, quotas.collection.heads(call.namespace), old)

    async def _changed(self, call: Call, obj: Json, old: Json | None) -> Json:
        """The object as mutating webhooks make it. They see a subresource in its own kind."""
        if call.view is None or old is None:
            return await self.webhooks.mutate(call, obj, old)
        shown = call.view.show(obj)
        changed = await self.webhooks.mutate(call.view.call, shown, call.view.show(old))
        if changed is not shown:
            call.view.take(obj, changed)
        return obj

    async def admit_part(self, call: Call, part: Json) -> Json:
        """What is posted to a subresource (a binding, an eviction, a request for a token), as webhooks leave it."""
        part.setdefault("metadata", {})
        if self.webhooks.mutating:
            part = await self.webhooks.mutate(call, part, None)
        if self.webhooks.validating:
            await self.webhooks.validate(call, part, None)
        call.asked = True
        return part

    def _check_growth(self, claim: Json, old: Json) -> None:
        """A claim may only grow where its class says that it can."""
        if requested_storage(claim) <= requested_storage(old):
            return
        classes, name = self.registry.find("storage.k8s.io", "storageclasses"), claim["spec"].get("storageClassName")
        record = classes.collection.head("", name) if classes is not None and name else None
        if record is None or not decoded(record).get("allowVolumeExpansion"):
            words = (
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
                "support resize"
            )
            raise forbidden("", "persistentvolumeclaims", claim["metadata"]["name"], words)

    # --- namespaces

    def _check_namespace(self, call: Call, obj: Json) -> None:
        if not call.resource.namespaced:
            return
        namespaces = self.registry.find("", "namespaces")
        assert namespaces is not None
        record = namespaces.collection.head("", call.namespace)
        if record is None:
            raise not_found("", "namespaces", call.namespace)
        if b'"deletionTimestamp"' in record.raw and decoded(record)["metadata"].get("deletionTimestamp"):
            message = f"unable to create new content in namespace {call.namespace} because it is being terminated"
            raise forbidden(
                call.resource.group,
                call.resource.plural,
                obj["metadata"].get("name", ""),
                message,
                [
                    cause(
                        "NamespaceTerminating", f"namespace {call.namespace} is being terminated", "metadata.namespace"
                    )
                ],
            )

    # --- pods

    def _complete_pod(self, call: Call, pod: Json) -> None:
        spec = pod.get("spec")
        if type(spec) is not dict:
            return  # validation says so
        if spec.get("overhead") and not spec.get("runtimeClassName"):
            words = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise forbidden("", "pods", pod["metadata"].get("name", ""), words)
        self._service_account(call, pod, spec)
        self._priority(call, pod, spec)
        limits = self.registry.find("", "limitranges")
        if limits is not None:
            limit_ranges.fill(pod, limits.collection.heads(call.namespace))
            pod["status"]["qosClass"] = strategy.quality_of_service(spec)
        if self.extended_resource_toleration:
            tolerate_extended_resources(spec)
        tolerate_lost_nodes(spec)

    def _service_account(self, call: Call, pod: Json, spec: Json) -> None:
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        accounts = self.registry.find("", "serviceaccounts")
        assert accounts is not None
        # The default account of a new namespace may still be on its way: the pod waits for it on its node.
        if name != "default" and isinstance(name, str) and accounts.collection.head(call.namespace, name) is None:
            raise forbidden(
                "",
                "pods",
                pod["metadata"].get("name", ""),
                f'error looking up service account {call.namespace}/{name}: serviceaccount "{name}" not found',
            )
        spec["serviceAccountName"] = spec["serviceAccount"] = name

    def _priority(self, call: Call, pod: Json, spec: Json) -> None:
        classes = self.registry.find("scheduling.k8s.io", "priorityclasses")
        assert classes is not None
        name = spec.get("priorityClassName")
        found: Json | None = None
        if not name:
            default = [one for one in map(decoded, classes.collection.all_heads()) if one.get("globalDefault")]
            if default:
                found = min(default, key=lambda one: one.get("value", 0))
                spec["priorityClassName"] = found["metadata"]["name"]
        elif isinstance(name, str):
            record = classes.collection.head("", name)
            if record is None:
                raise forbidden(
                    "", "pods", pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
                )
            found = decoded(record)
        value = found.get("value", 0) if found else 0
        given = spec.get("priority")
        if given is not None and given != value:
            raise forbidden(
                "",
                "pods",
                pod["metadata"].get("name", ""),
                f"the integer value of priority ({given}) must not be "
                f"provided in pod spec; priority admission controller computed {value} from the given "
                "PriorityClass name",
            )
        spec["priority"] = value
        policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
        if spec.get("preemptionPolicy") not in (None, policy):
            raise forbidden(
                "",
                "pods",
                pod["metadata"].get("name", ""),
                "the string value of PreemptionPolicy "
                f"({spec['preemptionPolicy']}) must not be provided in pod spec; priority admission controller "
                f"computed {policy} from the given PriorityClass name",
            )
        spec["preemptionPolicy"] = policy

    # --- roles

    def _check_escalation(self, call: Call, obj: Json) -> None:
        """Users may grant only what they hold themselves, unless allowed to by `escalate` or `bind`."""
        if MASTERS in call.user.groups:
            return
        resource, name = call.resource, obj["metadata"].get("name", "")
        reference = obj.get("roleRef")
        try:
            if resource.plural in ("roles", "clusterroles"):
                rules: tuple[AccessRule, ...] | None = parse_rules(obj.get("rules"))
                verb, target = "escalate", resource.plural
            elif resource.plural in ("rolebindings", "clusterrolebindings") and type(reference) is dict:
                kind = str(reference.get("kind", ""))
                verb, target = "bind", "clusterroles" if kind == "ClusterRole" else "roles"
                name = str(reference.get("name", ""))
                rules = self.authorizer.rules_of(call.namespace, kind, name)
            else:
                return
        except msgspec.ValidationError as error:
            raise bad_request(f"{resource.kind} cannot be decoded: rules: {error}") from None
        if self.authorizer.allowed(call.user, Action(verb, resource.group, target, "", call.namespace, name)):
            return
        if rules is None:  # what the name will mean one day is not for this user to grant today
            raise not_found(resource.group, target, name)
        missing = self.authorizer.escalates(call.user, rules, call.namespace)
        if missing:
            shown = "\n".join(msgspec.json.encode(rule).decode() for rule in missing)
            raise forbidden(
                resource.group,
                resource.plural,
                obj["metadata"].get("name", ""),
                f'user "{call.user.name}" (groups='
                f"{list(call.user.groups)}) is attempting to grant RBAC permissions not currently held:\n{shown}",
            )

    def _check_one_default(self, call: Call, obj: Json) -> None:
        if not obj.get("globalDefault"):
            return
        for record in call.resource.collection.all_heads():
            if decoded(record).get("globalDefault"):
                raise forbidden(
                    "scheduling.k8s.io",
                    "priorityclasses",
                    obj["metadata"].get("name", ""),
                    f"PriorityClass {record.name} is already marked as default. Only one default can exist",
                )


async def ask(judge: Judge, call: Call, obj: Json, old: Json | None) -> Json | None:
    """Put the question as a webhook would get it; raise what a webhook's refusal would be. Returns what it changed."""
    question = review_of("", call, "CREATE" if old is None else "UPDATE", obj, old)["request"]
    answer = judge(msgspec.convert(question, AdmissionRequest))
    verdict = await answer if inspect.isawaitable(answer) else answer
    call.warnings.extend(verdict.warnings)
    if not verdict.allowed:
        raise Refused(verdict.code, verdict.reason, verdict.message)
    return verdict.changed


def user_text(call: Call) -> str:
    """The user of a request, as it is written down."""
    user = call.user
    return msgspec.json.encode(
        {"user": user.name, "uid": user.uid, "groups": list(user.groups), "extra": user.extra}
    ).decode()


def stamp_creator(call: Call, obj: Json, old: Json | None) -> None:
    """The user that answers for what it wraps, as the server knows it: its creator, or the last to change it.

    What users put there themselves is replaced.
    """
    annotations = obj["metadata"].setdefault("annotations", {})
    user = call.user
    if old is None and "components" in (obj.get("spec") or {}):
        obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), **user_labels(user.name, user.uid)}
    if old is None or not wraps_the_same(obj, old):
        annotations[CREATED_BY] = user_text(call)
        return
    kept = (old["metadata"].get("annotations") or {}).get(CREATED_BY)
    if kept is None:
        annotations.pop(CREATED_BY, None)
        if not annotations:
            del obj["metadata"]["annotations"]
    else:
        annotations[CREATED_BY] = kept


def tolerate_extended_resources(spec: Json) -> None:
    """A pod that asks for a special device tolerates the taint that keeps others off its nodes."""
    wanted: set[str] = set()
    for container in _containers(spec):
        resources = container.get("resources")
        for part in ("requests", "limits"):
            amounts = resources.get(part) if type(resources) is dict else None
            wanted.update(name for name in (amounts if type(amounts) is dict else ()) if is_extended(name))
    if not wanted:
        return
    tolerations = _tolerations(spec)
    there = {
        str(one.get("key"))
        for one in tolerations
        if type(one) is dict and one.get("operator") == "Exists" and not one.get("effect")
    }
    tolerations += [{"key": name, "operator": "Exists"} for name in sorted(wanted - there)]


def is_extended(name: object) -> bool:
    """A resource of a device plug-in: has a domain that is not Kubernetes' own."""
    return (
        isinstance(name, str) and "/" in name and "kubernetes.io/" not in name and not name.startswith(_OWN_RESOURCES)
    )


def complete_update(spec: Json, before: Json) -> None:
    """What admission once added, so that a pod can be replaced by the manifest that made it."""
    tolerate_lost_nodes(spec)
    for name in ("priority", "preemptionPolicy"):
        if name in before:
            spec.setdefault(name, before[name])


def tolerate_lost_nodes(spec: Json) -> None:
    """Pods stay five minutes on a node that is lost, unless they say otherwise."""
    tolerations = _tolerations(spec)
    for key in (NODE_NOT_READY, NODE_UNREACHABLE):
        if not any(
            one.get("key") in (key, None, "") and one.get("effect") in ("NoExecute", None, "")
            for one in tolerations
            if type(one) is dict
        ):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _tolerations(spec: Json) -> list[Json]:
    found = spec.get("tolerations")
    if type(found) is not list:
        found = spec["tolerations"] = [] if found is None else found
    if type(found) is not list:
        raise bad_request("spec.tolerations is not a list")
    return found


def _containers(spec: Json) -> list[Json]:
    found: list[Json] = []
    for part in ("containers", "initContainers"):
        items = spec.get(part)
        if type(items) is list:
            found += [one for one in items if type(one) is dict]
    return found
