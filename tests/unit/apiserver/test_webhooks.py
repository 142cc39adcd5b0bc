"""Admission and conversion webhooks over HTTPS: what they may change and refuse, and what happens when they fail."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, CRD, ENDPOINTS, MUTATING_WEBHOOK, NAMESPACE, POD, SERVICE, VALIDATING_WEBHOOK
from shoal.api.meta import Json
from shoal.kube.certificates import make_authority, make_leaf
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, Conflict, Forbidden, Invalid, ServerError
from tests.unit.apiserver.builders import WIDGET, config_map, pod, widget, widget_definition

Answer = Callable[[Json], Json]


class Hook:
    """A webhook that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.called = asyncio.Event()
        self.answer: Answer = lambda request: {"allowed": True}
        self.delay = 0.0
        self.url = ""
        self.port = 0
        self.bundle = ""

    async def serve(self, request: web.BaseRequest) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        self.called.set()
        if self.delay:
            await asyncio.sleep(self.delay)
        response = {"uid": review["request"]["uid"], **self.answer(review["request"])}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    def configuration(
        self, name: str = "h", *, resources: tuple[str, ...] = ("configmaps",), group: str = "", **more: Any
    ) -> Json:
        return {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": f"{name}.example.com",
                    "clientConfig": {"url": self.url, "caBundle": self.bundle},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "rules": [
                        {"operations": ["*"], "apiGroups": [group], "apiVersions": ["*"], "resources": list(resources)}
                    ],
                    **more,
                }
            ],
        }


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    ca = make_authority()
    pair = make_leaf(ca, "hook", hosts=["localhost", "hook.default.svc"])
    (tmp_path / "crt").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    one = Hook()
    runner = web.ServerRunner(web.Server(one.serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    one.port = runner.addresses[0][1]
    one.url, one.bundle = f"https://localhost:{one.port}/", base64.b64encode(ca.certificate).decode()
    yield one
    await runner.cleanup()


def patching(*operations: Json) -> Answer:
    patch = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


async def test_mutating_webhooks_change_objects_one_after_another(client: Client, hook: Hook) -> None:
    hook.answer = patching({"op": "add", "path": "/data", "value": {"added": "yes"}})
    await client.create(MUTATING_WEBHOOK, hook.configuration())
    made = await client.create(CONFIG_MAP, config_map("a"), "default")
    assert made["data"] == {"added": "yes"}
    asked = hook.asked[0]
    assert (
        asked["operation"] == "CREATE"
        and asked["namespace"] == "default"
        and asked["userInfo"]["username"] == "system:admin"
    )
    assert (
        asked["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        and asked["object"]["kind"] == "ConfigMap"
    )


async def test_a_webhook_is_asked_again_when_a_later_one_changed_what_it_saw(client: Client, hook: Hook) -> None:
    def answer(request: Json) -> Json:
        seen = request["object"].get("data") or {}
        if "late" in seen:  # only the first one's second turn sees this
            return patching({"op": "add", "path": "/data/noticed", "value": "yes"})(request)
        late = len(hook.asked) == 2
        operation = (
            {"op": "add", "path": "/data/late", "value": "yes"}
            if late
            else {"op": "test", "path": "/kind", "value": "ConfigMap"}
        )
        return patching(operation)(request)

    hook.answer = answer
    await client.create(MUTATING_WEBHOOK, hook.configuration("a", reinvocationPolicy="IfNeeded"))
    await client.create(MUTATING_WEBHOOK, hook.configuration("b"))
    made = await client.create(CONFIG_MAP, {**config_map("c"), "data": {"x": "1"}}, "default")
    assert len(hook.asked) == 3 and made["data"] == {"x": "1", "late": "yes", "noticed": "yes"}
    hook.asked.clear()
    dry = await client.create(CONFIG_MAP, {**config_map("d"), "data": {"late": "1"}}, "default", dry_run=True)
    assert dry["data"]["noticed"] == "yes" and all(one["dryRun"] for one in hook.asked)
    assert len(hook.asked) == 2, "what changes nothing asks no webhook again"


async def test_validating_webhooks_refuse_with_their_own_words(client: Client, hook: Hook) -> None:
    hook.answer = lambda request: {
        "allowed": False,
        "status": {"message": "not on a Sunday", "code": 403},
        "warnings": ["mind"],
    }
    await client.create(VALIDATING_WEBHOOK, hook.configuration())
    with pytest.raises(Forbidden, match=r'admission webhook "h.example.com" denied the request: not on a Sunday'):
        await client.create(CONFIG_MAP, config_map("a"), "default")
    hook.answer = lambda request: {"allowed": request["operation"] != "DELETE"}
    await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "1"}})
    assert not hook.asked[-1]["oldObject"].get("data") and hook.asked[-1]["object"]["data"] == {"x": "1"}
    with pytest.raises(Forbidden, match="denied the request without explanation"):
        await client.delete(CONFIG_MAP, "a", "default")


async def test_what_a_webhook_makes_is_validated_too(client: Client, hook: Hook) -> None:
    hook.answer = patching({"op": "replace", "path": "/metadata/name", "value": "other"})
    await client.create(MUTATING_WEBHOOK, hook.configuration())
    with pytest.raises(Exception, match=r"changed metadata\.name, which it may not"):
        await client.create(CONFIG_MAP, config_map("a"), "default")


async def test_what_a_webhook_makes_gets_its_defaults_and_loses_what_is_not_known(client: Client, hook: Hook) -> None:
    hook.answer = patching({"op": "add", "path": "/spec/initContainers", "value": [{"name": "first", "image": "i"}]})
    await client.create(MUTATING_WEBHOOK, hook.configuration("p", resources=("pods",)))
    [first] = (await client.create(POD, pod("a"), "default"))["spec"]["initContainers"]
    assert first["imagePullPolicy"] == "Always" and first["terminationMessagePath"] == "/dev/termination-log"
    await client.delete(MUTATING_WEBHOOK, "p")
    known = {"type": "object", "properties": {"size": {"type": "integer"}}}
    await client.create(CRD, widget_definition(spec=known))
    hook.answer = patching({"op": "add", "path": "/spec/unknown", "value": "x"})
    await client.create(MUTATING_WEBHOOK, hook.configuration("w", resources=("widgets",), group="*"))
    assert "unknown" not in (await client.create(WIDGET, widget("a"), "default"))["spec"]


async def test_failure_policy_decides_when_a_webhook_cannot_be_reached(client: Client, hook: Hook) -> None:
    gone = hook.configuration("gone", failurePolicy="Ignore")
    gone["webhooks"][0]["clientConfig"]["url"] = "https://127.0.0.1:1/"
    await client.create(VALIDATING_WEBHOOK, gone)
    await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.patch(
        VALIDATING_WEBHOOK,
        "gone",
        None,
        [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}],
        patch_type="json",
    )
    with pytest.raises(ServerError, match=r'failed calling webhook "gone.example.com"'):
        await client.create(CONFIG_MAP, config_map("b"), "default")
    await client.delete(VALIDATING_WEBHOOK, "gone")  # webhooks are never asked about webhooks
    await client.create(CONFIG_MAP, config_map("b"), "default")


async def test_a_slow_webhook_delays_its_own_request_only(client: Client, hook: Hook) -> None:
    hook.delay = 30.0
    await client.create(VALIDATING_WEBHOOK, hook.configuration(timeoutSeconds=1))
    slow = asyncio.ensure_future(client.create(CONFIG_MAP, config_map("a"), "default"))
    await client.create(NAMESPACE, {"metadata": {"name": "quick"}})
    assert not slow.done()
    with pytest.raises(ServerError, match="context deadline exceeded"):
        await slow


async def test_a_stranger_with_another_certificate_is_not_believed(client: Client, hook: Hook) -> None:
    configuration = hook.configuration()
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(make_authority().certificate).decode()
    await client.create(VALIDATING_WEBHOOK, configuration)
    with pytest.raises(ServerError, match="failed calling webhook"):
        await client.create(CONFIG_MAP, config_map("a"), "default")
    assert hook.asked == []


async def test_selectors_and_rules_narrow_what_is_asked(client: Client, hook: Hook) -> None:
    await client.create(NAMESPACE, {"metadata": {"name": "watched", "labels": {"watch": "yes"}}})
    await client.create(
        VALIDATING_WEBHOOK,
        hook.configuration(
            namespaceSelector={"matchLabels": {"watch": "yes"}},
            objectSelector={"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
        ),
    )
    await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.create(CONFIG_MAP, {"metadata": {"name": "b", "labels": {"skip": "1"}}}, "watched")
    assert hook.asked == []
    await client.create(CONFIG_MAP, config_map("c"), "watched")
    assert [one["name"] for one in hook.asked] == ["c"]


async def test_match_conditions_narrow_further(client: Client, hook: Hook) -> None:
    expression = "!object.metadata.name.startsWith('skip-') && request.userInfo.username == 'system:admin'"
    conditions = [{"name": "not-skipped", "expression": expression}]
    await client.create(VALIDATING_WEBHOOK, hook.configuration(matchConditions=conditions))
    await client.create(CONFIG_MAP, config_map("skip-a"), "default")
    assert hook.asked == []
    await client.create(CONFIG_MAP, config_map("b"), "default")
    assert len(hook.asked) == 1
    conditions[0]["expression"] = "object.nothing.there == 1"
    await client.create(VALIDATING_WEBHOOK, hook.configuration("broken", matchConditions=conditions))
    with pytest.raises(ServerError, match="match condition 'not-skipped' cannot be evaluated"):
        await client.create(CONFIG_MAP, config_map("c"), "default")


async def test_conditions_that_cannot_be_read_are_refused_at_once(client: Client, hook: Hook) -> None:
    for expression, words in (("... [] bad", "compilation failed"), ("1 + 1", "must evaluate to bool")):
        conditions = [{"name": "bad", "expression": expression}]
        with pytest.raises(Invalid, match=words) as caught:
            await client.create(VALIDATING_WEBHOOK, hook.configuration(matchConditions=conditions))
        assert caught.value.causes[0]["field"] == "webhooks[0].matchConditions[0].expression"


async def test_a_connection_to_a_pod_can_be_refused(client: Client, hook: Hook) -> None:
    hook.answer = lambda request: {"allowed": False, "status": {"message": f"no {request['kind']['kind']}"}}
    rules = [{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods/attach"]}]
    await client.create(VALIDATING_WEBHOOK, hook.configuration(rules=rules))
    await client.create(POD, pod("a"), "default")
    with pytest.raises(ApiError, match="no PodAttachOptions"):
        await client.request("GET", f"{POD.path('default')}/a/attach", query={"stdin": "true"})
    assert hook.asked[0]["object"]["stdin"] is True and hook.asked[0]["subResource"] == "attach"


async def test_services_are_reached_through_their_endpoints(client: Client, hook: Hook) -> None:
    await client.create(
        SERVICE, {"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443, "targetPort": hook.port}]}}, "default"
    )
    await client.create(
        ENDPOINTS,
        {
            "metadata": {"name": "hook"},
            "subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": hook.port}]}],
        },
        "default",
    )
    configuration = hook.configuration()
    configuration["webhooks"][0]["clientConfig"] = {
        "service": {"name": "hook", "namespace": "default"},
        "caBundle": hook.bundle,
    }
    await client.create(VALIDATING_WEBHOOK, configuration)
    await client.create(CONFIG_MAP, config_map("a"), "default")
    assert len(hook.asked) == 1


async def test_an_object_that_changed_while_a_webhook_thought_is_not_overwritten(client: Client, hook: Hook) -> None:
    made = await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    await client.create(VALIDATING_WEBHOOK, hook.configuration(objectSelector={"matchLabels": {"slow": "1"}}))
    hook.delay = 0.3
    slow = asyncio.ensure_future(
        client.update(
            CONFIG_MAP,
            {**made, "metadata": {**made["metadata"], "labels": {"slow": "1"}}, "data": {"x": "slow"}},
            "a",
            "default",
        )
    )
    await hook.called.wait()
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "quick"}})
    with pytest.raises(Conflict):
        await slow
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"x": "quick"}


async def test_conversion_webhooks_translate_between_versions(client: Client, hook: Hook) -> None:
    definition = widget_definition()
    first = definition["spec"]["versions"][0]
    sized = {"type": "object", "properties": {"length": {"type": "integer"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": sized}}}
    second = {"schema": schema, "selectableFields": [{"jsonPath": ".spec.length"}], "name": "v2", "storage": False}
    definition["spec"]["versions"] = [first, {**first, **second}]
    definition["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": hook.url, "caBundle": hook.bundle}},
    }
    await client.create(CRD, definition)

    def convert(request: Json) -> Json:
        objects = []
        for obj in request["objects"]:
            spec = dict(obj["spec"])
            old, new = ("size", "length") if request["desiredAPIVersion"].endswith("v2") else ("length", "size")
            if old in spec:
                spec[new] = spec.pop(old)
            objects.append({**obj, "apiVersion": request["desiredAPIVersion"], "spec": spec})
        return {"result": {"status": "Success"}, "convertedObjects": objects}

    hook.answer = convert
    newer = Kind("example.com", "v2", "Widget", "widgets")
    await client.create(newer, {**widget("w", length=5), "apiVersion": "example.com/v2"}, "default")
    assert (await client.get(WIDGET, "w", "default"))["spec"] == {"size": 5}
    await client.patch(WIDGET, "w", "default", {"spec": {"size": 6}})
    assert (await client.get(newer, "w", "default"))["spec"] == {"length": 6}
    for wanted, count in ((6, 1), (5, 0)):  # by the fields of the version that is asked for, not of the stored one
        assert len(await client.list(newer, "default", field_selector=f"spec.length={wanted}")) == count
    hook.answer = lambda request: {"result": {"status": "Failure", "message": "too hard"}}
    with pytest.raises(ServerError, match=r"conversion webhook for example.com/v1, Kind=Widget failed: too hard"):
        await client.get(newer, "w", "default")
    with pytest.raises(ServerError, match="too hard"):  # told within the watch, which ends
        await anext(aiter(client.watch(newer, "default")))
    assert (await client.get(WIDGET, "w", "default"))["spec"] == {"size": 6}
