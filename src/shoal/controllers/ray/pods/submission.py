"""How a RayJob's entrypoint reaches Ray: the submitter's script, the Job or sidecar around it, and the HTTP body.

Every way is safe to repeat, because the submission id is fixed before the first try and Ray takes an id once. The
entrypoint is a shell command for the head, never for the submitter: it is quoted so that Ray receives the text the
user wrote. Pure.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from typing import Any

from shoal.api.labels import LAST_APPLIED
from shoal.api.meta import Json
from shoal.controllers.ray import guarded_yaml, names, shell_text, view
from shoal.controllers.ray.pods import auth, observed
from shoal.controllers.ray.pods.containers import put_env
from shoal.controllers.ray.settings import SIDECAR_RESTART, RaySettings
from shoal.errors import BadInput

CONTAINER = observed.SUBMITTER
K8S_JOB, HTTP, SIDECAR, INTERACTIVE = "K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"
MODES = (K8S_JOB, HTTP, SIDECAR, INTERACTIVE)
RESOURCES: Json = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"}}
"""What a submitter asks for where the user says nothing."""

_METADATA_SINCE = (2, 6, 0)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:\d{1,5}", re.ASCII)
_READ_IN_DOUBLE_QUOTES = re.compile(r"[$`\\\"!]")
_NOT_REMARKABLE = re.compile(r"[^A-Za-z0-9_@%+=:,./-]+")
_LONGEST_REMARK = 200
_SUBMISSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def mode(job: Json) -> str:
    return str(view.spec(job).get("submissionMode") or K8S_JOB)


def status(job: Json) -> Json:
    return job.get("status") or {}


def submission_id(job: Json) -> str:
    return str(status(job).get("jobId") or "")


def is_submission_id(text: str) -> bool:
    return len(text) <= 253 and _SUBMISSION_ID.fullmatch(text) is not None


def runtime_env(job: Json) -> Json | None:
    """`runtimeEnvYAML` as a mapping. Raises BadInput when it is not one."""
    text = view.spec(job).get("runtimeEnvYAML")
    if not text:
        return None
    return guarded_yaml.parse(str(text), "spec.runtimeEnvYAML", may_be_empty=True).data


def entrypoint_resources(job: Json) -> Json | None:
    text = view.spec(job).get("entrypointResources")
    if not text:
        return None
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"spec.entrypointResources is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInput('spec.entrypointResources must be a JSON object such as {"custom": 1}')
    return found


def request_body(job: Json) -> Json:
    """The body of `POST /api/jobs/`."""
    spec = view.spec(job)
    body: Json = {"entrypoint": str(spec.get("entrypoint") or "")}
    optional: dict[str, Any] = {
        "submission_id": submission_id(job),
        "runtime_env": runtime_env(job),
        "metadata": spec.get("metadata"),
        "entrypoint_num_cpus": spec.get("entrypointNumCpus"),
        "entrypoint_num_gpus": spec.get("entrypointNumGpus"),
        "entrypoint_resources": entrypoint_resources(job),
    }
    body.update({key: value for key, value in optional.items() if value})
    return body


def dashboard_address(job: Json) -> str:
    """Where the submitter finds the dashboard: the head Service, or its own pod for a sidecar."""
    if mode(job) == SIDECAR:
        return f"http://127.0.0.1:{view.dashboard_port({'spec': view.spec(job).get('rayClusterSpec') or {}})}"
    url = str(status(job).get("dashboardURL") or "")
    if not _HOST_AND_PORT.fullmatch(url):
        raise BadInput(f"status.dashboardURL {url[:80]!r} is not a host and port; delete it and it is written again")
    return f"http://{url}"


def script(job: Json, *, restartable: bool = False) -> str:
    """The submitter's script: wait for the dashboard, submit unless Ray knows the id, follow the logs.

    A sidecar submits and waits in one command, unless it may be restarted.
    """
    address = dashboard_address(job)
    one_shot = mode(job) == SIDECAR and not restartable
    health = address.replace("127.0.0.1", "localhost") if mode(job) == SIDECAR else address
    quoted_address, quoted_id = shlex.quote(address), shlex.quote(submission_id(job))
    flags = " ".join(shlex.quote(flag) for flag in _flags(job, address, wait=one_shot))
    submit = f"ray job submit {flags} -- {_entrypoint_words(str(view.spec(job).get('entrypoint') or ''))}"
    lines = [_wait_for(f"{health}/api/gcs_healthz")]
    if one_shot:
        return "\n".join([*lines, submit])
    known = f"ray job status --address {quoted_address} {quoted_id}"
    return "\n".join(
        [
            *lines,
            f"if ! {known} > /dev/null 2>&1; then",
            f"  {submit}",
            "fi",
            f"ray job logs --address {quoted_address} --follow {quoted_id}",
            f"if {known} 2>&1 | grep -q FAILED; then exit 1; fi",
        ]
    )


def submitter_pod_template(job: Json, cluster: Json, settings: RaySettings) -> Json:
    """The user's template, or ours; the script only where the user has no command of his own."""
    given = view.spec(job).get("submitterPodTemplate")
    template = view.clone(given) if given else default_template(cluster)
    spec = template.setdefault("spec", {})
    if not spec.get("restartPolicy"):
        spec["restartPolicy"] = "Never"
    container = spec["containers"][0]
    if not container.get("command"):
        container["command"] = _shell(settings)
        container["args"] = [script(job)]
    _add_environment(container, job, cluster, settings)
    return template


def submitter_job(job: Json, cluster: Json, settings: RaySettings) -> Json:
    limit = (view.spec(job).get("submitterConfig") or {}).get("backoffLimit")
    labels = {names.ORIGIN_NAME: view.name(job), names.ORIGIN_KIND: "RayJob", names.CREATED_BY: names.OPERATOR}
    template = submitter_pod_template(job, cluster, settings)
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if chosen := view.image_environment(job):
        metadata["annotations"] = {**chosen, **(metadata.get("annotations") or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": view.name(job),
            "namespace": view.namespace(job),
            "labels": labels,
            "ownerReferences": [view.owner_reference(job, "ray.io/v1", "RayJob")],
        },
        "spec": {"backoffLimit": 2 if limit is None else int(limit), "template": template},
    }


def cluster_of(job: Json, settings: RaySettings) -> Json:
    """The RayCluster of one attempt, named by the status; a sidecar submitter is part of its head."""
    spec = view.clone(view.spec(job).get("rayClusterSpec") or {})
    labels = {
        **view.labels(job),
        names.ORIGIN_NAME: view.name(job),
        names.ORIGIN_KIND: "RayJob",
        names.SUBMISSION_MODE: mode(job),
    }
    annotations = {key: value for key, value in view.annotations_of(job).items() if key != LAST_APPLIED}
    cluster: Json = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": str(status(job).get("rayClusterName") or ""),
            "namespace": view.namespace(job),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [view.owner_reference(job, "ray.io/v1", "RayJob")],
        },
        "spec": spec,
    }
    if mode(job) == SIDECAR:
        _add_sidecar(cluster, job, settings)
    return cluster


def _add_sidecar(cluster: Json, job: Json, settings: RaySettings) -> None:
    cluster["metadata"]["annotations"][names.NO_HEAD_RESTART] = "true"
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    spec["restartPolicy"] = "Never"
    restartable = settings.gate(SIDECAR_RESTART)
    default = default_template(cluster)["spec"]["containers"][0]
    own = own_sidecar(spec["containers"])
    container = default if own is None else own  # a user may bring image, resources, mounts and variables
    for field in ("image", "resources"):
        container[field] = container.get(field) or default[field]
    container["command"] = _shell(settings)
    container["args"] = [script(job, restartable=restartable)]
    if restartable:
        container["restartPolicy"] = "OnFailure"
    _add_environment(container, job, cluster, settings)
    if own is None:
        spec["containers"].append(container)


def _shell(settings: RaySettings) -> list[str]:
    return ["/bin/bash", "-cel" if settings.login_shell else "-ce", "--"]


def own_sidecar(containers: list[Json]) -> Json | None:
    """The submitter that a user brings beside the head."""
    return next((held for held in containers[1:] if held.get("name") == CONTAINER), None)


def default_template(cluster: Json) -> Json:
    container = {
        "name": CONTAINER,
        "image": view.ray_container(view.head(cluster)).get("image"),
        "resources": view.clone(RESOURCES),
    }
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def _add_environment(container: Json, job: Json, cluster: Json, settings: RaySettings) -> None:
    put_env(container, "PYTHONUNBUFFERED", "1")
    put_env(container, "RAY_DASHBOARD_ADDRESS", dashboard_address(job).removeprefix("http://"))
    put_env(container, "RAY_JOB_SUBMISSION_ID", submission_id(job))
    auth.prepare(container, cluster, settings)


def _wait_for(url: str) -> str:
    """Python, because it is in every Ray image; other tools are not."""
    check = f"import urllib.request as r; exit(b'success' not in r.urlopen('{url}', timeout=10).read(100))"
    return f'until python -c "{check}" > /dev/null 2>&1; do echo "waiting for the dashboard"; sleep 2; done'


def _flags(job: Json, address: str, *, wait: bool) -> list[str]:
    spec = view.spec(job)
    flags = ["--address", address] + ([] if wait else ["--no-wait"])
    environment = runtime_env(job)
    if environment:
        flags += ["--runtime-env-json", _compact(environment)]
    if spec.get("metadata"):
        version = view.ray_version({"spec": spec.get("rayClusterSpec") or {}})
        if version is not None and version < _METADATA_SINCE:
            raise BadInput(
                "spec.metadata needs Ray 2.6.0 or newer; raise rayClusterSpec.rayVersion or drop the metadata"
            )
        flags += ["--metadata-json", _compact(spec["metadata"])]
    if submission_id(job):
        flags += ["--submission-id", submission_id(job)]
    if spec.get("entrypointNumCpus"):
        flags += ["--entrypoint-num-cpus", f"{float(spec['entrypointNumCpus']):f}"]
    if spec.get("entrypointNumGpus"):
        flags += ["--entrypoint-num-gpus", f"{float(spec['entrypointNumGpus']):f}"]
    resources = entrypoint_resources(job)
    if resources:
        flags += ["--entrypoint-resources", _compact(resources)]
    return flags


def _entrypoint_words(text: str) -> str:
    """Words for the submitter's shell from which `ray job submit` puts the user's text together again.

    Ray joins its arguments with double quotes around those with spaces, newer ones with single quotes. A simple command
    goes word by word, any other text as the argument of one `bash -c`; what the two kinds of quotes treat differently
    goes encoded, with a remark for readers of the list of jobs.
    """
    text = text.strip()
    if not text:
        return ""
    words = _simple_command(text)
    if words and all(map(_survives_joining, words)):
        return " ".join(map(shlex.quote, words))
    if not re.search(r"[ \t]", text) or _READ_IN_DOUBLE_QUOTES.search(text):
        encoded = base64.b64encode(text.encode()).decode()
        text = f"source <(echo {encoded} | base64 -d) # {_NOT_REMARKABLE.sub(' ', text)[:_LONGEST_REMARK].strip()}"
    return " ".join(map(shlex.quote, ["bash", "-c", text]))


def _simple_command(text: str) -> list[str]:
    """The words of one command on one line; none of anything else."""
    try:
        found = shell_text.read(text)
    except BadInput:
        return []
    return [] if found.has_operators else found.words


def _survives_joining(word: str) -> bool:
    if re.search(r"[ \t]", word):
        return not re.search(r"[$`\\!]", word)
    return _PLAIN_WORD.fullmatch(word) is not None


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
