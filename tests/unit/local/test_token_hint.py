"""What a program reads that connects to `ray://` of a pod without the token of its Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.local.nodes.runtime import raysite, token_hint
from tests.faults import proven

SERVER = """
import sys
from ray._common.tls_utils import add_port_to_grpc_server
from ray._private.grpc_utils import create_grpc_server_with_interceptors
from ray.core.generated import ray_client_pb2_grpc as services
server = create_grpc_server_with_interceptors(max_workers=8, thread_name_prefix="test", asynchronous=False)
services.add_RayletDriverServicer_to_server(services.RayletDriverServicer(), server)
services.add_RayletDataStreamerServicer_to_server(services.RayletDataStreamerServicer(), server)
services.add_RayletLogStreamerServicer_to_server(services.RayletLogStreamerServicer(), server)
port = add_port_to_grpc_server(server, "127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
"""
CLIENT = """
import os, sys
import grpc, ray
from ray.util.client.worker import Worker
try:
    ray.util.connect(sys.argv[1], connection_retries=1)
except Exception as error:
    print(type(error).__name__, error)
channel = grpc.insecure_channel(sys.argv[1])
from ray.core.generated import ray_client_pb2 as messages, ray_client_pb2_grpc as services
try:
    services.RayletDriverStub(channel).KVGet(messages.KVGetRequest(key=b"k"))
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""
POD = {"metadata": {"name": "head", "namespace": "lab", "annotations": {"shoal.dev/ray-token-secret": "plain"}}}
CURE = "RAY_AUTH_TOKEN=$(kubectl get secret plain -n lab -o jsonpath='{.data.auth_token}' | base64 -d)"


def says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raysite, "DIRECTORY", "/nowhere")


@proven(without=says_nothing)
def test_f785_a_program_without_the_token_reads_how_to_get_it(tmp_path: Path) -> None:
    """F785: a program connects to `ray://` of a pod without the cluster's token; Ray's client takes the refusal for a
    server that is not ready, tries again, and ends with a timeout. Holds: it fails at once with the command that
    reads the token; nothing but the question whether a server is there is answered."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    told = {**plain, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    token_hint.add_hint(told, POD, {"name": "ray-head"})
    command = [sys.executable, "-c", SERVER, "ray.util.client.server", "--mode=proxy"]
    with subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        client = [sys.executable, "-c", CLIENT, address]
        heard = subprocess.run(client, env=plain, cwd=tmp_path, capture_output=True, text=True, check=False)
        server.stdin.close()
    initialized, called = heard.stdout.split("\nFAILED_PRECONDITION ")
    assert initialized.startswith("ConnectionAbortedError Initialization failure from server"), heard.stderr
    assert CURE in initialized and CURE in called


def test_the_hint_names_the_secret_that_the_pod_has_its_token_from() -> None:
    own = {"env": [{"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "ray.token"}}}]}
    assert r"kubectl get secret mine -n lab -o jsonpath='{.data.ray\.token}'" in token_hint.hint(POD, own)
    assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in token_hint.hint({"metadata": {"name": "head"}}, {})


def test_a_cluster_without_a_token_is_left_as_it_is() -> None:
    environment = {"PYTHONPATH": "/mine"}
    token_hint.add_hint(environment, POD, {})
    assert environment == {"PYTHONPATH": "/mine"}
    environment["RAY_AUTH_MODE"] = "token"
    token_hint.add_hint(environment, POD, {})
    token_hint.add_hint(environment, POD, {})
    assert environment["PYTHONPATH"] == f"{raysite.DIRECTORY}:/mine"
