"""The real KubeRay, Kueue and MCAD as processes beside a control plane: how they are built, configured and started.

Used by the tests that move in from them and by the bench that runs beside them (bench/jobs.py). Both run without
webhooks: the API server of a test plane reaches no Service. What is queued with them is therefore created suspended.
MCAD is in no Go proxy: it is built from the checkout that MCAD_CHECKOUT names, where there is one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import build
from tests.controlplane.plane import ControlPlane, free_ports

KUBERAY = "github.com/ray-project/kuberay/ray-operator"
KUEUE = build.KUEUE
MCAD = "MCAD_CHECKOUT"
"""The environment variable that names a checkout of multi-cluster-app-dispatcher."""
CERTIFICATES = "KUEUE_CERTIFICATES"
"""The environment variable that names the folder with Kueue's certificate."""
FIXED_FOLDER, OWN_FOLDER = '"/etc/kueue/metrics/certs"', f'os.Getenv("{CERTIFICATES}")'
"""Where Kueue reads the certificate of its metrics: a folder of the machine, and one of the test."""
KUEUE_SHIPPED = "config/components/manager/controller_manager_config.yaml"


def kuberay_program() -> Path:
    return build.program("kuberay", KUBERAY)


def kueue_program() -> Path:
    return build.program("kueue_manager", f"{KUEUE}/cmd/kueue", {FIXED_FOLDER: OWN_FOLDER})


def kuberay_definitions() -> list[Path]:
    return sorted((build.module_folder("kuberay", KUBERAY) / "config" / "crd" / "bases").glob("*.yaml"))


def kueue_definitions() -> list[Path]:
    return sorted((build.kueue_folder() / "config" / "components" / "crd" / "bases").glob("*.yaml"))


def kuberay(*options: str) -> list[str]:
    metrics, probes = free_ports(2)
    return [
        str(kuberay_program()),
        f"--metrics-addr=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{probes}",
        "--enable-leader-election=false",
        *options,
    ]


def mcad_checkout() -> Path | None:
    found = os.environ.get(MCAD)
    return Path(found).resolve() if found else None


def mcad_definitions(checkout: Path) -> list[Path]:
    return sorted((checkout / "config" / "crd" / "bases").glob("*.yaml"))


def mcad(checkout: Path, plane: ControlPlane, folder: Path) -> list[str]:
    program, (probes, metrics) = folder / "mcad-controller", free_ports(2)
    if not program.exists():
        made = ["go", "build", "-o", str(program), "./cmd/kar-controllers"]
        subprocess.run(made, cwd=checkout, env={**os.environ, "GOFLAGS": "-mod=mod"}, check=True, timeout=900)
    listens = [f"--healthProbeListenAddr=127.0.0.1:{probes}", f"--secure-port={metrics}"]
    return [str(program), f"--kubeconfig={plane.kubeconfig}", *listens, "--v=4", "--logtostderr"]


def certificates(plane: ControlPlane) -> Path:
    """Kueue's folder for CERTIFICATES."""
    folder = plane.folder / "certificates"
    folder.mkdir(exist_ok=True)
    for ending in ("crt", "key"):
        shutil.copy(plane.folder / f"server.{ending}", folder / f"tls.{ending}")
    return folder


def kueue(plane: ControlPlane, frameworks: list[str], **changed: Any) -> list[str]:
    """Its manager as shipped, for these frameworks, with other parts of its configuration `changed`."""
    metrics, probes, webhook = free_ports(3)
    configuration = {
        **yaml.safe_load((build.kueue_folder() / KUEUE_SHIPPED).read_text()),
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates(plane))},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": frameworks},
        "featureGates": {"VisibilityOnDemand": False},
        **changed,
    }
    path = plane.folder / "kueue.json"
    path.write_text(json.dumps(configuration))
    return [str(kueue_program()), f"--config={path}"]
