"""Writes charts/shoal from the code that `shoal install` runs, so that both bring the same objects.

Each template is the YAML of the objects as `shoal.cli.installation` builds them, with Helm's expressions where a value
goes in; values.yaml and its schema come from `shoal.cli.install_values`. `python -m tools.chart` writes (`make chart`);
a test compares the folder with what would be written, another one what Helm renders with what `shoal install` prints.
The CRDs are copies of what `make crds` writes: a chart that is packed or stored without links has them all the same.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tools.chart_removal import POD, before_removal

from shoal import __version__
from shoal.api.crds import DIRECTORY
from shoal.api.meta import Json
from shoal.cli import install_scope, installation, visibility
from shoal.cli.install_certificates import certificates
from shoal.cli.install_flow import flow_control
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
_ISSUED = 'eq .Values.certificates "cert-manager"'
_ANNOUNCED = 'ne .Values.certificates "cert-manager"'
_VISIBLE = f"and .Values.visibility .Values.webhooks (not .Values.webhookUrl) ({_QUEUES})"
_UNNAMED = 'eq (lower (toString (default "" (index .Values.settings "queues.manage_jobs_without_queue_name")))) "true"'
_ANY = "@@any@@"
"""Stands for a name that a value brings."""
_AS_CREATOR = 'eq (lower (toString (default "" (index .Values.settings "create_as_creator")))) "true"'
_IMAGE = '"set image to the image that holds the shoal command: --set image=REGISTRY/shoal:VERSION"'
_COMMAND = """\
        command:
        - shoal
        - controller
        {{- if .Values.webhooks }}
        - --webhooks
        {{- end }}
        {{- if .Values.visibility }}
        - --visibility
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
        {{- with .Values.kubeApiQps }}
        - --kube-api-qps={{ . }}
        {{- end }}
        {{- with .Values.kubeApiBurst }}
        - --kube-api-burst={{ . }}
        {{- end }}
        {{- with .Values.tracesUrl }}
        - --traces={{ . }}
        {{- end }}
        {{- if ne .Values.logFormat "text" }}
        - --log-format={{ .Values.logFormat }}
        {{- end }}
        - --health-port=8081
        - --namespace={{ .Release.Namespace }}
        - --only={{ join "," .Values.only }}
        {{- with .Values.namespaces }}
        - --watch-namespace={{ join "," . }}
        {{- end }}
        {{- if eq .Values.certificates "cert-manager" }}
        - --webhook-secret=shoal-webhook-tls
        {{- end }}
        {{- range .Values.notifyAllow }}
        - {{ printf "--notify-allow=%s" . | quote }}
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - {{ printf "--set=%s=%v" $name $value | quote }}
        {{- end }}
"""
_ENVIRONMENT = """\
        env:
        - name: SHOAL_HISTORY
          {{- if .Values.historySecret }}
          valueFrom:
            secretKeyRef:
              name: {{ .Values.historySecret }}
              key: url
          {{- else }}
          value: sqlite:////var/lib/shoal/history.db
          {{- end }}
        {{- with .Values.notifySecret }}
        - name: SHOAL_NOTIFY_KEY
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: key
        {{- end }}
        {{- if .Values.visibility }}
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
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
        "templates/visibility.yaml": MADE
        + _when(_VISIBLE, _aggregated(visibility.objects))
        + _when(f"{_VISIBLE} ({_CLUSTERS})", _aggregated(visibility.member_objects)),
        "templates/certificates.yaml": MADE + _when(f"and .Values.webhooks ({_ISSUED})", _certificates()),
        "templates/flow-control.yaml": MADE + _when(".Values.flowControl", _documents(flow_control(NAMESPACE))),
        "templates/before-removal.yaml": MADE + _before_removal(),
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
    """For the whole cluster, or the same rules divided between it and the chosen namespaces."""
    plain = Values(only=("appwrapper", "queues"), open_metrics=True)
    account, role, binding, lease_role, lease_binding = installation.rights(plain, NAMESPACE)
    del role["rules"], lease_role["rules"]
    gangs, gangs_binding = installation.rights_within(_ANY, [], NAMESPACE)
    del gangs["rules"]
    head = "---\n" + _filled(_yaml(role)) + "rules:\n"
    limited = _rules(lambda one: install_scope.cluster_wide(one)[:-1])
    limited += _filled(_yaml([install_scope.PODS]))
    within = "---\n" + _filled(_yaml(gangs)) + "rules:\n" + _rules(install_scope.within)
    within = (within + _documents([gangs_binding])).replace(f"'{_ANY}'", "{{ . }}").replace(".Values", "$.Values")
    within = within.replace("{{ .Release", "{{ $.Release")
    own = _filled(_yaml(installation.lease_rules(announces=False)[:-1]))
    leases = "---\n" + _filled(_yaml(lease_role)) + "rules:\n" + own
    leases += _when(_ANNOUNCED, _filled(_yaml(installation.lease_rules()[-2:])))
    leases += _when(_ISSUED, _filled(_yaml(installation.lease_rules(announces=False)[-1:])))
    return (
        MADE
        + _documents([account])
        + head
        + _when("not .Values.namespaces", _rules(lambda one: one))
        + _when(".Values.namespaces", limited)
        + _documents([binding])
        + leases
        + _documents([lease_binding])
        + "{{- range .Values.namespaces }}\n"
        + within
        + "{{- end }}\n"
    )


def _rules(chosen: Callable[[list[Json]], list[Json]]) -> str:
    """The rules of a part are at the end of the role's, each only where the part runs."""
    always = installation.rules(ray=False, reviews=False, announces=False)
    text = _filled(_yaml(chosen(always)))
    for condition, more in (
        (_RAY, installation.rules(ray=True, reviews=False, announces=False)),
        (_AS_CREATOR, installation.rules(impersonates=True, ray=False, reviews=False, announces=False)),
        (_CLUSTERS, installation.rules(clusters=True, ray=False, reviews=False, announces=False)),
        (_REVIEWED, installation.rules(ray=False, announces=False)),
        (_ANNOUNCED, installation.rules(ray=False, reviews=False)),
    ):
        assert more[: len(always)] == always, "the rules of a part come after all others"
        if added := chosen(more[len(always) :]):
            text += _when(condition, _filled(_yaml(added)))
    return text


def _certificates() -> str:
    """Of an authority of our own, or of an issuer that is named; for the Service, or the host of a URL."""
    *authority, certificate = certificates(NAMESPACE, Values())
    text = "---\n" + _filled(_yaml(certificate))
    issuer = re.compile(r"^  issuerRef:\n(?:    .*\n)+", re.MULTILINE)
    given = "  issuerRef:\n    {{- toYaml .Values.certificateIssuer | nindent 4 }}\n"
    text = issuer.sub(lambda found: _either(".Values.certificateIssuer", given, found.group(), indent=2), text)
    names = re.compile(r"^  dnsNames:\n(?:  - .*\n)+", re.MULTILINE)
    host = "{{- $host := (urlParse .Values.webhookUrl).hostname }}\n"
    of_url = _either(
        'regexMatch "^[0-9.]+$|:" $host',
        "  ipAddresses:\n  - {{ $host | quote }}\n",
        "  dnsNames:\n  - {{ $host | quote }}\n",
        indent=2,
    )
    text = names.sub(lambda found: _either(".Values.webhookUrl", host + of_url, found.group(), indent=2), text)
    return _when("not .Values.certificateIssuer", _documents(authority)) + text


def _aggregated(objects: Callable[[Values, str], list[Json]]) -> str:
    """Marked for cert-manager where that keeps the certificate."""
    text = _documents(objects(Values(certificates="cert-manager"), NAMESPACE))
    mark = re.compile(r"^  annotations:\n    cert-manager.*\n", re.MULTILINE)
    return mark.sub(lambda found: _when(_ISSUED, found.group(), indent=2), text)


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
    text = re.sub(
        r"^        env:\n(?:        [ -].*\n)+?(?=        volumeMounts)", _ENVIRONMENT, text, flags=re.MULTILINE
    )
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
            of_queues = _QUEUES if queues else f"not ({_QUEUES})"
            of_url = ".Values.webhookUrl" if url else "not .Values.webhookUrl"
            text += _when(f"and ({of_queues}) ({of_url})", _configurations(queues, url))
    return text


def _configurations(queues: bool, url: str) -> str:
    """With the jobs that name no queue where those are managed, too; marked for cert-manager; for some namespaces."""
    only = ("appwrapper", "queues") if queues else ("appwrapper",)
    values = Values(only=only, webhook_url=url, certificates="cert-manager", namespaces=(_ANY,))
    unnamed = msgspec.structs.replace(values, settings={"queues.manage_jobs_without_queue_name": "true"})
    texts = [_documents(installation.webhook_configurations(one, NAMESPACE)) for one in (unnamed, values)]
    text = _merged(_UNNAMED, *texts)
    mark = re.compile(r"^  annotations:\n    cert-manager.*\n", re.MULTILINE)
    text = mark.sub(lambda found: _when(_ISSUED, found.group(), indent=2), text)
    listed = re.compile(r"^  namespaceSelector:\n(?:    .*\n)*?      values:\n(?:      - .*\n)+", re.MULTILINE)
    return listed.sub(lambda found: _selector(found.group()), text)


def _selector(text: str) -> str:
    head = text[: text.index("      values:\n")]
    values = "      values:\n        {{- toYaml (uniq (append . $.Release.Namespace)) | nindent 8 }}\n"
    return f"  {{{{- with .Values.namespaces }}}}\n{head}{values}  {{{{- end }}}}\n"


def _before_removal() -> str:
    """What Helm runs before it deletes the rest, with the Deployment's own image and place."""
    pod = re.search(r"^      securityContext:\n.*?(?=^        command:)", _deployment(), re.MULTILINE | re.DOTALL)
    secure = re.search(r"^        securityContext:\n.*?(?=^      volumes:)", _deployment(), re.MULTILINE | re.DOTALL)
    assert pod is not None and secure is not None, "the Deployment's pod says as which user it runs"
    command = "        command: [shoal, uninstall, --release, '--namespace={{ .Release.Namespace }}']\n"
    text = _documents(before_removal(NAMESPACE)).replace(f"      '{POD}': '{POD}'\n", "@@")
    return text.replace("@@", pod.group().replace("name: controller\n", "name: release\n") + command + secure.group())


def _merged(condition: str, yes: str, no: str) -> str:
    """Both texts as one, whose differing lines depend on the condition."""
    whole, first, second = "", yes.splitlines(keepends=True), no.splitlines(keepends=True)
    for same, start, end, other, last in difflib.SequenceMatcher(a=first, b=second, autojunk=False).get_opcodes():
        if same == "equal":
            whole += "".join(first[start:end])
        else:
            whole += _either(condition, "".join(first[start:end]), "".join(second[other:last]))
    return whole


def _either(condition: str, yes: str, no: str, indent: int = 0) -> str:
    space = " " * indent
    if not yes:
        return _when(f"not ({condition})", no, indent)
    otherwise = f"{space}{{{{- else }}}}\n{no}" if no else ""
    return f"{space}{{{{- if {condition} }}}}\n{yes}{otherwise}{space}{{{{- end }}}}\n"


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
