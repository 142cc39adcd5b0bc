"""What a case compares: pods, services and submissions reduced to the parts that are a contract.

Order of variables, flags and volumes is not; quoting and white space of a command are not. Used by the runner only.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
from typing import Any

from shoal.api import quantity
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import submission
from shoal.controllers.ray.settings import SIDECAR_RESTART, RaySettings
from shoal.errors import BadInput

Json = dict[str, Any]

_AMOUNTS = re.compile(r"\.(limits|requests)\.|\.sizeLimit$")
_URL = re.compile(r"http://localhost:\d+/\S+")


def compare(expect: Any, built: Any, where: str) -> list[str]:
    """Every place where two values differ, in words."""
    if isinstance(expect, dict) and "present" in expect and len(expect) == 1:
        return [] if built is not None else [f"{where}: missing"]
    if isinstance(expect, dict) and "contains" in expect and len(expect) == 1:
        missing = [part for part in expect["contains"] if not isinstance(built, str) or part not in built]
        return [f"{where}: {built!r} lacks {missing}"] if missing else []
    if isinstance(expect, dict) and "only" in expect and len(expect) == 1:
        return _compare_only(expect["only"], built, where)
    if isinstance(expect, dict) and isinstance(built, dict):
        problems = []
        for key in sorted({*expect, *built}):
            here = f"{where}.{key}" if where else key
            if key not in expect:
                problems.append(f"{here}: not expected, got {built[key]!r}")
            elif key not in built:
                problems.append(f"{here}: missing, expected {expect[key]!r}")
            else:
                problems += compare(expect[key], built[key], here)
        return problems
    if isinstance(expect, list) and isinstance(built, list) and len(expect) == len(built):
        return [
            one
            for index, pair in enumerate(zip(expect, built, strict=True))
            for one in compare(*pair, f"{where}[{index}]")
        ]
    same = _same_amount if _AMOUNTS.search(where) else _same
    return [] if same(expect, built) else [f"{where}: expected {expect!r}, got {built!r}"]


def _compare_only(expect: Any, built: Any, where: str) -> list[str]:
    """Only what is named; null means that it must not be there. For cases about one rule."""
    if not isinstance(expect, dict) or not isinstance(built, dict):
        return compare(expect, built, where)
    problems = []
    for key, wanted in expect.items():
        here = f"{where}.{key}" if where else key
        if wanted is None:
            problems += (
                [f"{here}: not expected, got {built[key]!r}"] if built.get(key) not in (None, {}, [], "") else []
            )
        elif key not in built:
            problems.append(f"{here}: missing, expected {wanted!r}")
        else:
            problems += _compare_only(wanted, built[key], here)
    return problems


def _same_amount(expect: Any, built: Any) -> bool:
    return bool(normal_amounts(str(expect)) == normal_amounts(str(built)))


def _same(expect: Any, built: Any) -> bool:
    if isinstance(expect, str) and isinstance(built, str):
        return expect == built or _words(expect) == _words(built)
    return bool(expect == built)


def _words(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    try:
        words = shlex.split(text)
    except ValueError:
        return text.split()
    if len(words) == 1:
        try:
            return json.loads(words[0])
        except ValueError:
            pass
    return " ".join(words).split()


def normal_amounts(tree: Any) -> Any:
    """Quantities as exact amounts, so that 1024Mi equals 1Gi."""
    if isinstance(tree, dict):
        return {key: normal_amounts(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [normal_amounts(value) for value in tree]
    if isinstance(tree, str):
        try:
            return quantity.parse(tree).nano
        except BadInput:
            return tree
    return tree


def pod_view(pod: Json, *, is_head: bool) -> Json:
    metadata, spec = pod["metadata"], pod["spec"]
    built: Json = {
        "generateName": metadata.get("generateName"),
        "namespace": metadata.get("namespace"),
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "rayContainer": _ray_container(spec["containers"][0], is_head=is_head),
    }
    if metadata.get("name"):
        built["name"] = metadata["name"]
        built.pop("generateName") if not metadata.get("generateName") else None
    for copied in ("restartPolicy", "serviceAccountName"):
        if spec.get(copied):
            built[copied] = spec[copied]
    sidecars = [_sidecar(container) for container in spec["containers"][1:]]
    if sidecars:
        built["sidecars"] = sidecars
    if spec.get("initContainers"):
        built["initContainers"] = [_init_container(container) for container in spec["initContainers"]]
    volumes = {
        volume["name"]: {key: value for key, value in volume.items() if key != "name"}
        for volume in spec.get("volumes") or []
    }
    if volumes:
        built["volumes"] = volumes
    return built


def _ray_container(container: Json, *, is_head: bool) -> Json:
    env = _env(container)
    generated = env.get("KUBERAY_GEN_RAY_START_CMD")
    command, args = container.get("command") or [], container.get("args") or []
    text = " ".join([*command, *args])
    ours = isinstance(generated, str) and any(argument.endswith(generated) for argument in args)
    built: Json = {"name": container.get("name"), "image": container.get("image"), "command": command}
    for copied in ("imagePullPolicy", "securityContext"):
        del copied  # not part of this view
    built["ports"] = {port.get("name", ""): port["containerPort"] for port in container.get("ports") or []}
    mounts = _mounts(container)
    if mounts:
        built["volumeMounts"] = mounts
    built["rayStart"] = parse_start(generated if isinstance(generated, str) else "")
    built["runsRayStart"] = "ray start" in text
    if ours:
        user, _, limit = args[0][: -len(generated)].rstrip().removesuffix(";").rpartition("&&")
        built["beforeRayStart"] = [part.strip() for part in (user, limit) if part.strip()]
    elif args:
        built["argsAsGiven"] = args
    built["env"] = env
    for probe in ("livenessProbe", "readinessProbe"):
        if container.get(probe):
            built[probe] = _probe(container[probe])
    if container.get("resources"):
        built["resources"] = container["resources"]
    return built


def parse_start(text: str) -> Json:
    """`ray start --a=b --c` as its parameters."""
    words = shlex.split(text[text.find("ray start") :]) if "ray start" in text else []
    params: Json = {}
    for word in words[2:]:
        key, equals, value = word.removeprefix("--").partition("=")
        if key != "head":
            params[key] = value if equals else True
    return {"head": "--head" in words, "params": params}


def _probe(probe: Json) -> Json:
    timing = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold", "successThreshold")
    built: Json = {key: probe[key] for key in timing if key in probe}
    if "httpGet" in probe:
        built["http"] = {"port": probe["httpGet"]["port"], "path": probe["httpGet"]["path"]}
    elif "exec" in probe and _URL.search(" ".join(probe["exec"].get("command") or [])):
        built["execChecks"] = [url.rstrip("'\"") for url in _URL.findall(" ".join(probe["exec"]["command"]))]
    else:
        built["other"] = {key: value for key, value in probe.items() if key not in timing}
    return built


def _sidecar(container: Json) -> Json:
    built: Json = {"name": container.get("name"), "image": container.get("image")}
    for copied in ("imagePullPolicy", "command", "securityContext", "resources"):
        if container.get(copied):
            built[copied] = container[copied]
    args = container.get("args") or []
    built["runsAutoscaler"] = any("ray kuberay-autoscaler" in argument for argument in args)
    if args and not built["runsAutoscaler"]:
        built["args"] = args
    if _env(container):
        built["env"] = _env(container)
    if _mounts(container):
        built["volumeMounts"] = _mounts(container)
    return built


def _init_container(container: Json) -> Json:
    built: Json = {"name": container.get("name"), "image": container.get("image"), "env": _env(container)}
    for copied in ("imagePullPolicy", "securityContext", "resources"):
        if container.get(copied):
            built[copied] = container[copied]
    if _mounts(container):
        built["volumeMounts"] = _mounts(container)
    text = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
    waits = re.search(r"ray health-check --address (\S+)", text)
    if waits:
        built["waitsForGcsAt"] = waits.group(1)
    elif container.get("command"):
        built["command"] = container["command"]
    return built


def _env(container: Json) -> Json:
    built: Json = {}
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        if not source:
            built[entry["name"]] = str(entry.get("value") or "")
        elif "fieldRef" in source:
            built[entry["name"]] = {"fieldPath": source["fieldRef"]["fieldPath"]}
        elif "secretKeyRef" in source:
            built[entry["name"]] = {"secret": source["secretKeyRef"]["name"], "key": source["secretKeyRef"]["key"]}
        else:
            built[entry["name"]] = source
    return built


def _mounts(container: Json) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts") or []}


def service_view(service: Json) -> Json:
    metadata, spec = service["metadata"], service["spec"]
    ports = {}
    for port in spec.get("ports") or []:
        ports[port["name"]] = {key: port[key] for key in ("port", "appProtocol", "nodePort") if key in port}
    return {
        "name": metadata["name"],
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "type": spec.get("type") or "ClusterIP",
        "headless": spec.get("clusterIP") == "None",
        "publishNotReadyAddresses": bool(spec.get("publishNotReadyAddresses")),
        "selector": spec.get("selector") or {},
        "ports": ports,
    }


def ingress_view(ingress: Json) -> Json:
    metadata, spec = ingress["metadata"], ingress["spec"]
    rule = spec["rules"][0]
    path = rule["http"]["paths"][0]
    return {
        "name": metadata["name"],
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "ingressClassName": spec.get("ingressClassName"),
        "host": rule.get("host"),
        "path": path["path"],
        "pathType": path["pathType"],
        "backend": path["backend"]["service"],
        "tls": spec.get("tls"),
    }


def submission_view(job: Json, settings: RaySettings, wanted: set[str]) -> Json:
    """How the job would be submitted: by the script of its container, and by HTTP."""
    built: Json = {}
    if "httpBody" in wanted:
        built["httpBody"] = submission.request_body(job)
    if not wanted & {"shell", "shellUnsupported"}:
        return built
    try:
        script = submission.script(job, restartable=settings.gate(SIDECAR_RESTART))
    except BadInput:
        built["shellUnsupported"] = True
        return built
    health = re.search(r"http://\S+/api/gcs_healthz", script)
    flags, entrypoint = submit_words(script)
    built["shell"] = {
        "submitFlags": flags,
        "entrypoint": entrypoint,
        "checksExistingFirst": "ray job status" in script,
        "followsLogs": "ray job logs" in script,
        "waitsForHealthAt": health.group().strip("'\"") if health else "",
    }
    return built


def submit_words(script: str) -> tuple[list[str], str]:
    """Flags and entrypoint of the submit command, as the shell would hand them on."""
    text = script[script.index("ray job submit") :].split("\nfi\n")[0]
    words = shlex.split(text)[3:]
    split = words.index("--")
    rest = words[split + 1 :]
    if rest[:2] == ["bash", "-c"]:
        encoded = re.match(r"source <\(echo (\S+) \| base64 -d\) #", rest[2])
        return words[:split], base64.b64decode(encoded[1]).decode() if encoded else rest[2]
    return words[:split], subprocess.list2cmdline(rest)  # as Ray's command line joins them


def sample_cluster(job: Json, name: str) -> Json:
    """The RayCluster that a RayJob makes, under the name the case chose."""
    spec = view.clone(job["spec"]["rayClusterSpec"])
    labels = {names.ORIGIN_KIND: "RayJob"}
    return {"metadata": {"name": name, "namespace": view.namespace(job), "labels": labels}, "spec": spec}


def defaulted(manifest: Json) -> Json:
    """As the CRD's schema would fill it in."""
    stored = view.clone(manifest)
    spec = stored["spec"]
    for cluster in (spec, spec.get("rayClusterSpec") or {}):
        for group in cluster.get("workerGroupSpecs") or []:
            for field, value in (
                ("replicas", 0),
                ("minReplicas", 0),
                ("maxReplicas", view.MAX_INT32),
                ("numOfHosts", 1),
            ):
                group.setdefault(field, value)
    return stored
