"""Plays cert-manager, whose own CRDs are installed: issues what Certificates ask for, and tells the API server whom to
trust, as its documentation says.
"""

from __future__ import annotations

import base64
import json
import re

import yaml

from shoal.kube.certificates import Pair, make_authority, make_leaf
from tests.controlplane import build
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.integration.release.release import NAMESPACE, Json

MODULE = "github.com/cert-manager/cert-manager"
KINDS = ("certificates", "issuers")
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
INJECT = "cert-manager.io/inject-ca-from"


def install_kinds(plane: ControlPlane) -> None:
    """As its chart does, whose expressions stand in comments and labels."""
    folder = build.module_folder("cert_manager", MODULE) / "deploy" / "crds"
    for name in KINDS:
        crd = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", (folder / f"crd-{name}.yaml").read_text()))
        crd["metadata"].pop("labels")
        plane.kubectl("create", "-f", "-", stdin=json.dumps(crd))
    await_kinds(plane.kubectl)


class Issuer:
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._authority = make_authority("lab")

    def issue(self, name: str) -> Pair:
        """A certificate for the Certificate of this name, in its Secret; made again, it is a renewal."""
        found = json.loads(self._plane.kubectl("-n", NAMESPACE, "get", "certificate", name, "-o", "json"))
        asked = found["spec"]
        leaf = make_leaf(self._authority, name, hosts=[*asked.get("dnsNames", ()), *asked.get("ipAddresses", ())])
        data = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": self._authority.certificate}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": asked["secretName"], "namespace": NAMESPACE},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        self._plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(secret))
        return leaf

    def inject(self) -> None:
        """Into every configuration that names the Certificate."""
        bundle = base64.b64encode(self._authority.certificate).decode()
        for kind in CONFIGURATIONS:
            found: Json = json.loads(self._plane.kubectl("get", kind, "shoal", "-o", "json"))
            assert found["metadata"]["annotations"][INJECT] == f"{NAMESPACE}/shoal-webhook"
            steps = [
                {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
                for number in range(len(found["webhooks"]))
            ]
            self._plane.kubectl("patch", kind, "shoal", "--type=json", "-p", json.dumps(steps))
