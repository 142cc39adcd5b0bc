"""Writes charts/shoal from the code that `shoal install` runs, so that both bring the same objects.

Each template is the YAML of the objects as `shoal.cli.installation` builds them, with Helm's expressions where a value
goes in; values.yaml and its schema come from `shoal.cli.install_values`. `python -m tools.chart` writes (`make chart`);
a test compares the folder with what would be written, another one what Helm renders with what `shoal install` prints.
The CRDs are copies of what `make crds` writes: a chart that is packed or stored without links has them all the same.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from shoal import __version__
from shoal.api.crds import DIRECTORY
from shoal.api.meta import Json
from shoal.cli import installation
from shoal.cli.install_values import Values
from shoal.cli.install_workload import PAGE_PORT, workload

CHART = Path(__file__).parents[1] / "charts" / "shoal"
MADE = "# Made by `make chart` from src/shoal/cli/installation.py; do not edit.\n"
CRDS = "crd-files"
NAMESPACE = "release-namespace"
URL = "https://webhook.invalid"

_EXPRESSIONS = {NAMESPACE: "{{ .Release.Namespace }}", URL: '{{ .Values.webhookUrl | trimSuffix "/" }}'}
_QUEUES, _RAY, _CLUSTERS = ('has "queues" .Values.only', 'has "ray" .Values.only', 'has "clusters" .Values.only')
_REVIEWED = "not .Values.openMetrics"
_AS_CREATOR = 'eq (lower (toString (default "" (index .Values.settings "create_as_creator")))) "true"'
_IMAGE = '"set image to the image that holds the shoal command: --set image=REGISTRY/shoal:VERSION"'
_COMMAND = """\
        command:
        - shoal
        - controller
        {{- if .Values.webhooks }}
        - --webhooks
        {{- end }}
        {{- if .Values.openMetrics }}
        - --open-metrics
        {{- end }}
        {{- if or .Values.page .Values.pageUrl }}
        - --page-port=8090
        {{- end }}
        {{- if .Values.pageUrl }}
        - --page-url={{ .Values.pageUrl }}
        {{- end }}
        {{- if ne .Values.logFormat "text" }}
        - --log-format={{ .Values.logFormat }}
        {{- end }}
        - --health-port=8081
        - --namespace={{ .Release.Namespace }}
        - --only={{ join "," .Values.only }}
        {{- range $name, $value := .Values.settings }}
        - {{ printf "--set=%s=%v" $name $value | quote }}
        {{- end }}
"""
_CRDS = """\
{{- range $path, $content := .Files.Glob "crd-files/*.yaml" }}
{{- $crd := $content | toString | fromYaml }}
{{- $group := $crd.spec.group }}
{{- $legacy := has $group (list "mcad.ibm.com" "ibm.com") }}
{{- $queues := eq $group "kueue.x-k8s.io" }}
{{- if and (or (not $legacy) $.Values.legacy) (or (not $queues) (has "queues" $.Values.only)) }}
{{- $kept := dict "metadata" (dict "annotations" (dict "helm.sh/resource-policy" "keep")) }}
---
{{ mergeOverwrite $crd $kept | toYaml }}
{{- end }}
{{- end }}
"""


def files() -> dict[str, str]:
    """Path within the chart to content."""
    everything = Values(network_policy=True, service_monitor=True, page_url="https://page.invalid")
    made: dict[str, list[Json]] = {}
    for obj in workload(NAMESPACE, everything):
        made.setdefault(obj["kind"], []).append(obj)
    webhook_service, metrics_service, page_service = made["Service"]
    return {
        "Chart.yaml": _chart(),
        "values.yaml": _values(),
        "values.schema.json": _schema(),
        "templates/NOTES.txt": _NOTES,
        "templates/crds.yaml": MADE + _CRDS,
        "templates/rights.yaml": _rights(),
        "templates/roles-for-people.yaml": MADE
        + _documents(installation.roles_for_people())
        + _when(_REVIEWED, _documents([installation.metrics_role()])),
        "templates/deployment.yaml": MADE + _deployment(),
        "templates/services.yaml": MADE
        + _when(".Values.webhooks", _documents([webhook_service]))
        + _documents([metrics_service])
        + _when(".Values.pageUrl", _documents([page_service])),
        "templates/guards.yaml": MADE
        + _when(".Values.podDisruptionBudget", _documents(made["PodDisruptionBudget"]))
        + _when(".Values.networkPolicy", _policy(made["NetworkPolicy"]))
        + _when(".Values.serviceMonitor", _monitor(made["ServiceMonitor"])),
        "templates/webhooks.yaml": MADE + _when(".Values.webhooks", _webhooks()),
        ".helmignore": "*.py\n__pycache__/\n",
        **{f"{CRDS}/{path.name}": path.read_text() for path in sorted(DIRECTORY.glob("*.yaml"))},
    }


_NOTES = """\
Shoal runs in namespace {{ .Release.Namespace }}: {{ join ", " .Values.only }}.
  kubectl -n {{ .Release.Namespace }} rollout status deployment/shoal-controller
"""


def _chart() -> str:
    about = {
        "apiVersion": "v2",
        "name": "shoal",
        "description": "Queues Ray workloads and starts each one whole or not at all.",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.30.0-0",
        "keywords": ["ray", "queue", "gang-scheduling", "appwrapper", "kueue"],
    }
    return MADE.replace("installation.py", "install_values.py") + _yaml(about)


def _values() -> str:
    """Every value with its default, below what it means."""
    lines = [MADE.replace("installation.py", "install_values.py")]
    properties = msgspec.json.schema(Values)["$defs"]["Values"]["properties"]
    defaults = msgspec.to_builtins(Values())
    for name, default in defaults.items():
        lines.append(f"# {properties[name]['description']}\n{_yaml({name: default})}")
    return "\n".join(lines)


def _schema() -> str:
    whole = msgspec.json.schema(Values)
    own = {"$schema": "https://json-schema.org/draft-07/schema#", "title": "Values", **whole["$defs"]["Values"]}
    own["properties"] = {**own["properties"], "global": {"type": "object"}}  # Helm adds it to every chart
    own["properties"]["settings"]["additionalProperties"] = {"type": ["string", "boolean"]}
    return json.dumps(own, indent=2) + "\n"


def _rights() -> str:
    """The rules of a part are at the end of the role's, each only where the part runs."""
    plain = Values(only=("appwrapper", "queues"), open_metrics=True)
    account, role, binding, lease_role, lease_binding = installation.rights(plain, NAMESPACE)
    always = role.pop("rules")
    text = _documents([account]) + "---\n" + _filled(_yaml(role)) + "rules:\n" + _filled(_yaml(always))
    before = len(always)
    for condition, more in (
        (_RAY, installation.rules(ray=True, reviews=False)),
        (_AS_CREATOR, installation.rules(impersonates=True, ray=False, reviews=False)),
        (_CLUSTERS, installation.rules(clusters=True, ray=False, reviews=False)),
        (_REVIEWED, installation.rules(ray=False)),
    ):
        assert more[:before] == always, "the rules of a part come after all others"
        text += _when(condition, _filled(_yaml(more[before:])))
    return MADE + text + _documents([binding, lease_role, lease_binding])


def _policy(made: list[Json]) -> str:
    """With a way in to the page, where a proxy serves it."""
    entry = re.compile(rf"^    - protocol: TCP\n      port: {PAGE_PORT}\n", re.MULTILINE)
    text, changed = entry.subn(lambda found: _when(".Values.pageUrl", found.group(), indent=4), _documents(made))
    assert changed == 1, "the port of the page is one entry"
    return text


def _monitor(made: list[Json]) -> str:
    """With the scraper's token, where it is asked for."""
    line = re.compile(r"^    bearerTokenFile: .*\n", re.MULTILINE)
    return line.sub(lambda found: _when(_REVIEWED, found.group(), indent=4), _documents(made))


def _deployment() -> str:
    """Values that are structures go in whole; those that may be missing bring their key along."""
    marked: dict[str, Any] = {name: f"@@{name}@@" for name in _STRUCTURES}
    values = msgspec.structs.replace(Values(), image="@@image@@", image_pull_policy="@@image_pull_policy@@", **marked)
    (made,) = (one for one in workload(NAMESPACE, values) if one["kind"] == "Deployment")
    text = _filled(_yaml(made))
    text = re.sub(r"^ +command:\n(?: +- .*\n)+", _COMMAND, text, flags=re.MULTILINE)
    text = re.sub(r"replicas: \d+", "replicas: {{ .Values.replicas }}", text)
    text = text.replace("'@@image@@'", "{{ required _IMAGE .Values.image | quote }}".replace("_IMAGE", _IMAGE))
    text = re.sub(r"^( *)(\w+): '@@(\w+)@@'\n", _optional, text, flags=re.MULTILINE)
    spread = re.compile(r"^      topologySpreadConstraints:\n(?:      [ -].*\n)+", re.MULTILINE)
    return "---\n" + spread.sub(lambda found: _when(".Values.topologySpread", found.group(), indent=6), text)


_STRUCTURES = ("image_pull_secrets", "resources", "priority_class_name", "node_selector", "tolerations", "affinity")


def _optional(found: re.Match[str]) -> str:
    indent, key, name = len(found.group(1)), found.group(2), found.group(3)
    value = ".Values." + re.sub(r"_(\w)", lambda one: one.group(1).upper(), name)
    space = " " * indent
    if name in ("image_pull_policy", "priority_class_name"):
        return f"{space}{{{{- with {value} }}}}\n{space}{key}: {{{{ . }}}}\n{space}{{{{- end }}}}\n"
    whole = f"{space}{key}:\n{space}  {{{{- toYaml . | nindent {indent + 2} }}}}\n"
    if name == "resources":
        return whole.replace("toYaml .", f"toYaml {value}")
    return f"{space}{{{{- with {value} }}}}\n{whole}{space}{{{{- end }}}}\n"


def _webhooks() -> str:
    """Whole documents for each of the four ways: with queues or without, called through the Service or by URL."""
    text = ""
    for queues in (True, False):
        for url in ("", URL):
            only = ("appwrapper", "queues") if queues else ("appwrapper",)
            made = installation.webhook_configurations(Values(only=only, webhook_url=url), NAMESPACE)
            of_queues = _QUEUES if queues else f"not ({_QUEUES})"
            of_url = ".Values.webhookUrl" if url else "not .Values.webhookUrl"
            text += _when(f"and ({of_queues}) ({of_url})", _documents(made))
    return text


def _when(condition: str, text: str, indent: int = 0) -> str:
    space = " " * indent
    return f"{space}{{{{- if {condition} }}}}\n{text}{space}{{{{- end }}}}\n"


def _documents(objects: list[Json]) -> str:
    return "".join(f"---\n{_filled(_yaml(one))}" for one in objects)


def _filled(text: str) -> str:
    """Helm reads nothing else of ours as an expression."""
    assert "{{" not in text, "the YAML has braces that Helm would read"
    for mark, expression in _EXPRESSIONS.items():
        text = text.replace(mark, expression)
    return text


def _yaml(value: object) -> str:
    import yaml

    return str(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=10_000, allow_unicode=True))


def kept() -> dict[str, str]:
    """The folder as it is."""
    return {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}


def write() -> None:
    made = files()
    for name in kept():
        if name not in made:
            (CHART / name).unlink()
    for name, content in made.items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(content)


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{CHART} written\n")
