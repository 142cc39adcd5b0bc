"""Writes src/shoal/local/apiserver/primitives/builtin_types.json from Kubernetes' published Go types.

Run by hand when the Kubernetes version that the embedded server speaks is raised:
    python tools/builtin_types.py GO_MODULES > src/shoal/local/apiserver/primitives/builtin_types.json
where GO_MODULES holds api@VERSION, apimachinery@VERSION, apiextensions-apiserver@VERSION and kube-aggregator@VERSION.
Only facts of the interface are taken (names, types, numbers, merge keys), no text.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

VERSION = "v0.36.4"
PACKAGES = {
    "core.v1": f"api@{VERSION}/core/v1",
    "apps.v1": f"api@{VERSION}/apps/v1",
    "batch.v1": f"api@{VERSION}/batch/v1",
    "rbac.v1": f"api@{VERSION}/rbac/v1",
    "networking.v1": f"api@{VERSION}/networking/v1",
    "policy.v1": f"api@{VERSION}/policy/v1",
    "events.v1": f"api@{VERSION}/events/v1",
    "discovery.v1": f"api@{VERSION}/discovery/v1",
    "coordination.v1": f"api@{VERSION}/coordination/v1",
    "scheduling.v1": f"api@{VERSION}/scheduling/v1",
    "authentication.v1": f"api@{VERSION}/authentication/v1",
    "authorization.v1": f"api@{VERSION}/authorization/v1",
    "admissionregistration.v1": f"api@{VERSION}/admissionregistration/v1",
    "autoscaling.v1": f"api@{VERSION}/autoscaling/v1",
    "storage.v1": f"api@{VERSION}/storage/v1",
    "node.v1": f"api@{VERSION}/node/v1",
    "meta.v1": f"apimachinery@{VERSION}/pkg/apis/meta/v1",
    "apiextensions.v1": f"apiextensions-apiserver@{VERSION}/pkg/apis/apiextensions/v1",
    "apiregistration.v1": f"kube-aggregator@{VERSION}/pkg/apis/apiregistration/v1",
}
ROOTS = """
core.v1: Namespace Node Pod Service Endpoints ConfigMap Secret ServiceAccount Event PodTemplate PersistentVolumeClaim
core.v1: PersistentVolume LimitRange ResourceQuota ReplicationController Binding
apps.v1: Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision
batch.v1: Job CronJob
discovery.v1: EndpointSlice
networking.v1: Ingress IngressClass NetworkPolicy
policy.v1: PodDisruptionBudget Eviction
events.v1: Event
rbac.v1: Role RoleBinding ClusterRole ClusterRoleBinding
authentication.v1: TokenReview TokenRequest SelfSubjectReview
authorization.v1: SubjectAccessReview SelfSubjectAccessReview LocalSubjectAccessReview SelfSubjectRulesReview
coordination.v1: Lease
scheduling.v1: PriorityClass
storage.v1: StorageClass
node.v1: RuntimeClass
autoscaling.v1: Scale HorizontalPodAutoscaler
admissionregistration.v1: MutatingWebhookConfiguration ValidatingWebhookConfiguration
apiextensions.v1: CustomResourceDefinition
apiregistration.v1: APIService
meta.v1: Status DeleteOptions ListMeta
"""
SCALARS = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "float64": "double",
    "int": "int64",
    "byte": "byte",
    "uint8": "byte",
    "types.UID": "string",
    "uint32": "uint32",
}
SPECIAL = {
    "resource.Quantity": "Quantity",
    "intstr.IntOrString": "IntOrString",
    "runtime.RawExtension": "Raw",
    "meta.v1.Time": "Time",
    "meta.v1.MicroTime": "MicroTime",
    "meta.v1.FieldsV1": "Fields",
    "meta.v1.Duration": "Duration",
    "apiextensions.v1.JSON": "JSON",
    "meta.v1.Verbs": "[]string",
    "apiextensions.v1.JSONSchemas": "[]apiextensions.v1.JSONSchemaProps",
    "apiextensions.v1.JSONSchemaPropsOrArray": "JSON",
    "apiextensions.v1.JSONSchemaPropsOrBool": "JSON",
    "apiextensions.v1.JSONSchemaPropsOrStringArray": "JSON",
    "types.NamespacedName": "string",
    "apiextensions.v1.JSONSchemaURL": "string",
}
TAG = re.compile(r"^\t(\S+)?\s*([^`]*?)\s*`([^`]*)`")


def read_package(name: str, folder: Path) -> tuple[dict, dict]:
    structs: dict[str, list] = {}
    aliases: dict[str, str] = {}
    for path in sorted(folder.glob("*.go")):
        if path.name.startswith("zz_") or path.name.endswith("_test.go") or path.name == "generated.pb.go":
            continue
        here, marks = None, []
        for line in path.read_text().splitlines():
            empty = re.match(r"^type (\w+) struct ?\{ *\}", line)
            if empty:
                structs[empty[1]] = []
                continue
            start = re.match(r"^type (\w+) struct \{", line)
            if start:
                here, marks = start[1], []
                structs[here] = []
                continue
            alias = (
                re.match(r"^type (\w+) (\S+)$", line) or re.match(r"^\t(\w+) (string)$", line) if here is None else None
            )
            if alias and "{" not in line and "interface" not in line:
                aliases[alias[1]] = alias[2]
            if here is None:
                continue
            if line == "}":
                here = None
                continue
            text = line.strip()
            if text.startswith("//"):
                marks.append(text[2:].strip())
                continue
            found = re.match(r"^\t(\w+(?:\.\w+)?)(?:\s+(\S+))?\s+`([^`]*)`", line)
            if found and "json:" in found[3]:
                structs[here].append((found[1], found[2], found[3], marks))
            if text:
                marks = []
    return structs, aliases


def main() -> None:
    root = Path(sys.argv[1])
    packages = {name: read_package(name, root / folder) for name, folder in PACKAGES.items()}
    result: dict[str, dict[str, str]] = {}

    def resolve(go: str, package: str) -> str:
        go = go.lstrip("*")
        if go.startswith("[]"):
            inner = resolve(go[2:], package)
            return "bytes" if inner == "byte" else "[]" + inner
        mapped = re.match(r"map\[([\w.]+)\](.+)", go)
        if mapped:
            return "{}" + resolve(mapped[2], package)
        if go in SCALARS:
            return SCALARS[go]
        if go in SPECIAL:
            return SPECIAL[go]
        where, _, bare = go.rpartition(".")
        target = {"metav1": "meta.v1", "apiv1": "core.v1", "v1": "core.v1", "corev1": "core.v1", "": package}.get(
            where, where + ".v1"
        )
        if where == "v1" and package == "authentication.v1":
            target = "meta.v1"
        if where == "v1" and bare not in packages["core.v1"][0] and bare not in packages["core.v1"][1]:
            target = "meta.v1"
        full = f"{target}.{bare}"
        if full in SPECIAL:
            return SPECIAL[full]
        structs, aliases = packages[target]
        if bare in structs:
            visit(target, bare)
            return full
        return resolve(aliases[bare], target)

    def visit(package: str, name: str) -> None:
        full = f"{package}.{name}"
        if full in result:
            return
        result[full] = {}
        for field, go, tag, marks in packages[package][0][name]:
            inline = go is None or ",inline" in tag
            if go is None:
                go = field
                field = field.rpartition(".")[2]
            if go.endswith("TypeMeta"):
                continue
            tags = dict(re.findall(r'(\w+):"([^"]*)"', tag))
            json_name, *options = tags["json"].split(",")
            if json_name == "-":
                continue
            number = tags.get("protobuf", ",0").split(",")[1]
            words = [number, resolve(go, package)]
            if go.startswith("*"):
                words.append("pointer")
            inline = "inline" in options
            if inline:
                words.append("inline")
                json_name = field[0].lower() + field[1:]
            joined = " ".join(marks)
            if tags.get("patchStrategy"):
                if "merge" in tags["patchStrategy"].split(","):
                    words.append("merge=" + tags.get("patchMergeKey", ""))
                if "retainKeys" in tags["patchStrategy"]:
                    words.append("retainKeys")
            kind = re.search(r"\+listType=(\w+)", joined)
            if kind:
                keys = re.findall(r"\+listMapKey=(\w+)", joined)
                words.append(kind[1] + ("=" + ",".join(keys) if keys else ""))
            shape = re.search(r"\+(?:structType|mapType)=atomic", joined)
            if shape:
                words.append("atomic")
            if "omitempty" not in options and not inline:
                words.append("keep" if "+optional" in joined else "required")
            result[full][json_name] = " ".join(words)

    for line in ROOTS.split("\n"):
        if line.strip():
            package, names = line.split(": ")
            for name in names.split():
                visit(package, name)
    # struct-level markers: a reference is taken whole by server-side apply
    atomic = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).glob("types*.go")):
            atomic += [
                f"{package}.{n}"
                for n in re.findall(r"\+structType=atomic\n(?://[^\n]*\n)*type (\w+) struct", path.read_text())
            ]
    compact = (",", ":")
    lines = [json.dumps(name) + ":" + json.dumps(fields, separators=compact) for name, fields in sorted(result.items())]
    whole = json.dumps(sorted(name for name in atomic if name in result), separators=compact)
    print('{"atomic":' + whole + ',\n"types":{\n' + ",\n".join(lines) + "}}")


main()
