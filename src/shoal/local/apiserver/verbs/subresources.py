"""The parts of objects with an address of their own: scale, binding, eviction, token, log, exec and port-forward.

`status` and `finalize` are ordinary writes and live with them. Logs and terminals come from the agent that runs the
pods, through hooks that the node agent registers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from shoal.api import ray_token
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock
from shoal.kube.transport import Response
from shoal.local.apiserver.auth.authorization import Action, Authorizer
from shoal.local.apiserver.auth.tokens import Tokens, request_spec
from shoal.local.apiserver.kinds import objects
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.patch.errors import PatchError, patch_refused
from shoal.local.apiserver.patch.json_patch import json_patch, merge_patch
from shoal.local.apiserver.primitives.status import (
    bad_request,
    cause,
    conflict,
    invalid,
    method_not_allowed,
    no_such_resource,
    not_found,
    unavailable,
    unsupported_media,
)
from shoal.local.apiserver.requests.body import decode, decode_object, media_of
from shoal.local.apiserver.requests.call import (
    Answer,
    Call,
    StreamAnswer,
    SubresourceView,
    Upgrade,
    decoded,
    object_answer,
)
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.streams import portforward, ray_bearer
from shoal.local.apiserver.streams.terminals import PROTOCOLS, stream_names
from shoal.local.apiserver.verbs.deleting import DeleteVerbs
from shoal.local.apiserver.verbs.eviction import Evictor
from shoal.local.apiserver.verbs.writing import PATCHES, WriteVerbs

LogSource = Callable[[Json, "LogRequest"], Awaitable[AsyncIterator[bytes]]]
"""Called with the pod and what is asked; raises Refused, or answers with chunks."""
Terminal = Callable[[Json, dict[str, str], Any], Awaitable[None]]
"""Called with the pod, the query and the socket."""


class LogRequest(msgspec.Struct, frozen=True):
    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str = ""
    limit_bytes: int | None = None


class Subresources:
    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        writer: WriteVerbs,
        deleter: DeleteVerbs,
        tokens: Tokens,
        authorizer: Authorizer,
    ) -> None:
        self.registry = registry
        self.clock = clock
        self.writer = writer
        self.evictor = Evictor(registry, clock, writer, deleter)
        self.tokens = tokens
        self.authorizer = authorizer
        self.log_source: LogSource | None = None
        self.terminals: dict[str, Terminal] = {}  # by exec, attach
        self.connect: portforward.Connect = portforward.to_pod_address

    async def bind_named(self, call: Call) -> Answer:
        """POST …/bindings names its pod in the body."""
        pods = self.registry.find("", "pods")
        assert pods is not None
        try:
            name = str(msgspec.json.decode(call.request.body)["metadata"]["name"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise no_such_resource() from None
        where = msgspec.structs.replace(call.route, plural="pods", name=name, subresource="binding")
        return await self.answer(Call(call.request, call.user, where, pods, pods.versions["v1"]))

    async def answer(self, call: Call) -> Answer:
        match (call.route.subresource, call.route.verb):
            case ("scale", "get"):
                return object_answer(self._scale(call, self._stored(call)))
            case ("scale", "update" | "patch"):
                return await self._write_scale(call)
            case ("binding", "create"):
                return await self._bind(call)
            case ("eviction", "create"):
                return await self.evictor.evict(call, self._stored(call))
            case ("token", "create"):
                return await self._token(call)
            case ("log", "get"):
                return await self._log(call)
            case ("exec" | "attach" | "portforward", "get" | "create"):
                return await self._terminal(call)
        raise method_not_allowed()

    def _stored(self, call: Call) -> Json:
        record = call.resource.collection.head(call.namespace, call.route.name)
        if record is None:
            raise not_found(call.resource.group, call.resource.plural, call.route.name)
        return decoded(record)

    # --- scale

    def _scale(self, call: Call, obj: Json) -> Json:
        paths = call.version.scale or {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        metadata = obj["metadata"]
        kept = {
            name: metadata[name]
            for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if name in metadata
        }
        status: Json = {"replicas": _number(obj, paths["statusReplicasPath"])}
        selector = self._selector_text(call, obj, paths)
        if selector:
            status["selector"] = selector
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": kept,
            "spec": {"replicas": _number(obj, paths["specReplicasPath"])},
            "status": status,
        }

    def _selector_text(self, call: Call, obj: Json, paths: Json) -> str:
        if call.resource.custom:
            found = _at(obj, paths.get("labelSelectorPath", ""))
            return found if isinstance(found, str) else ""
        selector = (obj.get("spec") or {}).get("selector") or {}
        labels = selector if call.resource.kind == "ReplicationController" else selector.get("matchLabels") or {}
        return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))

    async def _write_scale(self, call: Call) -> Answer:
        body = call.request.body
        paths = call.version.scale or {"specReplicasPath": ".spec.replicas"}

        def produce(old: Json | None) -> Json:
            assert old is not None
            scale = self._scale(call, old)
            wanted = self._wanted_scale(call, scale, body)
            metadata = wanted.get("metadata") if type(wanted.get("metadata")) is dict else {}
            given = (metadata or {}).get("resourceVersion")
            if given and given != old["metadata"]["resourceVersion"]:
                raise conflict(
                    call.resource.group,
                    call.resource.plural,
                    call.route.name,
                    "the object has been modified; please apply your changes to the latest version and try again",
                )
            _put(old, paths["specReplicasPath"], _replicas(call, wanted, paths))
            return old

        whole = Call(
            call.request, call.user, msgspec.structs.replace(call.route, subresource=""), call.resource, call.version
        )
        whole.owned_as = "scale"

        def take(obj: Json, scale: Json) -> None:
            _put(obj, paths["specReplicasPath"], _replicas(call, scale, paths))

        whole.view = SubresourceView(call, partial(self._scale, call), take)
        answer = await self.writer.change(whole, produce)
        assert not isinstance(answer, (StreamAnswer, Upgrade))
        return object_answer(self._scale(call, msgspec.json.decode(answer.body)))

    def _wanted_scale(self, call: Call, scale: Json, body: bytes) -> Json:
        content = call.request.headers.get("content-type", "")
        if call.route.verb == "update":
            return decode_object(body, content)
        media = media_of(content)
        patch = decode(body, "application/json" if media != PATCHES[3] else "application/yaml")
        try:
            if media == PATCHES[0]:
                found = json_patch(scale, patch)
            elif media in PATCHES:
                found = merge_patch(scale, patch)
            else:
                raise unsupported_media(media, PATCHES)
        except PatchError as error:
            raise patch_refused(error) from None
        if type(found) is not dict:
            raise bad_request("the patch does not leave an object")
        return found

    # --- pods

    async def _bind(self, call: Call) -> Answer:
        """The scheduler's word: this pod runs on that node."""
        binding = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        objects.check_metadata(binding, "Binding")
        binding = await self.writer.admission.admit_part(call, binding)
        _check_name(call, binding, "Binding")
        target = binding.get("target")
        target = target if type(target) is dict else {}
        node = target.get("name")
        if not isinstance(node, str) or not node:
            raise invalid(
                "", "Binding", call.route.name, [cause("FieldValueRequired", "Required value", "target.name")]
            )
        if target.get("kind") not in (None, "", "Node"):
            words = f'Unsupported value: "{str(target["kind"])[:80]}": supported values: "Node", "<empty>"'
            raise invalid("", "Binding", call.route.name, [cause("FieldValueNotSupported", words, "target.kind")])
        uid = binding["metadata"].get("uid")

        def produce(old: Json | None) -> Json:
            assert old is not None
            metadata, spec = old["metadata"], old["spec"]
            if uid and uid != metadata["uid"]:
                raise conflict(
                    "",
                    "pods",
                    call.route.name,
                    f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}",
                )
            if metadata.get("deletionTimestamp"):
                raise conflict(
                    "",
                    "pods/binding",
                    call.route.name,
                    f"pod {call.route.name} is being deleted, cannot be assigned to a host",
                )
            if spec.get("schedulingGates"):
                raise conflict(
                    "",
                    "pods/binding",
                    call.route.name,
                    f"pod {call.route.name} has non-empty .spec.schedulingGates",
                )
            if spec.get("nodeName"):
                raise conflict(
                    "",
                    "pods/binding",
                    call.route.name,
                    f'pod {call.route.name} is already assigned to node "{spec["nodeName"]}"',
                )
            spec["nodeName"] = node
            if binding["metadata"].get("annotations"):
                metadata.setdefault("annotations", {}).update(binding["metadata"]["annotations"])
            conditions = [
                one for one in (old.get("status") or {}).get("conditions") or () if one.get("type") != "PodScheduled"
            ]
            conditions.append(
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": seconds_text(self.clock.now()),
                }
            )
            old.setdefault("status", {})["conditions"] = conditions
            return old

        await self.writer.change(call, produce)
        return object_answer(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
        )

    async def _token(self, call: Call) -> Answer:
        account = self._stored(call)
        wanted = (
            decode_object(call.request.body, call.request.headers.get("content-type", "")) if call.request.body else {}
        )
        if wanted.get("apiVersion") not in (None, "", "authentication.k8s.io/v1"):
            version = str(wanted["apiVersion"])[:80]
            raise bad_request(
                f'TokenRequest in version "{version}" cannot be handled as a TokenRequest: no kind "TokenRequest" is '
                f'registered for version "{version}"'
            )
        wanted = await self.writer.admission.admit_part(call, wanted)
        self._find_bound(call, request_spec(wanted))
        return object_answer(self.tokens.request(account, wanted), 201)

    def _find_bound(self, call: Call, spec: Json) -> None:
        """A token may be bound to a pod, secret or node that is there; to that very one, whatever comes after it."""
        bound = spec.get("boundObjectRef")
        if type(bound) is not dict:
            return
        kind, name = str(bound.get("kind", "")), str(bound.get("name", ""))
        plural = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}.get(kind)
        if plural is None or bound.get("apiVersion") not in (None, "", "v1"):
            raise bad_request(f"cannot bind token to object of type /{bound.get('apiVersion', '')}, Kind={kind}"[:200])
        resource = self.registry.find("", plural)
        assert resource is not None
        record = resource.collection.head(call.namespace if resource.namespaced else "", name)
        if record is None:
            raise not_found("", plural, name)
        uid = decoded(record)["metadata"]["uid"]
        if bound.get("uid") and bound["uid"] != uid:
            words = f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record. "
            words += "The object might have been deleted and then recreated"
            raise conflict("", plural, name, words)
        bound["uid"] = uid

    async def _log(self, call: Call) -> Answer:
        pod = self._stored(call)
        query = call.request.query
        groups = ("initContainers", "containers", "ephemeralContainers")
        names = [one.get("name") for part in groups for one in (pod["spec"].get(part) or ())]
        container = query.get("container", "")
        if not container:
            plain = [one.get("name") for one in pod["spec"].get("containers") or ()]
            container = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container", "")
            if not container and len(plain) > 1:
                raise bad_request(
                    f"a container name must be specified for pod {call.route.name}, choose one of: {plain}".replace(
                        "'", ""
                    )
                )
            container = container or (plain[0] if plain else "")
        if container not in names:
            raise bad_request(f"container {container} is not valid for pod {pod['metadata']['name']}")
        if not pod["spec"].get("nodeName"):
            return Response(204, {}, b"")
        if self.log_source is None:
            raise unavailable("no node agent is connected to this server, so there are no logs")
        options = LogRequest(
            container,
            query.get("follow") == "true",
            query.get("previous") == "true",
            query.get("timestamps") == "true",
            call.number("tailLines"),
            call.number("sinceSeconds", least=1),
            query.get("sinceTime", ""),
            call.number("limitBytes", least=1),
        )
        return StreamAnswer(await self.log_source(pod, options), {"content-type": "text/plain"})

    async def _terminal(self, call: Call) -> Answer:
        pod = self._stored(call)
        kind = call.resource.subresources[call.route.subresource]
        options = {name: value == "true" if value in ("true", "false") else value for name, value in
                   call.request.query.items()}  # fmt: skip
        await self.writer.admission.webhooks.connect(call, {"kind": kind, "apiVersion": "v1", **options})
        if call.route.subresource == "portforward":
            forward = partial(portforward.run, self.connect, pod, token_of=partial(self._ray_token, call.user, pod))
            return Upgrade(forward, (portforward.PROTOCOL,))
        terminal = self.terminals.get(call.route.subresource)
        if terminal is None:
            raise unavailable(f"no node agent of this server offers {call.route.subresource}")
        query = dict(call.request.query)

        async def run(socket: Any) -> None:
            await terminal(pod, query, socket)

        return Upgrade(run, PROTOCOLS, stream_names(query))

    def _ray_token(self, user: RequestUser, pod: Json, port: int) -> str:
        """The token of the pod's Ray cluster, for a user who may read it anyway; empty for others and other ports."""
        name, namespace = ray_bearer.secret_name(pod), pod["metadata"]["namespace"]
        if not name or not ray_bearer.asks_for_token(pod, port):
            return ""
        if not self.authorizer.allowed(user, Action("get", "", "secrets", "", namespace, name)):
            return ""
        secrets = self.registry.find("", "secrets")
        record = secrets.collection.head(namespace, name) if secrets is not None else None
        data = decoded(record).get("data") if record is not None else None
        return ray_token.decoded(data)


def _check_name(call: Call, body: Json, kind: str) -> None:
    if body["metadata"].get("name") not in (None, "", call.route.name):
        raise bad_request(f"name in URL does not match name in {kind} object")


def _replicas(call: Call, scale: Json, paths: Json) -> int:
    """The number that a Scale asks for."""
    spec = scale.get("spec")
    replicas = (spec.get("replicas") or 0) if type(spec) is dict else 0
    if type(replicas) is not int or not 0 <= replicas < 1 << 31:
        custom = call.resource.custom
        raise invalid(
            call.resource.group if custom else "autoscaling",
            call.resource.kind if custom else "Scale",
            call.route.name,
            [
                cause(
                    "FieldValueInvalid",
                    f"Invalid value: {replicas}: must be greater than or equal to 0",
                    paths["specReplicasPath"] if custom else "spec.replicas",
                )
            ],
        )
    return replicas


def _steps(path: str) -> list[str]:
    return [step for step in path.split(".") if step]


def _at(obj: Json, path: str) -> Any:
    found: Any = obj
    for step in _steps(path):
        found = found.get(step) if type(found) is dict else None
    return found


def _number(obj: Json, path: str) -> int:
    found = _at(obj, path)
    return found if type(found) is int else 0


def _put(obj: Json, path: str, value: int) -> None:
    steps = _steps(path)
    for step in steps[:-1]:
        inner = obj.get(step)
        if type(inner) is not dict:
            inner = obj[step] = {}
        obj = inner
    obj[steps[-1]] = value
