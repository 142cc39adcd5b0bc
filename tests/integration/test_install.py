"""`shoal install` on a real API server, and the controller under exactly the rights that it ships with."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.api.kinds import APP_WRAPPER
from shoal.api.meta import Json
from shoal.cli import installation
from shoal.cli.admission import WebhookReplica, certificate_hosts
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.controlplane.plane import ControlPlane, free_ports
from tests.faults import proven
from tests.integration.queues.rules import assert_rules_hold
from tests.integration.queues.walk import assert_walk_holds
from tests.patience import PATIENCE
from tests.resting import PASSED, hold_by, rules_of
from tests.unit.cli.test_monitoring import QUERIES, SUFFIXES, metrics_in

SHOAL = str(Path(sys.executable).with_name("shoal"))
INSTALL = ("install", "--image", "example.test/shoal:1", "--replicas", "1")
SAMPLES = Path(__file__).parents[2] / "samples" / "appwrapper"
MORE_ARGUMENTS: list[str] = []
"""For the controller; empty as it ships."""
MORE_OPTIONS: list[str] = []
"""For `shoal install` and the controller."""


def shoal(plane: ControlPlane, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def webhook_url() -> str:
    """Where this test's controller listens: the control plane here has no network for Services."""
    return f"https://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def health_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def installed(full_control_plane: ControlPlane, webhook_url: str) -> Iterator[ControlPlane]:
    shoal(full_control_plane, *INSTALL, "--webhook-url", webhook_url, *MORE_OPTIONS)
    yield full_control_plane
    shoal(full_control_plane, "uninstall")


def hold_at_rest(plane: ControlPlane) -> None:
    """Judge what is stored as the controller has it by default."""
    hold_by(plane.kubeconfig, rules_of(AppWrapperSettings(), QueueSettings(), ray=True))


@pytest.fixture
def controller(
    installed: ControlPlane, webhook_url: str, health_port: int, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[bytes]]:
    """What it leaves is judged at rest."""
    with own_controller(installed, webhook_url, health_port, tmp_path, *MORE_ARGUMENTS, *MORE_OPTIONS) as process:
        yield process
        if request.node.stash.get(PASSED, False) and process.poll() is None:
            hold_at_rest(installed)


@contextmanager
def own_controller(
    installed: ControlPlane, webhook_url: str, health_port: int, folder: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`shoal controller` with the service account's own token, and nothing more."""
    account = f"system:serviceaccount:{installation.NAMESPACE}:{installation.NAME}"
    question = ("auth", "can-i", "list", "appwrappers.workload.codeflare.dev", f"--as={account}", "-A")
    until(lambda: installed.kubectl(*question).strip() == "yes")  # the server learns of a binding by its own watch
    token = installed.kubectl("-n", installation.NAMESPACE, "create", "token", installation.NAME).strip()
    own = json.loads(installed.kubeconfig.read_text())
    own["users"] = [{"name": "admin", "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(own))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                SHOAL,
                "controller",
                f"--kubeconfig={path}",
                f"--webhook-url={webhook_url}",
                f"--health-port={health_port}",
                *options,
            ],
            stdout=log,
            stderr=log,
        )
        try:
            until_ready(health_port)
            yield process
        finally:  # what one test leaves running, the next would take for its own
            process.terminate()
            ended = process.wait(60)
        assert ended == 0
    said = (folder / "log").read_text()
    assert "forbidden" not in said.lower(), said


def told(port: int, path: str, token: str = "") -> str:
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=shown), timeout=10
    ) as answer:
        return str(answer.read().decode())


def until_ready(port: int) -> None:
    """Ready means that the API server has reached the webhook: from then on no create is refused for want of it."""
    deadline = time.monotonic() + 90
    said = ""
    while time.monotonic() < deadline:
        try:
            if "\nready" in "\n" + told(port, "/readyz"):
                return
        except OSError as error:
            said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
        time.sleep(0.2)
    raise AssertionError(f"never ready: {said}")


def submit(plane: ControlPlane, sample: str) -> None:
    plane.kubectl("create", "-f", str(SAMPLES / sample))


def apply(plane: ControlPlane, obj: Json, *arguments: str) -> str:
    return plane.kubectl("create", *arguments, "-f", "-", stdin=json.dumps(obj))


def _forgets_pods(patch: pytest.MonkeyPatch) -> None:
    kept = [rule for rule in installation.rules() if "pods" not in rule["resources"]]
    patch.setattr(installation, "rules", lambda: kept)
    # the command runs in a process of its own: apply the poorer role after it
    whole = shoal

    def poorer(plane: ControlPlane, *arguments: str) -> str:
        said = whole(plane, *arguments)
        if arguments[0] == "install":
            role = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": installation.NAME},
                "rules": kept,
            }
            plane.kubectl("replace", "-f", "-", stdin=json.dumps(role))
        return said

    patch.setattr(sys.modules[__name__], "shoal", poorer)


@proven(without=_forgets_pods)
def test_f133_the_shipped_role_is_enough_and_has_no_star(
    installed: ControlPlane, request: pytest.FixtureRequest
) -> None:
    """F133: our role is broader than our work. Holds: a whole walk passes under exactly it, and no rule has a star."""
    controller = request.getfixturevalue("controller")  # it becomes ready with no other rights
    role = json.loads(installed.kubectl("get", "clusterrole", installation.NAME, "-o", "json"))
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
    submit(installed, "raycluster.yaml")
    installed.kubectl("wait", "appwrapper/first", "--for=jsonpath={.status.state}=Running", "--timeout=60s")
    installed.kubectl("wait", "raycluster/first", "--for=jsonpath={.status.state}=ready", "--timeout=60s")
    hold_at_rest(installed)
    installed.kubectl("delete", "appwrapper", "first", "--wait=true")
    installed.kubectl("wait", "raycluster/first", "--for=delete", "--timeout=60s")
    assert controller.poll() is None


def _changes_after_install(patch: pytest.MonkeyPatch, change: Callable[[ControlPlane], None]) -> None:
    whole = shoal

    def poorer(plane: ControlPlane, *arguments: str) -> str:
        said = whole(plane, *arguments)
        if arguments[0] == "install" and "--dry-run" not in arguments:
            change(plane)
        return said

    patch.setattr(sys.modules[__name__], "shoal", poorer)


def drop_webhooks(plane: ControlPlane) -> None:
    """And wait until the server does not ask them any more: that follows a moment later."""
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        plane.kubectl("delete", kind, "shoal", "--ignore-not-found")
    until(lambda: "created" in apply(plane, simple_wrapper("probe"), "--dry-run=server"))


def until(holds: Callable[[], bool]) -> None:
    """A refusal of the server counts as not yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if holds():
                return
            refused = ""
        except RuntimeError as error:
            refused = str(error)
        assert time.monotonic() < deadline, f"it never came to that: {refused}"
        time.sleep(0.2)


def until_allowed(plane: ControlPlane, user: str, namespace: str, *resources: str) -> None:
    """A real server learns of roles and bindings by its own watches."""
    for resource in resources:
        question = ("auth", "can-i", "create", resource, f"--as={user}", "-n", namespace)
        until(lambda question=question: plane.kubectl(*question).strip() == "yes")  # type: ignore[misc]


def _webhooks_only_in_code(patch: pytest.MonkeyPatch) -> None:
    _changes_after_install(patch, drop_webhooks)
    patch.setattr(sys.modules[__name__], "until_ready", lambda port: None)


@proven(without=_webhooks_only_in_code)
def test_f070_the_installed_webhooks_stamp_and_refuse(
    installed: ControlPlane, controller: subprocess.Popen[bytes]
) -> None:
    """F70: a webhook exists in code and not on the cluster. Holds: a real server, told by the generated manifests,
    calls ours: creators are stamped, forged stamps replaced, and what can never work is refused."""
    submit(installed, "raycluster.yaml")
    stored = json.loads(installed.kubectl("get", "appwrapper", "first", "-o", "json"))
    assert json.loads(stored["metadata"]["annotations"]["shoal.dev/created-by"])["user"] == "admin"
    forged = json.dumps({"metadata": {"annotations": {"shoal.dev/created-by": '{"user":"someone"}'}}})
    installed.kubectl("patch", "appwrapper", "first", "--type=merge", "-p", forged)
    stored = json.loads(installed.kubectl("get", "appwrapper", "first", "-o", "json"))
    assert json.loads(stored["metadata"]["annotations"]["shoal.dev/created-by"])["user"] == "admin"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}}
    wrapper = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "grants", "namespace": "default"},
        "spec": {"resources": {"GenericItems": [{"generictemplate": role}]}},
    }
    with pytest.raises(RuntimeError, match="cannot be wrapped"):
        installed.kubectl("create", "-f", "-", stdin=json.dumps(wrapper))
    outside = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "kube-system"}}
    wrapper["spec"] = {"resources": {"GenericItems": [{"generictemplate": outside}]}}
    place = r"spec\.resources\.GenericItems\[0\]\.generictemplate\.metadata\.namespace: AppWrappers can not create"
    with pytest.raises(RuntimeError, match=rf"AppWrapper 'grants' is invalid: {place}"):
        installed.kubectl("create", "-f", "-", stdin=json.dumps(wrapper))
    installed.kubectl("delete", "appwrapper", "first", "--wait=true")


def _uninstalls_definitions_too(patch: pytest.MonkeyPatch) -> None:
    whole = shoal

    def thorough(plane: ControlPlane, *arguments: str) -> str:
        if arguments[0] == "uninstall":
            plane.kubectl("delete", "crd", "appwrappers.workload.codeflare.dev", "--ignore-not-found")
        return whole(plane, *arguments)

    patch.setattr(sys.modules[__name__], "shoal", thorough)


@proven(without=_uninstalls_definitions_too)
def test_f071_uninstall_leaves_definitions_and_what_runs(
    installed: ControlPlane, webhook_url: str, controller: subprocess.Popen[bytes]
) -> None:
    """F71: Shoal is installed twice and then uninstalled under a running gang. Holds: the second install changes
    nothing; after the uninstall the AppWrapper, its objects and the definitions are still there."""
    before = installed.kubectl(
        "get", "crd", "appwrappers.workload.codeflare.dev", "-o", "jsonpath={.metadata.generation}"
    )
    shoal(installed, *INSTALL, "--webhook-url", webhook_url)
    after = installed.kubectl(
        "get", "crd", "appwrappers.workload.codeflare.dev", "-o", "jsonpath={.metadata.generation}"
    )
    assert before == after
    submit(installed, "deployment.yaml")
    installed.kubectl(
        "wait", "-f", str(SAMPLES / "deployment.yaml"), "--for=jsonpath={.status.state}=Running", "--timeout=60s"
    )
    ours = installed.kubectl("get", "deployments", "-n", "default", "-o", "name")
    controller.terminate()  # as the Deployment's pods would end: without rights it could only complain
    controller.wait(60)
    shoal(installed, "uninstall")
    assert "appwrapper" in installed.kubectl("get", "-f", str(SAMPLES / "deployment.yaml"), "-o", "name")
    assert ours.strip() and installed.kubectl("get", "deployments", "-n", "default", "-o", "name") == ours
    with pytest.raises(RuntimeError, match="not found"):
        installed.kubectl("-n", installation.NAMESPACE, "get", "deployment", installation.NAME)
    installed.kubectl("delete", "-f", str(SAMPLES / "deployment.yaml"))


def test_a_dry_run_prints_manifests_that_the_server_takes(installed: ControlPlane, webhook_url: str) -> None:
    printed = shoal(installed, *INSTALL, "--webhook-url", webhook_url, "--dry-run", "-o", "yaml")
    taken = installed.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=printed
    )
    assert taken.count("(server dry run)") == printed.count("\n---\n") + 1


def _guards_every_update(patch: pytest.MonkeyPatch) -> None:
    def unconditional(plane: ControlPlane) -> None:
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            change = [{"op": "remove", "path": "/webhooks/0/matchConditions"}]
            plane.kubectl("patch", kind, "shoal", "--type=json", "-p", json.dumps(change))

    _changes_after_install(patch, unconditional)


def simple_wrapper(name: str, *wraps: Json, namespace: str = "default", **metadata: object) -> Json:
    items = [{"generictemplate": obj} for obj in wraps]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"resources": {"GenericItems": items}},
    }


def plain(kind: str, name: str, api_version: str = "v1", **more: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


RAY = plain(
    "RayCluster",
    "loot",
    "ray.io/v1",
    spec={
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "h", "image": "none"}]}}}
    },
)


@proven(without=_guards_every_update)
def test_f064_with_the_webhook_down_no_other_request_is_stopped(
    full_control_plane: ControlPlane, installed: ControlPlane, webhook_url: str
) -> None:
    """F64: no server answers the webhooks. Holds: our own and the system's namespaces, every other kind, and all that
    is done to AppWrappers beyond creating and editing them goes on; only a new AppWrapper is refused, by name."""
    drop_webhooks(installed)
    apply(installed, simple_wrapper("older", finalizers=["example.test/held"]))
    shoal(installed, *INSTALL, "--webhook-url", webhook_url)
    pod = plain("Pod", "free", spec={"containers": [{"name": "a", "image": "none"}]})
    for namespace in ("kube-system", installation.NAMESPACE, "default"):
        apply(installed, pod, "-n", namespace)
        installed.kubectl("delete", "pod", "free", "-n", namespace, "--wait=false", "--grace-period=0", "--force")
    apply(installed, RAY, "-n", "default")
    installed.kubectl("delete", "raycluster", "loot", "-n", "default")
    deadline = time.monotonic() + PATIENCE
    while True:  # a new configuration takes a moment to be in force
        try:
            apply(installed, simple_wrapper("new"), "--dry-run=server")
        except RuntimeError as error:
            if "stamp.shoal.dev" in str(error):  # the other one may be in force a moment sooner
                break
        assert time.monotonic() < deadline, "creating an AppWrapper was not refused"
        time.sleep(0.2)
    installed.kubectl("label", "appwrapper", "older", "tree=oak")
    status = json.dumps({"status": {"message": "written"}})
    installed.kubectl("patch", "appwrapper", "older", "--subresource=status", "--type=merge", "-p", status)
    installed.kubectl("delete", "appwrapper", "older", "--wait=false")
    freed = json.dumps({"metadata": {"finalizers": None}})
    installed.kubectl("patch", "appwrapper", "older", "--type=merge", "-p", freed)
    installed.kubectl("wait", "appwrapper/older", "--for=delete", "--timeout=60s")


def _ready_at_once(patch: pytest.MonkeyPatch) -> None:
    from shoal.cli.admission import WebhookReplica

    patch.setattr(WebhookReplica, "trouble", lambda self: None)


@proven(without=_ready_at_once)
async def test_f065_ready_means_that_a_call_came_through(installed: ControlPlane, webhook_url: str) -> None:
    """F65: a replica says that it is ready before the API server can reach its webhook. Holds: ready only after a call
    through the API server was answered; the first create after that is stamped."""
    url = urlsplit(webhook_url)
    transport = load(installed.kubeconfig)
    admission = WebhookReplica(Client(transport), installation.NAMESPACE, certificate_hosts(webhook_url))
    tasks = [
        asyncio.ensure_future(admission.run("127.0.0.1", url.port or 443)),
        asyncio.ensure_future(admission.keep(Client(transport))),
    ]
    try:
        async with asyncio.timeout(PATIENCE):
            while admission.trouble() is not None:  # noqa: ASYNC110 (no event tells it)
                await asyncio.sleep(0.05)
        made = await Client(transport).create(APP_WRAPPER, simple_wrapper("first-of-all"), "default", dry_run=True)
        assert "shoal.dev/created-by" in made["metadata"]["annotations"]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await transport.close()


def _trusts_anyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "MORE_ARGUMENTS", ["--trust-unstamped"])


def _lends_its_rights(patch: pytest.MonkeyPatch) -> None:
    _webhooks_only_in_code(patch)
    _trusts_anyone(patch)


@proven(without=_trusts_anyone)
def test_f073_what_came_while_we_were_down_is_not_started_unseen(
    installed: ControlPlane, webhook_url: str, request: pytest.FixtureRequest
) -> None:
    """F73: an AppWrapper with a creator of its own invention is created while neither webhook nor controller is there.
    Holds: it is not started once they are; its status says what to do."""
    drop_webhooks(installed)
    forged = json.dumps({"user": "root", "uid": "", "groups": ["system:masters"], "extra": {}})
    apply(installed, simple_wrapper("early", plain("ConfigMap", "x"), annotations={"shoal.dev/created-by": forged}))
    time.sleep(1.1)  # creation times are told in seconds
    shoal(installed, *INSTALL, "--webhook-url", webhook_url)
    request.getfixturevalue("controller")
    installed.kubectl("wait", "appwrapper/early", "--for=jsonpath={.status.state}=Pending", "--timeout=60s")
    installed.kubectl("wait", "appwrapper/early", "--for=jsonpath={.status.queuejobstate}=Backoff", "--timeout=60s")
    assert "install the admission webhook" in installed.kubectl("get", "appwrapper", "early", "-o", "yaml")
    with pytest.raises(RuntimeError, match="not found"):
        installed.kubectl("get", "configmap", "x", "-n", "default")
    installed.kubectl("delete", "appwrapper", "early")


@proven(without=_lends_its_rights)
def test_f112_two_users_in_two_namespaces_on_a_real_server(
    installed: ControlPlane, controller: subprocess.Popen[bytes]
) -> None:
    """F112: ann may create RayClusters in red, bob may create only AppWrappers in blue. Holds: ann gets one through an
    AppWrapper; bob gets none, in either version, with a generated name, or by an edit; nor roles of any kind."""
    for user, namespace, resources in (
        ("ann", "red", "appwrappers.workload.codeflare.dev,rayclusters.ray.io"),
        ("bob", "blue", "appwrappers.workload.codeflare.dev,roles.rbac.authorization.k8s.io"),
    ):
        installed.kubectl("create", "namespace", namespace)
        verbs = "--verb=get,list,create,update,patch,delete"
        installed.kubectl("-n", namespace, "create", "role", user, verbs, f"--resource={resources}")
        installed.kubectl("-n", namespace, "create", "rolebinding", user, f"--role={user}", f"--user={user}")
        until_allowed(installed, user, namespace, *resources.split(","))
    apply(installed, simple_wrapper("gang", RAY, namespace="red"), "--as=ann")
    installed.kubectl("-n", "red", "wait", "appwrapper/gang", "--for=jsonpath={.status.state}=Running", "--timeout=60s")
    assert "loot" in installed.kubectl("-n", "red", "get", "rayclusters", "-o", "name")
    components = {**simple_wrapper("gang", namespace="blue"), "apiVersion": "workload.codeflare.dev/v1beta2"}
    components["spec"] = {"components": [{"template": RAY}]}
    nameless = {**RAY, "metadata": {"generateName": "loot-"}}
    generated = {**components, "spec": {"components": [{"template": nameless}]}}
    labelled = {**components, "metadata": {**components["metadata"], "labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    for made in (simple_wrapper("gang", RAY, namespace="blue"), components, generated, labelled):
        with pytest.raises(RuntimeError, match="User bob is not authorized to create rayclusters"):
            apply(installed, made, "--as=bob")
    apply(installed, simple_wrapper("empty", namespace="blue"), "--as=bob")
    edit = json.dumps({"spec": {"resources": {"GenericItems": [{"generictemplate": RAY}]}}})
    with pytest.raises(RuntimeError, match="User bob is not authorized to create rayclusters"):
        installed.kubectl("-n", "blue", "patch", "appwrapper", "empty", "--type=merge", "-p", edit, "--as=bob")
    role = plain("Role", "loot", "rbac.authorization.k8s.io/v1", rules=[])
    with pytest.raises(RuntimeError, match="depends on its creator"):
        apply(installed, simple_wrapper("grants", role, namespace="blue"), "--as=bob")
    assert installed.kubectl("-n", "blue", "get", "rayclusters", "-o", "name").strip() == ""
    for namespace in ("red", "blue"):
        installed.kubectl("-n", namespace, "delete", "appwrappers", "--all")
        installed.kubectl("delete", "namespace", namespace, "--wait=false")


def test_queues_hold_start_and_stop_jobs_on_a_real_server(
    installed: ControlPlane, controller: subprocess.Popen[bytes]
) -> None:
    assert_walk_holds(installed, lambda: hold_at_rest(installed))


def test_kueues_rules_hold_on_a_real_server(installed: ControlPlane, controller: subprocess.Popen[bytes]) -> None:
    assert_rules_hold(installed)


def _adds_nothing_to_edit(patch: pytest.MonkeyPatch) -> None:
    def alone(plane: ControlPlane) -> None:
        plane.kubectl("delete", "clusterrole", installation.EDITING)

    _changes_after_install(patch, alone)
    patch.setattr(sys.modules[__name__], "PATIENCE", 5.0)


def may(plane: ControlPlane, user: str, verb: str, resource: str, *more: str) -> bool:
    """`kubectl auth can-i` ends with 1 when it says no."""
    try:
        return plane.kubectl("auth", "can-i", verb, resource, "-n", "lab", f"--as={user}", *more).strip() == "yes"
    except RuntimeError:
        return False


@proven(without=_adds_nothing_to_edit)
def test_f270_the_cluster_role_edit_is_enough_to_submit(
    installed: ControlPlane, controller: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """F270: a user has the cluster role edit in one namespace, and nothing else. Holds: they submit AppWrappers, Ray's
    kinds and questions; queues, quota, Workloads and statuses, which decide over others, are refused."""
    installed.kubectl("create", "namespace", "lab")
    installed.kubectl("-n", "lab", "create", "serviceaccount", "eve")
    installed.kubectl("-n", "lab", "create", "rolebinding", "eve", "--clusterrole=edit", "--serviceaccount=lab:eve")
    eve = "system:serviceaccount:lab:eve"
    until_allowed(installed, eve, "lab", "appwrappers.workload.codeflare.dev", "rayclusters.ray.io", "rays.ray.k8s.io")
    until_allowed(installed, eve, "lab", "questions.shoal.dev", "rayjobs.ray.io")
    apply(installed, simple_wrapper("gang", RAY, namespace="lab"), f"--as={eve}")
    installed.kubectl("-n", "lab", "wait", "appwrapper/gang", "--for=jsonpath={.status.state}=Running", "--timeout=60s")
    for verb, resource in (
        ("create", "localqueues.kueue.x-k8s.io"),
        ("patch", "workloads.kueue.x-k8s.io"),
        ("create", "quotasubtrees.quota.codeflare.dev"),
        ("list", "clusterqueues.kueue.x-k8s.io"),
    ):
        assert not may(installed, eve, verb, resource)
    assert not may(installed, eve, "patch", "appwrappers.workload.codeflare.dev", "--subresource=status")
    assert may(installed, eve, "list", "localqueues.kueue.x-k8s.io")
    own = json.loads(installed.kubeconfig.read_text())
    token = installed.kubectl("-n", "lab", "create", "token", "eve").strip()
    own["users"] = [{"name": "admin", "user": {"token": token}}]
    (tmp_path / "eve").write_text(json.dumps(own))
    asked = [SHOAL, "get", "-n", "lab", f"--kubeconfig={tmp_path / 'eve'}"]
    shown = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "gang" in shown.stdout and "not complete" not in shown.stderr, shown.stderr
    installed.kubectl("-n", "lab", "delete", "appwrappers", "--all")
    installed.kubectl("delete", "namespace", "lab", "--wait=false")


def _serves_no_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "MORE_ARGUMENTS", ["--only=appwrapper,ray"])


@proven(without=_serves_no_quota)
def test_f274_dashboards_and_rules_ask_for_what_the_controller_serves(
    installed: ControlPlane, controller: subprocess.Popen[bytes], health_port: int
) -> None:
    """F274: a dashboard or an alert names a metric that nothing serves, and stays empty. Holds: every query of
    monitoring/ names metrics that the installed controller serves, each series once."""
    account = "system:serviceaccount:default:prometheus"
    installed.kubectl("-n", "default", "create", "serviceaccount", "prometheus")
    reader = ("--clusterrole", installation.METRICS_READER, "--serviceaccount", "default:prometheus")
    installed.kubectl("create", "clusterrolebinding", "prometheus", *reader)
    until(lambda: installed.kubectl("auth", "can-i", "get", "/metrics", f"--as={account}").strip() == "yes")
    token = installed.kubectl("-n", "default", "create", "token", "prometheus").strip()
    text = told(health_port, "/metrics", token)
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    asked = {name for query in QUERIES.values() for name in metrics_in(query)}
    plain = {name.removesuffix(suffix) for name in asked for suffix in SUFFIXES if name.endswith(suffix)}
    assert {name for name in asked if not name.endswith(SUFFIXES)} | plain <= served
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    installed.kubectl("delete", "clusterrolebinding", "prometheus")
    installed.kubectl("-n", "default", "delete", "serviceaccount", "prometheus")


@pytest.fixture
def visible() -> Iterator[None]:
    MORE_OPTIONS.append("--visibility")
    yield
    MORE_OPTIONS.clear()


@pytest.mark.usefixtures("visible", "controller")
def test_positions_in_queues_are_an_aggregated_api(installed: ControlPlane) -> None:
    """The API server passes the request on with the user that asks; the leader answers, by that user's rights."""
    group = "visibility.kueue.x-k8s.io"
    for version in ("v1beta1", "v1beta2"):
        installed.kubectl("wait", "--for=condition=Available", f"apiservice/{version}.{group}", "--timeout=90s")
    quota = {"name": "cpu", "nominalQuota": "1"}
    resources = {"coveredResources": ["cpu"], "flavors": [{"name": "seen", "resources": [quota]}]}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}
    pods = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    own = {"namespace": "default"}
    beta = "kueue.x-k8s.io/v1beta2"
    made: list[Json] = [
        {"apiVersion": beta, "kind": "ResourceFlavor", "metadata": {"name": "seen"}},
        {
            "apiVersion": beta,
            "kind": "ClusterQueue",
            "metadata": {"name": "seen"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [resources]},
        },
        {
            "apiVersion": beta,
            "kind": "LocalQueue",
            "metadata": {"name": "seen", **own},
            "spec": {"clusterQueue": "seen"},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "seen", **own, "labels": {"kueue.x-k8s.io/queue-name": "seen"}},
            "spec": {"template": pods},
        },
    ]
    try:
        for one in made:
            installed.kubectl("create", "-f", "-", stdin=json.dumps(one))
        path = f"/apis/{group}/v1beta2/clusterqueues/seen/pendingworkloads"

        def waiting() -> list[Json]:
            found: list[Json] = json.loads(installed.kubectl("get", "--raw", path))["items"]
            return found

        until(lambda: len(waiting()) == 1)
        assert waiting()[0]["metadata"]["ownerReferences"][0]["name"] == "seen"
        with pytest.raises(RuntimeError, match="Forbidden"):
            installed.kubectl("get", "--raw", path, "--as=eve")
    finally:
        for one in reversed(made):
            installed.kubectl("delete", one["kind"].lower(), one["metadata"]["name"], "--wait=false")
