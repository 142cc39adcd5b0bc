"""kubectl works unchanged: what people type, and what they see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from aiohttp.web import BaseRequest, StreamResponse

from shoal.api.kinds import POD
from shoal.api.meta import Json
from shoal.local.apiserver.http import spdy_upgrade
from shoal.local.apiserver.requests.call import Upgrade
from shoal.local.apiserver.streams.terminals import ExecOptions
from tests.integration.apiserver.conftest import Embedded
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("kubectl_present")

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: none, ports: [{containerPort: 80}]}]}
"""

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, shortNames: [bt], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Crew, type: integer, jsonPath: .spec.crew}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the boat should be.
            properties:
              crew: {type: integer, minimum: 1, description: How many people sail her.}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


def boat(name: str, crew: int) -> str:
    return f"apiVersion: example.com/v1\nkind: Boat\nmetadata: {{name: {name}}}\nspec: {{crew: {crew}}}\n"


async def test_create_and_get_in_all_forms(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    assert "created" in await kubectl("create", "namespace", "team")
    await kubectl("create", "configmap", "settings", "--from-literal=a=1", "--from-literal=b=2")
    await kubectl("create", "secret", "generic", "key", "--from-literal=a=1")
    await kubectl("create", "quota", "limits", "--hard=pods=10,requests.cpu=4", "-n", "team")
    await kubectl("create", "job", "once", "--image=none", "--", "true")
    await kubectl("create", "serviceaccount", "robot")
    await kubectl("create", "deployment", "web", "--image=none", "--replicas=3")
    await kubectl("run", "alone", "--image=none", "--restart=Never")
    assert "settings" in await kubectl("get", "configmaps", "-o", "wide")
    assert await kubectl("get", "configmap", "settings", "-o", "jsonpath={.data.a}") == "1"
    assert "name: settings" in await kubectl("get", "configmap", "settings", "-o", "yaml")
    assert json.loads(await kubectl("get", "configmap", "settings", "-o", "json"))["data"] == {"a": "1", "b": "2"}
    assert (await kubectl("get", "pods", "-o", "custom-columns=N:.metadata.name,P:.status.phase")).split() == [
        "N",
        "P",
        "alone",
        "Pending",
    ]
    assert (await kubectl("get", "pods", "-o", "name")).strip() == "pod/alone"
    header, row = (await kubectl("get", "pods")).splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"] and row.split()[:4] == [
        "alone",
        "0/1",
        "Pending",
        "0",
    ]
    assert "0/3" in await kubectl("get", "deploy")
    everything = await kubectl("get", "all")
    assert "pod/alone" in everything and "deployment.apps/web" in everything and "job.batch/once" in everything
    assert "not found" in await kubectl("get", "pod", "nobody", check=False)


async def test_apply_on_either_side(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    assert "created" in await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert "unchanged" in await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    more = DEPLOYMENT.replace("replicas: 2", "replicas: 5")
    assert "replicas" in await kubectl("diff", "-f", "-", input=more, check=False)
    assert "configured" in await kubectl("apply", "-f", "-", input=more)
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "5"
    served = await kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", input=DEPLOYMENT, check=False)
    assert "conflict" in served and ".spec.replicas" in served
    assert "serverside-applied" in await kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f", "-", input=DEPLOYMENT
    )
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "2"
    refused = await kubectl("apply", "-f", "-", input=DEPLOYMENT.replace("replicas: 2", "replicass: 2"), check=False)
    assert 'unknown field "spec.replicass"' in refused


async def test_patch_label_annotate_scale_edit(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    await kubectl(
        "patch", "deploy", "web", "-p", '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"two"}]}}}}'
    )
    await kubectl("patch", "deploy", "web", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    await kubectl(
        "patch", "deploy", "web", "--type=json", "-p", '[{"op":"replace","path":"/spec/minReadySeconds","value":4}]'
    )
    spec = json.loads(await kubectl("get", "deploy", "web", "-o", "json"))["spec"]
    assert spec["replicas"] == 3 and spec["minReadySeconds"] == 4
    assert (
        spec["template"]["spec"]["containers"][0]["image"] == "two" and len(spec["template"]["spec"]["containers"]) == 1
    )
    await kubectl("label", "deploy", "web", "tier=front")
    assert "web" in await kubectl("get", "deploy", "-l", "tier in (front),app")
    await kubectl("label", "deploy", "web", "tier-")
    await kubectl("annotate", "deploy", "web", "note=hello")
    assert "scaled" in await kubectl("scale", "deploy", "web", "--replicas=7", "--current-replicas=3")
    await embedded.run(
        "env", "KUBE_EDITOR=sed -i s/minReadySeconds:.4/minReadySeconds:\\ 9/", "kubectl", "edit", "deploy", "web"
    )
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.minReadySeconds}") == "9"
    await kubectl("set", "image", "deploy/web", "main=three")
    assert "three" in await kubectl("get", "deploy", "-o", "wide")


async def test_describe_and_events(embedded: Embedded) -> None:
    await embedded.kubectl("run", "p", "--image=none")
    told = await embedded.kubectl("describe", "pod", "p")
    assert "Status:           Pending" in told and "Service Account:  default" in told
    assert "Name:         default" in await embedded.kubectl("describe", "namespace", "default")
    await embedded.kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert "2 desired" in await embedded.kubectl("describe", "deploy", "web")


async def test_delete_waits_for_the_end(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("create", "configmap", "a")
    assert "deleted" in await kubectl("delete", "configmap", "a", "--wait")
    await kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert "deleted" in await kubectl("delete", "deploy", "web", "--cascade=orphan", "--wait=false")
    await kubectl("run", "held", "--image=none", "--overrides", '{"metadata":{"finalizers":["example.com/hold"]}}')
    deleting = asyncio.ensure_future(kubectl("delete", "pod", "held", "--wait"))
    async for event in embedded.client.watch(POD, "default", send_initial_events=True):
        if b"deletionTimestamp" in bytes(event.object):
            break
    assert not deleting.done()
    await kubectl("patch", "pod", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert "deleted" in await deleting
    await kubectl("create", "configmap", "b", "--dry-run=server")
    assert "No resources found" in await kubectl("get", "configmaps")


async def test_watch_prints_as_things_change(embedded: Embedded) -> None:
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        "--kubeconfig",
        str(embedded.kubeconfig),
        "get",
        "configmaps",
        "-w",
        "--output-watch-events",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await embedded.kubectl("create", "configmap", "seen", "--from-literal=a=b")
        header, added = [(await asyncio.wait_for(process.stdout.readline(), PATIENCE)).split() for _ in range(2)]
        assert header[:2] == [b"EVENT", b"NAME"] and added[:2] == [b"ADDED", b"seen"]
        await embedded.kubectl("delete", "configmap", "seen")
        deleted = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).split()
        assert deleted[:2] == [b"DELETED", b"seen"]
    finally:
        process.kill()
        await process.wait()


async def test_wait_for_conditions(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("run", "p", "--image=none")
    waiting = asyncio.ensure_future(kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s"))
    phase = asyncio.ensure_future(kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/p", "--timeout=60s"))
    await embedded.client.patch(
        POD,
        "p",
        "default",
        {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
        subresource="status",
    )
    assert "condition met" in await waiting and "condition met" in await phase
    gone = asyncio.ensure_future(kubectl("wait", "--for=delete", "pod/p", "--timeout=60s"))
    await embedded.client.delete(POD, "p", "default", grace_seconds=0)
    await gone


async def test_rollout_status_reads_ours(embedded: Embedded) -> None:
    await embedded.kubectl("apply", "-f", "-", input=DEPLOYMENT)
    waiting = asyncio.ensure_future(embedded.kubectl("rollout", "status", "deploy/web", "--timeout=60s"))
    await embedded.kubectl(
        "patch",
        "deploy",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps(
            {
                "status": {
                    "observedGeneration": 1,
                    "replicas": 2,
                    "updatedReplicas": 2,
                    "availableReplicas": 2,
                    "readyReplicas": 2,
                }
            }
        ),
    )
    assert "successfully rolled out" in await waiting


async def test_custom_kinds_are_explained_and_printed(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("apply", "-f", "-", input=DEFINITION)
    await kubectl("wait", "--for=condition=Established", "crd/boats.example.com", "--timeout=60s")
    await kubectl("apply", "-f", "-", input=boat("ann", 3))
    header, row = (await kubectl("get", "bt")).splitlines()
    assert header.split() == ["NAME", "CREW"] and row.split() == ["ann", "3"]
    explained = await kubectl("explain", "boat.spec")
    assert "How many people sail her." in explained and "<integer>" in explained
    refused = await kubectl("apply", "-f", "-", input=boat("bob", 0), check=False)
    assert 'The Boat "bob" is invalid: spec.crew' in refused
    assert "boat.example.com/ann" in await kubectl("get", "all")
    assert "deleted" in await kubectl("delete", "crd", "boats.example.com")


async def test_explain_and_api_resources(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    pods = await kubectl("explain", "pod.spec.containers")
    assert "image" in pods and "<string>" in pods and "imagePullPolicy" in pods
    assert "FIELD: replicas <integer>" in await kubectl("explain", "deployment.spec.replicas")
    resources = await kubectl("api-resources", "-o", "wide")
    for words in ("pods", "deployments", "customresourcedefinitions", "poddisruptionbudgets", "leases"):
        assert words in resources
    assert "batch/v1" in await kubectl("api-versions")
    assert "v1.36" in await kubectl("version")


async def test_access_questions(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    assert (await kubectl("auth", "can-i", "create", "pods")).strip() == "yes"
    assert "no" in await kubectl("auth", "can-i", "create", "pods", "--as=ann", check=False)
    await kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    await kubectl("create", "rolebinding", "ann", "--role=reader", "--user=ann")
    assert (await kubectl("auth", "can-i", "list", "pods", "--as=ann")).strip() == "yes"
    assert "pods" in await kubectl("auth", "can-i", "--list", "--as=ann")
    assert "system:admin" in await kubectl("auth", "whoami")
    assert "forbidden" in await kubectl("get", "secrets", "--as=ann", check=False)
    token = await kubectl("create", "token", "robot", check=False)
    assert 'serviceaccounts "robot" not found' in token


async def test_logs_come_from_the_agent_that_runs_the_pods(embedded: Embedded) -> None:
    async def source(pod, options):  # type: ignore[no-untyped-def]
        async def lines():  # type: ignore[no-untyped-def]
            yield f"{pod['metadata']['name']}/{options.container} tail={options.tail_lines}\n".encode()

        return lines()

    embedded.server.set_log_source(source)
    await embedded.kubectl("run", "p", "--image=none", "--overrides", '{"spec":{"nodeName":"n1"}}')
    assert await embedded.kubectl("logs", "p", "--tail=5") == "p/p tail=5\n"
    assert "is not valid for pod p" in await embedded.kubectl("logs", "p", "-c", "other", check=False)


class Running:
    """A program of this machine, as a node agent would run it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def resize(self, width: int, height: int) -> None:
        return None

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        for channel, stream in ((1, self.process.stdout), (2, self.process.stderr)):
            assert stream is not None
            while chunk := await stream.read(4096):
                yield channel, chunk

    async def wait(self) -> int:
        return await self.process.wait()

    async def kill(self) -> None:
        self.process.kill()


@pytest.fixture(params=["websockets", "spdy"])
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How kubectl carries streams: as it does by itself, and as client-go's SPDY executor and older ones do."""
    if request.param == "spdy":
        monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
    served, seen = spdy_upgrade.serve, list[str]()

    async def serve(http: BaseRequest, answer: Upgrade) -> StreamResponse:
        seen.append(http.path)
        return await served(http, answer)

    monkeypatch.setattr(spdy_upgrade, "serve", serve)
    yield str(request.param)
    assert bool(seen) == (request.param == "spdy")


async def test_exec_runs_a_program_and_tells_its_exit_code(embedded: Embedded, streams: str) -> None:
    async def start(pod: Json, options: ExecOptions) -> Running:
        pipe = asyncio.subprocess.PIPE
        return Running(await asyncio.create_subprocess_exec(*options.command, stdin=pipe, stdout=pipe, stderr=pipe))

    await embedded.kubectl("run", "p", "--image=none", "--overrides", '{"spec":{"nodeName":"n1"}}')
    assert "no node agent" in await embedded.kubectl("exec", "p", "--", "true", check=False)
    embedded.server.set_exec(start)
    assert await embedded.kubectl("exec", "p", "--", "sh", "-c", "echo one; echo 'two\nlines'") == "one\ntwo\nlines\n"
    assert "exit code 7" in await embedded.kubectl("exec", "p", "--", "sh", "-c", "exit 7", check=False)
    assert await embedded.kubectl("exec", "-i", "p", "--", "wc", "-c", input="12345") == "5\n"
    assert "forbidden" in await embedded.kubectl("exec", "p", "--as=ann", "--", "true", check=False)


async def test_attach_shows_what_runs_and_gives_it_input(embedded: Embedded, streams: str) -> None:
    async def start(pod: Json, options: ExecOptions) -> Running:
        pipe = asyncio.subprocess.PIPE
        return Running(await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe, stderr=pipe))

    spec = {"nodeName": "n1", "containers": [{"name": "p", "image": "none", "stdin": True}]}
    await embedded.kubectl("run", "p", "--image=none", "--overrides", msgspec.json.encode({"spec": spec}).decode())
    running = {"name": "p", "ready": True, "restartCount": 0, "image": "none", "imageID": "", "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [running]}
    await embedded.client.patch(POD, "p", "default", {"status": status}, subresource="status")
    embedded.server.set_attach(start)
    assert "said\n" in await embedded.kubectl("attach", "-i", "p", input="said\n")


async def test_port_forward_reaches_a_port_of_the_pod(embedded: Embedded, streams: str) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100000)).upper())
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    await embedded.kubectl("run", "p", "--image=none", "--overrides", '{"spec":{"nodeName":"n1"}}')
    await embedded.client.patch(
        POD, "p", "default", {"status": {"phase": "Running", "podIP": "127.0.0.1"}}, subresource="status"
    )
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        "--kubeconfig",
        str(embedded.kubeconfig),
        "port-forward",
        "pod/p",
        f":{port}",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()  # Forwarding from 127.0.0.1:N
        local = int(line.split("127.0.0.1:")[1].split()[0])
        for word in (b"hello", b"again" * 1000):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(word)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), PATIENCE) == word.upper()[:100000]
            writer.close()
    finally:
        process.kill()
        await process.wait()
        listening.close()
