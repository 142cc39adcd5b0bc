"""How a gang gets to the server: its queue is looked up first, its code stored, then the job is created.

Code travels as Secrets beside the job, in parts that an API server takes, and is mounted into the pod that submits to
Ray; Ray hands it to the workers. The Secrets belong to the job and go with it. They are stored before the job, so that
its pods never wait for them; a client that dies in between leaves them with a label that names the job.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import difflib
import json

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_QUEUE, LAST_APPLIED, RAY_SUBMITTER
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import AlreadyExists, ApiError, Forbidden, KubeError, NotFound
from shoal.sdk import gangs

CODE_OF = "shoal.dev/code-of"
"""Label of a Secret that holds a part of a job's working directory."""
CODE_VOLUME, PARTS_VOLUME = "shoal-code", "shoal-code-parts"
CODE_PATH, PARTS_PATH = "/shoal/code", "/shoal/parts"
ARCHIVE = "code.zip"
PART_BYTES = 700_000
"""Base64 makes a third more of it, and a Secret may have 1 MiB."""
SUBMITTER_RESOURCES: Json = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"}}
"""As KubeRay has them for a submitter of which nothing is said."""


async def check_queue(client: Client, namespace: str, queue: str) -> None:
    """Raises BadInput for a LocalQueue that is not there, with those that are. Unknown where it may not be read."""
    try:
        await client.get(kinds.LOCAL_QUEUE, queue, namespace)
        return
    except NotFound:
        pass
    except Forbidden:
        return
    try:
        known = sorted(one["metadata"]["name"] for one in await client.list(kinds.LOCAL_QUEUE, namespace))
    except (NotFound, Forbidden):
        known = []
    raise BadInput(f"there is no LocalQueue {queue} in namespace {namespace}{_instead(queue, known)}")


def _instead(wanted: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wanted, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(known[:10])}" if known else "; none is there"


async def create(client: Client, kind: Kind, manifest: Json, namespace: str, *, dry_run: bool = False) -> Json:
    """Create one object as the user wrote it; that is kept with it, so that it can be run again."""
    whole = copy.deepcopy(manifest)
    metadata = whole.setdefault("metadata", {})
    if kind.namespaced:
        metadata.setdefault("namespace", namespace)
    queue = (metadata.get("labels") or {}).get(KUEUE_QUEUE)
    if queue and is_gang(kind):
        await check_queue(client, metadata["namespace"], str(queue))
    if is_gang(kind):
        annotations = {**(metadata.get("annotations") or {})}
        annotations.pop(LAST_APPLIED, None)
        written = json.dumps(whole, separators=(",", ":")) + "\n"
        metadata["annotations"] = {**annotations, LAST_APPLIED: written}
    where = metadata.get("namespace") if kind.namespaced else None
    made: Json = await client.create(kind, whole, where, dry_run=dry_run)
    return made


def is_gang(kind: Kind) -> bool:
    return any((kind.group, kind.kind) == (one.group, one.kind) for one in (*gangs.KINDS, *gangs.QUEUED))


async def create_with_code(client: Client, job: Json, archive: bytes) -> Json:
    """A RayJob and its packed working directory."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    queue = (job["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    if queue:
        await check_queue(client, namespace, queue)
    parts = secrets_of(name, archive)
    stored = await _store(client, namespace, name, parts)
    try:
        made = await create(
            client, kinds.RAY_JOB, with_code(job, [one["metadata"]["name"] for one in parts]), namespace
        )
    except ApiError:
        await _remove(client, namespace, stored)
        raise
    await _belong(client, made, stored)
    return made


def secrets_of(name: str, archive: bytes) -> list[Json]:
    pieces = [archive[start : start + PART_BYTES] for start in range(0, len(archive), PART_BYTES)]
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{name}-code-{number}", "labels": {CODE_OF: name}},
            "immutable": True,
            "data": {_key(number, len(pieces)): base64.b64encode(piece).decode()},
        }
        for number, piece in enumerate(pieces)
    ]


def _key(number: int, count: int) -> str:
    return ARCHIVE if count == 1 else f"part-{number:03}"


def with_code(job: Json, secrets: list[str]) -> Json:
    """The RayJob with its submitter's pod written out: the code is mounted there, in one piece."""
    job = copy.deepcopy(job)
    spec = job["spec"]
    image = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    submitter: Json = {
        "name": RAY_SUBMITTER,
        "image": image,
        "resources": copy.deepcopy(SUBMITTER_RESOURCES),
        "volumeMounts": [{"name": CODE_VOLUME, "mountPath": CODE_PATH, "readOnly": True}],
    }
    pod: Json = {"restartPolicy": "Never", "containers": [submitter]}
    if len(secrets) == 1:
        pod["volumes"] = [{"name": CODE_VOLUME, "secret": {"secretName": secrets[0]}}]
    else:
        pod["volumes"] = [
            {"name": CODE_VOLUME, "emptyDir": {}},
            {"name": PARTS_VOLUME, "projected": {"sources": [{"secret": {"name": one}} for one in secrets]}},
        ]
        pod["initContainers"] = [
            {
                "name": "join-code",
                "image": image,
                "command": ["/bin/bash", "-c", f"cat {PARTS_PATH}/part-* > {CODE_PATH}/{ARCHIVE}"],
                "resources": copy.deepcopy(SUBMITTER_RESOURCES),
                "volumeMounts": [
                    {"name": CODE_VOLUME, "mountPath": CODE_PATH},
                    {"name": PARTS_VOLUME, "mountPath": PARTS_PATH, "readOnly": True},
                ],
            }
        ]
    spec["submitterPodTemplate"] = {"spec": pod}
    environment = json.loads(spec.get("runtimeEnvYAML") or "{}")
    spec["runtimeEnvYAML"] = json.dumps({**environment, "working_dir": f"{CODE_PATH}/{ARCHIVE}"}, sort_keys=True)
    return job


async def _store(client: Client, namespace: str, name: str, parts: list[Json]) -> list[Json]:
    stored: list[Json] = []
    try:
        for one in parts:
            stored.append(await client.create(kinds.SECRET, one, namespace))
    except KubeError as error:
        await _remove(client, namespace, stored)
        if isinstance(error, Forbidden):
            raise ShoalError(
                f"{error}; the working directory is stored as Secrets: ask for that right, or build it into the image"
            ) from error
        if isinstance(error, AlreadyExists):
            raise ShoalError(f"code of a job {name} is there already; choose another --job-name") from error
        raise
    return stored


async def _remove(client: Client, namespace: str, stored: list[Json]) -> None:
    for one in stored:
        with contextlib.suppress(KubeError):
            await client.delete(kinds.SECRET, one["metadata"]["name"], namespace, uid=one["metadata"]["uid"])


async def _belong(client: Client, job: Json, stored: list[Json]) -> None:
    """The code goes with its job. Where the right to change Secrets is missing it stays, with its label."""
    metadata = job["metadata"]
    reference = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": metadata["name"], "uid": metadata["uid"]}
    for one in stored:
        change = {"metadata": {"ownerReferences": [reference]}}
        with contextlib.suppress(Forbidden, NotFound):
            await client.patch(kinds.SECRET, one["metadata"]["name"], metadata["namespace"], change)


async def code_of(client: Client, job: Json) -> bytes:
    """The packed working directory that was submitted with this RayJob; empty where there was none. Raises ShoalError
    where it is no longer there."""
    metadata = job["metadata"]
    template = (job.get("spec") or {}).get("submitterPodTemplate") or {}
    names = [one.get("name") for one in (template.get("spec") or {}).get("volumes") or ()]
    if CODE_VOLUME not in names:
        return b""
    found = await client.list(kinds.SECRET, metadata["namespace"], label_selector=f"{CODE_OF}={metadata['name']}")
    parts = {key: value for one in found for key, value in (one.get("data") or {}).items()}
    if not parts:
        raise ShoalError(f"the code of {metadata['name']} is no longer stored; submit it again")
    return b"".join(base64.b64decode(parts[key]) for key in sorted(parts))


async def kind_of(client: Client, manifest: Json, source: str) -> Kind:
    """The served kind of a manifest. Raises BadInput with the nearest match for one that the server does not know."""
    api_version, name = str(manifest.get("apiVersion") or ""), str(manifest.get("kind") or "")
    if not api_version or not name:
        raise BadInput(f"{source}: an object has no apiVersion or no kind")
    discovery = Discovery(client)
    found = await discovery.kind_of(api_version, name)
    if found is not None:
        return found
    known = [one.kind for one in await discovery.kinds_in(api_version)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadInput(f"{source}: this server has no kind {name} in {api_version}{hint}")
