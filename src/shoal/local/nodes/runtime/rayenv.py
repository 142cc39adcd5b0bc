"""What a Ray node needs to live beside others on one machine: its environment, its weight in the start gate.

Called when a container of a Ray image is planned. Only fills in what the manifest leaves open.
"""

from __future__ import annotations

import re

from shoal.local.nodes.runtime.gate import HEAD_WEIGHT, WORKER_WEIGHT

AGENT_PORT = 52365
HEALTH_PATH = "/api/local_raylet_healthz"

_START = re.compile(r"\bray start\b")
_AGENT_PORT = re.compile(r"--dashboard-agent-listen-port[= ](\d+)")
_HEALTH_CHECK = re.compile(r"ray health-check --address[= ]([A-Za-z0-9_.\-]+):(\d+)")
_SMALLEST_STORE = 78_643_200


def ray_variables(memory_limit: int | None) -> dict[str, str]:
    """Defaults for every Ray container.

    A raylet would watch the whole machine's memory and size its object store by it; both belong to the pod. Draining is
    kept below the usual grace period, and a dead head or worker is noticed in seconds.
    """
    store = max(_SMALLEST_STORE, min((memory_limit or 1 << 30) * 3 // 10, 2 << 30))
    return {
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "5",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "5000",
        "RAY_health_check_failure_threshold": "5",
        "RAY_health_check_initial_delay_ms": "3000",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(store),
        "RAY_ROTATION_MAX_BYTES": str(16 << 20),
        "RAY_ROTATION_BACKUP_COUNT": "2",
    }


def gate_weight(argv: list[str]) -> int:
    """How much of the start gate this command takes: 0 when it starts no Ray node."""
    text = " ".join(argv)
    if not _START.search(text):
        return 0
    return HEAD_WEIGHT if "--head" in text else WORKER_WEIGHT


def agent_port(argv: list[str]) -> int:
    """Where the node's health is asked."""
    found = _AGENT_PORT.search(" ".join(argv))
    return int(found.group(1)) if found else AGENT_PORT


def waits_for(argv: list[str]) -> tuple[str, int] | None:
    """The GCS address that an init container waits for with `ray health-check`.

    Such a wait costs a second of CPU per try and a worker may start as soon as the port answers, so it is replaced by a
    plain connection attempt.
    """
    found = _HEALTH_CHECK.search(" ".join(argv))
    return (found.group(1), int(found.group(2))) if found else None
