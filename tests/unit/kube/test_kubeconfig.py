"""Credentials: every way to name a cluster, and what is said when one is broken."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import BadInput
from shoal.kube.certificates import make_authority, make_leaf
from shoal.kube.clock import VirtualClock
from shoal.kube.credentials import ExecPlugin, ExecSettings, TokenFile
from shoal.kube.errors import Unsent
from shoal.kube.kubeconfig import in_cluster, load, resolve
from tests.patience import PATIENCE

AUTHORITY = make_authority("test")
USER = make_leaf(AUTHORITY, "ann", organizations=["team"], server=False, client=True)


def inline(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(**changes: Any) -> dict[str, Any]:
    user = {"client-certificate-data": inline(USER.certificate), "client-key-data": inline(USER.key)}
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": inline(AUTHORITY.certificate)}
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return {**whole, **changes}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_a_client_certificate_inline(tmp_path: Path) -> None:
    file = write(tmp_path / "config", config())
    assert load(file).server == "https://127.0.0.1:6443"
    assert resolve(file).namespace == "team"


async def test_certificates_in_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "user.crt").write_bytes(USER.certificate)
    (tmp_path / "user.key").write_bytes(USER.key)
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    cluster = {"server": "https://h", "certificate-authority": "ca.crt"}
    user = {"client-certificate": "user.crt", "client-key": "user.key"}
    content = config(clusters=[{"name": "c", "cluster": cluster}], users=[{"name": "u", "user": user}])
    assert load(write(tmp_path / "config", content)).server == "https://h"


def test_several_files_merge_and_the_first_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"current-context": "here", "contexts": config()["contexts"]})
    second = write(tmp_path / "b", config(contexts=[{"name": "here", "context": {"cluster": "other"}}]))
    environment = {"KUBECONFIG": f"{first}{os.pathsep}{tmp_path / 'missing'}{os.pathsep}{second}"}
    target = resolve(environment=environment)
    assert target.cluster.server == "https://127.0.0.1:6443" and target.namespace == "team"


@pytest.mark.parametrize(
    "content, says",
    [
        ("", "is empty"),
        ("contexts: [", "is not YAML"),
        ("- a list", "is not as expected"),
        (config(**{"current-context": ""}), "has no current-context.*It has: here"),
        (config(**{"current-context": "there"}), "has no context 'there'. It has: here"),
        (config(clusters=[]), "names cluster 'c', which is not there"),
        (config(users=[]), "names user 'u', which is not there"),
        (config(clusters=[{"name": "c", "cluster": {}}]), "has no server"),
        (
            config(clusters=[{"name": "c", "cluster": {"server": "https://h", "certificate-authority-data": "%"}}]),
            "certificate-authority .* is not base64",
        ),
        (
            config(clusters=[{"name": "c", "cluster": {"server": "https://h", "certificate-authority-data": "bm8="}}]),
            "certificate-authority .* is not a PEM certificate",
        ),
        (
            config(users=[{"name": "u", "user": {"client-certificate-data": inline(USER.certificate)}}]),
            "client-certificate and client-key go together",
        ),
        (
            config(
                users=[
                    {
                        "name": "u",
                        "user": {
                            "client-certificate-data": inline(USER.certificate),
                            "client-key-data": inline(AUTHORITY.key),
                        },
                    }
                ]
            ),
            "do not go together",
        ),
        (config(users=[{"name": "u", "user": {"client-key": "nowhere.key"}}]), r"cannot read .*nowhere\.key"),
        (config(users=[{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]), "use an exec plug-in"),
        (config(users=[{"name": "u", "user": {"exec": {"apiVersion": "v1"}}}]), "has no command"),
    ],
)
def test_a_broken_kubeconfig_is_named(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        load(write(tmp_path / "config", content))
    assert str(tmp_path) in str(error.value)
    assert "PRIVATE" not in str(error.value)


def test_no_kubeconfig_at_all_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no kubeconfig"):
        load(environment={"HOME": str(tmp_path)})
    with pytest.raises(BadInput, match="cannot read the kubeconfig"):
        load(tmp_path / "absent")


def test_an_expired_client_certificate_is_named(tmp_path: Path) -> None:
    clock = VirtualClock()
    leaf = make_leaf(make_authority("test", clock=clock), "ann", server=False, client=True, days=1, clock=clock)
    user = {"client-certificate-data": inline(leaf.certificate), "client-key-data": inline(leaf.key)}
    file = write(tmp_path / "config", config(users=[{"name": "u", "user": user}]))
    load(file, clock=clock)
    clock.step_wall(2 * 86400)
    with pytest.raises(BadInput, match="expired on 2023-11-15"):
        load(file, clock=clock)


async def test_a_token_file_is_read_again_as_it_ages(tmp_path: Path, clock: VirtualClock) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    token = TokenFile(file, clock=clock)
    assert await token() == "one"
    file.write_text("two\n")
    assert await token() == "one"
    await clock.advance(10)
    assert await token() == "two"
    file.unlink()
    await clock.advance(10)
    assert await token() == "two"  # while it is being replaced
    with pytest.raises(Unsent, match="cannot read the token file"):
        await TokenFile(file, clock=clock)()


def plugin(tmp_path: Path, script: str, clock: VirtualClock, **settings: Any) -> ExecPlugin:
    command = tmp_path / "plugin"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o700)
    return ExecPlugin(ExecSettings(command=str(command), **settings), tmp_path, source="the test", clock=clock)


async def test_an_exec_plugin_is_asked_once_and_again_before_its_token_ends(
    tmp_path: Path, clock: VirtualClock
) -> None:
    calls = tmp_path / "calls"
    answer = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        '"status":{"token":"t%s","expirationTimestamp":"2023-11-14T23:13:20Z"}}'
    )
    asked = plugin(tmp_path, f"echo x >> {calls}; printf '{answer}' \"$(wc -l < {calls} | tr -d ' ')\"", clock)
    assert await asked() == "t1" and await asked() == "t1"
    await clock.advance(3600 - 59)
    assert await asked() == "t2"


@pytest.mark.parametrize(
    "script, says",
    [
        ("echo boom >&2; exit 3", "ended with 3: boom"),
        ("echo nonsense", "did not print an ExecCredential"),
        (
            'echo \'{"apiVersion":"v1","kind":"ExecCredential","status":{}}\'',
            "printed neither a token nor a certificate",
        ),
    ],
)
async def test_a_failing_plugin_is_named(tmp_path: Path, clock: VirtualClock, script: str, says: str) -> None:
    with pytest.raises(Unsent, match=says):
        await plugin(tmp_path, script, clock)()


def test_a_command_whose_plugin_fails_says_so_and_ends(tmp_path: Path) -> None:
    """Many requests at once ask for the token; the first that gets none calls the others off."""
    user = {"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}}
    path = write(tmp_path / "config", config(users=[user]))
    command = [str(Path(sys.executable).with_name("shoal")), "get", "--kubeconfig", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and "the exec plug-in 'false'" in done.stderr and "ended with 1" in done.stderr


async def test_a_plugin_that_no_caller_waits_for_any_more_is_ended(tmp_path: Path, clock: VirtualClock) -> None:
    said = tmp_path / "said"
    os.mkfifo(said)
    asking = asyncio.ensure_future(plugin(tmp_path, f"echo $$ > {said}; exec sleep 600", clock)())
    async with asyncio.timeout(PATIENCE):
        pid = int(await asyncio.to_thread(said.read_text))
        asking.cancel()
        [outcome] = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240 (a thread of its own takes its end)
            await asyncio.sleep(0.01)
    assert asking.cancelled()


async def test_a_plugin_may_give_a_certificate_instead_of_a_token(tmp_path: Path, clock: VirtualClock) -> None:
    status = {"clientCertificateData": USER.certificate.decode(), "clientKeyData": USER.key.decode()}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (tmp_path / "answer").write_text(json.dumps(answer))
    command = tmp_path / "plugin"
    command.write_text(f"#!/bin/sh\ncat {tmp_path / 'answer'}\n")
    command.chmod(0o700)
    given: list[tuple[bytes, bytes]] = []
    asked = ExecPlugin(
        ExecSettings(command="./plugin"),
        tmp_path,
        source="the test",
        clock=clock,
        present=lambda *pair: given.append(pair),
    )
    assert await asked() == "" and await asked() == ""
    assert given == [(USER.certificate, USER.key)]


async def test_a_missing_plugin_tells_how_to_install_it(tmp_path: Path, clock: VirtualClock) -> None:
    settings = ExecSettings(command="no-such-plugin", install_hint="Install it from your vendor.")
    with pytest.raises(Unsent, match=r"cannot be run: .* Install it from your vendor\."):
        await ExecPlugin(settings, tmp_path, source="the test", clock=clock)()


async def test_inside_a_pod(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert in_cluster(environment=environment, directory=tmp_path).server == "https://[fd00::1]:443"
    (tmp_path / "token").unlink()
    with pytest.raises(BadInput, match="automountServiceAccountToken"):
        in_cluster(environment=environment, directory=tmp_path)
    with pytest.raises(BadInput, match="not inside a pod"):
        in_cluster(environment={}, directory=tmp_path)


def test_keys_are_written_for_their_owner_only(tmp_path: Path) -> None:
    USER.write(tmp_path / "user.crt", tmp_path / "user.key")
    assert stat.S_IMODE((tmp_path / "user.key").stat().st_mode) == 0o600


def test_the_official_client_reads_the_same_file_alike(tmp_path: Path) -> None:
    kubernetes = pytest.importorskip("kubernetes", reason="the official client is in the bench extra")
    file = write(tmp_path / "config", config())
    theirs = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(file), client_configuration=theirs)
    ours = resolve(file)
    assert theirs.host == ours.cluster.server
    assert Path(theirs.cert_file).read_bytes() == base64.b64decode(ours.user.client_certificate_data)
    assert Path(theirs.ssl_ca_cert).read_bytes() == base64.b64decode(ours.cluster.certificate_authority_data)
