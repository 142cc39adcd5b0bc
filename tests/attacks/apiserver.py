"""The embedded API server over its own socket, attacked by a service account that has next to no rights, and by
strangers who can reach the port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from shoal.api.kinds import CRD, JOB, NAMESPACE, POD, ROLE, ROLE_BINDING, SECRET, SERVICE_ACCOUNT
from shoal.kube.admission_review import AdmissionVerdict
from shoal.kube.client import Client
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from shoal.local.apiserver.http import fairness
from tests.attacks.attack import Room, Succeeded
from tests.unit.apiserver.builders import pod, widget_definition

RBAC = "rbac.authorization.k8s.io"
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
PARTS = ("status", "ephemeralcontainers", "resize", "binding", "eviction")
EVERY = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]


class World:
    """A server with two namespaces: the hostile account's own, `red`, and `blue`, which is none of its business."""

    def __init__(self, server: Server, port: int, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.port = port
        self.base = f"https://127.0.0.1:{port}"
        self.session = session
        self.admin = Client(server.transport())
        self.token = ""
        self.tls: ssl.SSLContext = server.identity.client_context()

    async def ask(
        self, method: str, path: str, body: Any = None, content: str = "application/json", token: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """As the hostile account, unless another token is given."""
        headers = {"Content-Type": content}
        if token != "":
            headers["Authorization"] = f"Bearer {token or self.token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        url = URL(self.base + path, encoded=True)
        async with self.session.request(method, url, data=data, headers=headers) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else {}

    async def refused(self, *tries: tuple[Any, ...]) -> str:
        """Every one of these requests is refused; the codes that came."""
        codes: dict[int, int] = {}
        for one in tries:
            status, answer = await self.ask(*one)
            if status < 400 or status >= 500:
                raise Succeeded(f"{one[0]} {one[1]} was answered with {status}: {str(answer)[:200]}")
            codes[status] = codes.get(status, 0) + 1
        return "refused: " + ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))

    async def grant(self, name: str, *rules: tuple[list[str], str, list[str]]) -> None:
        written = [{"verbs": verbs, "apiGroups": [group], "resources": found} for verbs, group, found in rules]
        await self.admin.create(ROLE, {"metadata": {"name": name}, "rules": written}, "red")
        subject = {"kind": "ServiceAccount", "name": "mallory", "namespace": "red"}
        reference = {"apiGroup": RBAC, "kind": "Role", "name": name}
        await self.admin.create(
            ROLE_BINDING, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}, "red"
        )

    async def token_of(self, name: str, **spec: Any) -> str:
        path = f"/api/v1/namespaces/red/serviceaccounts/{name}/token"
        answer = await self.server.transport().send(
            Request(method="POST", path=path, body=msgspec.json.encode({"spec": spec}))
        )
        return str(msgspec.json.decode(answer.body)["status"]["token"])


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    server = Server(None)
    await server.start()
    port = await server.serve()
    connector = aiohttp.TCPConnector(ssl=server.identity.client_context(), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        found = World(server, port, session)
        for name in ("red", "blue"):
            await found.admin.create(NAMESPACE, {"metadata": {"name": name}})
        await found.admin.create(SERVICE_ACCOUNT, {"metadata": {"name": "mallory"}}, "red")
        await found.admin.create(POD, pod("victim"), "red")
        await found.admin.create(SECRET, {"metadata": {"name": "theirs"}, "stringData": {"a": "b"}}, "blue")
        text = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
        await found.admin.create(CRD, widget_definition(spec=text))
        found.token = await found.token_of("mallory")
        await found.grant(
            "namespaces", (EVERY, "", ["namespaces", "namespaces/status", "namespaces/finalize", "nodes"])
        )
        await found.grant("parts", (EVERY, "", [f"pods/{part}" for part in PARTS]), (EVERY, "batch", ["jobs/status"]))
        await found.grant("edits", (["get", "update", "patch"], "", ["configmaps", "endpoints"]))
        await found.grant("binds", (["create", "update", "patch"], RBAC, ["roles", "rolebindings"]))
        await found.grant("own", (["get", "create"], "", ["secrets"]), (["create"], "example.com", ["widgets"]))
        try:
            yield found
        finally:
            await server.stop()


ROOM = Room("the API server, as a service account of one namespace and as a stranger", world)


@ROOM.attack("a stranger", "reads, writes and forges without credentials, or with made-up ones")
async def strangers(world: World) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    claims = {"sub": "system:serviceaccount:kube-system:default", "iss": "x", "aud": ["x"], "exp": 9999999999, "nbf": 0}
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    body, _, signature = world.token.rpartition(".")
    forged = (f"{head}.{middle}.", f"{head}.{middle}.{signature}", f"{body}.{signature[::-1]}", "x", "", "a" * 5000)
    tries = [("GET", "/api/v1/namespaces/blue/secrets", None, "", token) for token in forged]
    tries += [
        ("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}}, "application/json", token) for token in forged
    ]
    return await world.refused(*tries)


@ROOM.attack("the account", "reads and changes what lies in another namespace, under every spelling of its path")
async def neighbours(world: World) -> str:
    paths = [
        "/api/v1/namespaces/blue/secrets", "/api/v1/namespaces/blue/secrets/theirs", "/api/v1/secrets",
        "/api/v1/namespaces/red%2f..%2fblue/secrets", "/api/v1/namespaces/red/../blue/secrets/theirs",
        "/api/v1/namespaces//secrets", "/api/v1/watch/namespaces/blue/secrets", "/api/v1/namespaces/red/secrets/..%2fx",
        "/api/v1//namespaces/blue/secrets", "/api/v1/namespaces/blue/secrets?watch=1", "/api/v1/namespaces/*/secrets",
    ]  # fmt: skip
    return await world.refused(*(("GET", path) for path in paths), ("DELETE", paths[0]), ("DELETE", paths[1]))


@ROOM.attack("the account", "reaches Namespace objects through its own namespace's path")
async def namespaces(world: World) -> str:
    below, label = "/api/v1/namespaces/red/namespaces", {"metadata": {"labels": {"by": "mallory"}}}
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blue"}}
    found = await world.refused(
        ("GET", below),
        ("GET", f"{below}/blue"),
        ("POST", below, {**named, "metadata": {"name": "green"}}),
        ("PATCH", f"{below}/blue", label, MERGE),
        ("PUT", f"{below}/blue/finalize", named),
        ("DELETE", f"{below}/blue"),
        ("DELETE", below),
        ("GET", "/api/v1/namespaces/red/nodes"),
        ("GET", "/api/v1/namespaces"),
        ("DELETE", "/api/v1/namespaces/blue"),
    )
    there = {one["metadata"]["name"]: one for one in await world.admin.list(NAMESPACE)}
    if "green" in there or "by" in there["blue"]["metadata"]["labels"]:
        raise Succeeded("a namespace was made or changed")
    return found


@ROOM.attack("the account", "creates, lists and deletes pods through their subresources")
async def subresources(world: World) -> str:
    pods = "/api/v1/namespaces/red/pods"
    hostile = {"apiVersion": "v1", "kind": "Pod", **pod("hostile", hostNetwork=True)}
    tries: list[tuple[Any, ...]] = []
    for part in PARTS:
        tries += [
            ("POST", f"{pods}/hostile/{part}", hostile),
            ("POST", f"{pods}//{part}", hostile),
            ("PUT", f"{pods}/hostile/{part}", hostile),
            ("PATCH", f"{pods}/hostile/{part}?fieldManager=m", hostile, APPLY),
            ("GET", f"{pods}//{part}"),
            ("DELETE", f"{pods}//{part}"),
            ("DELETE", f"{pods}/victim/{part}"),
        ]
    found = await world.refused(*tries)
    left = [one["metadata"]["name"] for one in await world.admin.list(POD, "red")]
    if left != ["victim"]:
        raise Succeeded(f"the pods are now {left}")
    return found


@ROOM.attack("the account", "changes a pod's image, node and labels through a subresource that is for something else")
async def through_a_part(world: World) -> str:
    container = {"name": "main", "image": "evil", "command": ["sh"]}
    change = {
        "metadata": {"labels": {"by": "mallory"}},
        "spec": {"containers": [container], "nodeName": "elsewhere", "hostNetwork": True},
    }
    before = await world.admin.get(POD, "victim", "red")
    for part in ("ephemeralcontainers", "resize"):
        await world.ask("PATCH", f"/api/v1/namespaces/red/pods/victim/{part}", change, MERGE)
    after = await world.admin.get(POD, "victim", "red")
    if (after["spec"], after["metadata"].get("labels")) != (before["spec"], before["metadata"].get("labels")):
        raise Succeeded("the pod changed")
    return "answered, and nothing changed"


@ROOM.attack("the account", "gets past those who judge pods and jobs by writing to a subresource")
async def past_judges(world: World) -> str:
    admission = world.server.admission
    admission.judges[("", "pods")] = lambda request: AdmissionVerdict(allowed=False, message="no")
    admission.judges[("batch", "jobs")] = lambda request: AdmissionVerdict(allowed=False, message="no")
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    jobs = "/apis/batch/v1/namespaces/red/jobs"
    try:
        found = await world.refused(
            ("POST", "/api/v1/namespaces/red/pods/hostile/status", {"kind": "Pod", **pod("hostile")}),
            ("POST", f"{jobs}/j/status", job),
            ("PUT", f"{jobs}/j/status", job),
            ("PATCH", f"{jobs}/j/status?fieldManager=m", job, APPLY),
        )
    finally:
        admission.judges.clear()
    if await world.admin.list(JOB, "red"):
        raise Succeeded("a job was stored")
    return found


@ROOM.attack("the account", "creates by PUT and by apply what it may only change")
async def creating(world: World) -> str:
    named = {"metadata": {"name": "new"}}
    maps = "/api/v1/namespaces/red/configmaps/new"
    body = {"apiVersion": "v1", "kind": "ConfigMap", **named}
    return await world.refused(
        ("PATCH", f"{maps}?fieldManager=m", body, APPLY),
        ("PATCH", f"{maps}?fieldManager=m&force=true", body, APPLY),
        ("PUT", maps, body),
        ("PUT", "/api/v1/namespaces/red/endpoints/new", {"apiVersion": "v1", "kind": "Endpoints", **named}),
    )


@ROOM.attack("the account", "grants itself more: roles, bindings to cluster-admin, to a role that is not there yet")
async def granting(world: World) -> str:
    base = f"/apis/{RBAC}/v1/namespaces/red"
    rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    me = {"kind": "ServiceAccount", "name": "mallory", "namespace": "red"}

    def binding(kind: str, name: str) -> dict[str, Any]:
        reference = {"apiGroup": RBAC, "kind": kind, "name": name}
        return {"metadata": {"name": "mine"}, "roleRef": reference, "subjects": [me]}

    return await world.refused(
        ("POST", f"{base}/roles", {"metadata": {"name": "mine"}, "rules": rules}),
        ("PATCH", f"{base}/roles/binds", {"rules": rules}, MERGE),
        ("POST", f"{base}/rolebindings", binding("ClusterRole", "cluster-admin")),
        ("POST", f"{base}/rolebindings", binding("Role", "not-there-yet")),
        ("POST", f"{base}/rolebindings", binding("ClusterRole", "not-there-yet")),
        (
            "PATCH",
            f"{base}/rolebindings/binds",
            {"subjects": [me, {**me, "name": "x"}], "roleRef": {"name": "y"}},
            MERGE,
        ),
        ("POST", f"/apis/{RBAC}/v1/clusterrolebindings", binding("ClusterRole", "cluster-admin")),
    )


@ROOM.attack("the account", "acts as the administrator, as another account, as a group")
async def impersonation(world: World) -> str:
    tried = 0
    for headers in (
        {"Impersonate-User": "system:admin"},
        {"Impersonate-User": "system:serviceaccount:red:default"},
        {"Impersonate-User": "mallory", "Impersonate-Group": "system:masters"},
        {"Impersonate-Group": "system:masters"},
        {"Impersonate-Uid": "x"},
    ):
        headers["Authorization"] = f"Bearer {world.token}"
        async with world.session.get(f"{world.base}/api/v1/namespaces/blue/secrets", headers=headers) as answer:
            if answer.status < 400:
                raise Succeeded(f"{headers} was answered with {answer.status}")
            tried += 1
    return f"refused: {tried} ways"


@ROOM.attack("the account", "uses a token for another audience, and one of an account that is gone")
async def old_tokens(world: World) -> str:
    other = await world.token_of("mallory", audiences=["elsewhere"])
    await world.admin.create(SERVICE_ACCOUNT, {"metadata": {"name": "gone"}}, "red")
    gone = await world.token_of("gone")
    await world.admin.delete(SERVICE_ACCOUNT, "gone", "red")
    await world.admin.create(SERVICE_ACCOUNT, {"metadata": {"name": "gone"}}, "red")  # of the same name
    return await world.refused(*(("GET", "/api", None, "", token) for token in (other, gone)))


async def _others(world: World, during: asyncio.Future[Any]) -> tuple[int, float]:
    """How many requests the administrator gets answered meanwhile, and the longest of them."""
    count, longest = 0, 0.0
    while not during.done():
        start = time.monotonic()
        await world.admin.get(NAMESPACE, "red")
        longest = max(longest, time.monotonic() - start)
        count += 1
        await asyncio.sleep(0.001)
    return count, longest


@ROOM.attack("the account", "stops everybody with a large YAML body")
async def yaml_bomb(world: World) -> str:
    body = b"a:\n" + b"  - {b: [1, 2, 3], c: d}\n" * 7_000
    sending = asyncio.ensure_future(world.ask("POST", "/api/v1/namespaces/red/secrets", body, "application/yaml"))
    count, longest = await _others(world, sending)
    if count < 5:
        raise Succeeded(f"only {count} requests of others were answered meanwhile")
    laughs = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
    )
    status, _ = await world.ask("POST", "/api/v1/namespaces/red/secrets", laughs, "application/yaml")
    if status != 400:
        raise Succeeded(f"aliases of aliases were answered with {status}")
    return f"others got {count} answers meanwhile, the slowest in {longest * 1000:.0f} ms"


@ROOM.attack("the account", "stops everybody with a text that a pattern cannot decide quickly")
async def slow_pattern(world: World) -> str:
    hostile = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"text": "a" * 5000 + "b"},
    }
    start = time.process_time()
    found = await world.refused(("POST", "/apis/example.com/v1/namespaces/red/widgets", hostile))
    used = time.process_time() - start
    if used > 2:
        raise Succeeded(f"it took {used:.1f} s")
    return f"{found}, in {used * 1000:.0f} ms"


@ROOM.attack("the account", "sends as fast as it can on many connections")
async def flood(world: World) -> str:
    seconds, url = 3.0, f"{world.base}/api/v1/namespaces/red"
    connections = fairness.MOST_REQUESTS + 32
    hammer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.attacks.hammer", url, world.token, str(connections), str(seconds),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    ended = asyncio.ensure_future(hammer.communicate())
    try:
        count, longest = await _others(world, ended)
        counts = {int(code): times for code, times in json.loads((await ended)[0]).items()}
    finally:
        if hammer.returncode is None:
            hammer.kill()
    if not set(counts) <= {200, 429} or count < 20:
        raise Succeeded(f"it got {counts}, others only {count} answers in {seconds} s")
    waited = counts.get(429, 0)
    told = f"it got {counts.get(200, 0)} answers and was told {waited} times to wait"
    return f"{told}; others got {count} meanwhile, the slowest in {longest * 1000:.0f} ms"


@ROOM.attack("a stranger", "keeps connections open: silent ones, half a header, half a body")
async def silence(world: World) -> str:
    opened = []
    head = b"POST /api/v1/namespaces/red/secrets HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for said in (b"", head, head + b"Content-Length: 2000000\r\n\r\nxx") * 20:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=world.tls)
        writer.write(said)
        opened.append((said, reader, writer))
    for said, reader, _ in opened:
        if said.endswith(b"xx"):
            first = await asyncio.wait_for(reader.readline(), 5)
            if b" 401 " not in first:
                raise Succeeded(f"a stranger's body was waited for: {first!r}")
    deadline = 30
    async with asyncio.timeout(deadline):
        for said, reader, writer in opened:
            if not said.endswith(b"xx"):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
    return "bodies refused unread, the rest closed in time"


@ROOM.attack("the account", "sends hundreds of bodies that never end")
async def half_bodies(world: World) -> str:
    head = f"POST /api/v1/namespaces/red/secrets HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {world.token}\r\n"
    said = head.encode() + b"Content-Length: 3000000\r\n\r\n" + b"x" * 2_000_000
    opened = []
    for _ in range(60):
        _, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=world.tls)
        writer.write(said)
        opened.append(writer)
    sending = asyncio.ensure_future(asyncio.sleep(1.0))
    count, longest = await _others(world, sending)
    held = world.server._fronts[0].fairness._clients["system:serviceaccount:red"].body_bytes
    for writer in opened:
        writer.transport.abort()
    if held > fairness.MOST_BODY_BYTES:
        raise Succeeded(f"{held} bytes were held")
    return f"room for {held >> 20} MiB of 180; others got {count} answers, the slowest in {longest * 1000:.0f} ms"


@ROOM.attack("the account", "asks for tokens and objects of the wrong types, hoping for a fault")
async def wrong_types(world: World) -> str:
    await world.grant("tokens", (["create"], "", ["serviceaccounts/token"]))
    path = "/api/v1/namespaces/red/serviceaccounts/mallory/token"
    odd = ([1], [None], [{}], "x", {}, 1)
    bodies = [{"spec": {"audiences": one}} for one in odd] + [{"spec": one} for one in ("x", [1], 1)]
    return await world.refused(*(("POST", path, body) for body in bodies))
