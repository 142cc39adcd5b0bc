"""The commands as a user types them: up, node, kubeconfig, down; with pods that are plain processes, no Ray."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.local.home import Home
from shoal.local.nodes.runtime.identity import start_time
from shoal.local.nodes.runtime.ownership import memory_directory
from tests.checker.at_rest import Rules
from tests.e2e import as_user, invariants
from tests.e2e.machine import judge
from tests.patience import PATIENCE
from tests.resting import hold_by

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

SHOAL = str(Path(sys.executable).with_name("shoal"))
ORDINARY = 42018


class Shell:
    """Commands in an environment of their own."""

    def __init__(self, directory: Path, launcher: tuple[str, ...] = ()) -> None:
        """`launcher` is put before every `shoal`, to run it as someone else."""
        self._launcher = launcher
        self.home = directory / "home"
        self.config = directory / "kubeconfig"
        self.directory = directory
        self.mark = f"86{random.randrange(10**8):08}"  # seconds that no other process on this machine sleeps
        self.sleeper = SLEEPER.replace("SECONDS", self.mark)
        self.environment = {**os.environ, "SHOAL_HOME": str(self.home), "KUBECONFIG": str(self.config)}
        self.environment["KUBECACHEDIR"] = str(directory / "kubectl-cache")  # another server may have had its port

    def shoal(self, *words: str, good: bool = True) -> str:
        if words[0] == "up" and "--name" in words:
            words = (*words, "--audit-log", str(self.audit_log(words[words.index("--name") + 1])))
        done = subprocess.run(
            [*self._launcher, SHOAL, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kubectl(self, *words: str, text: str = "", good: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            input=text,
            timeout=120,
            check=False,
        )
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        return done.stdout if good else done.stderr

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on beside the test."""
        return subprocess.Popen([*words], env=self.environment, stdout=subprocess.PIPE, text=True)

    def items(self, home: Home, resource: str) -> list[Any]:
        """All objects of a resource in the cluster of this home, whatever context is the current one."""
        found = self.kubectl("get", resource, "-A", "-o", "json", "--kubeconfig", str(home.kubeconfig))
        return list(json.loads(found)["items"])

    def pods_and_nodes(self, home: Home) -> tuple[list[Any], list[Any]]:
        return self.items(home, "pods"), self.items(home, "nodes")

    def audit_log(self, name: str) -> Path:
        return self.directory / f"audit-{name}.log"

    def pid(self, name: str = "test") -> int:
        return int(json.loads((self.home / name / "running.json").read_text())["pid"])


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Commands of this user, or with the parameter `ordinary` of one without any rights."""
    if getattr(request, "param", "") != "ordinary":
        yield from _used(Shell(tmp_path))
        return
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    with tempfile.TemporaryDirectory(prefix="shoal-user-", dir="/tmp") as place:
        os.chown(place, ORDINARY, ORDINARY)
        found = Shell(Path(place), (sys.executable, "-I", str(Path(as_user.__file__)), str(ORDINARY)))
        found.environment["HOME"] = place
        yield from _used(found)


def _used(found: Shell) -> Iterator[Shell]:
    yield found
    for name in sorted(os.listdir(found.home)) if found.home.exists() else ():
        home = Home(name, found.home)
        started = invariants.whole_tree(home)
        try:
            if home.running() is not None:
                invariants.hold_while_running(home, partial(found.pods_and_nodes, home))
                hold_by(home.kubeconfig, Rules())
        finally:  # what one test leaves running, the next would count as its own
            found.shoal("down", "--name", name)
        invariants.hold_afterwards(home, started)
        found.shoal("down", "--name", name, "--purge")
        assert not home.directory.exists() and not memory_directory(home.identity).exists()
        judge(found.audit_log(name))


def running(mark: str) -> list[int]:
    """Processes whose command line holds a mark that only this test uses, without the dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes() and start_time(int(entry.name)) is not None:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(look: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


SLEEPER = """
apiVersion: v1
kind: Pod
metadata: {name: sleeper}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: busybox, command: [sh, -c, "echo begun; sleep SECONDS"]}]
"""


def test_a_cluster_comes_serves_and_goes_without_a_trace(shell: Shell) -> None:
    shell.config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "contexts": [{"name": "work", "context": {}}],
                "clusters": [],
                "users": [],
                "current-context": "work",
            }
        )
    )
    said = shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=1,memory=1Gi", "--base-load", "cpu=100m")
    assert "is ready after" in said
    assert yaml.safe_load(shell.config.read_text())["current-context"] == "shoal-test"
    assert shell.shoal("kubeconfig", "--name", "test").strip() == str(shell.home / "test" / "kubeconfig")
    refused = shell.shoal("up", "--detach", "--name", "test", good=False)
    assert str(shell.pid()) in refused and "already running" in refused
    shell.shoal("node", "add", "cpu=2,memory=4Gi,name=extra", "--name", "test")
    assert shell.kubectl("get", "nodes", "-o", "name").split() == ["node/extra", "node/node-0"]
    shell.kubectl("apply", "-f", "-", text=shell.sleeper)
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
    until(lambda: shell.kubectl("logs", "sleeper") == "begun\n")
    shell.shoal("node", "remove", "extra", "--name", "test")
    shell.shoal("down", "--name", "test")
    assert running(shell.mark) == [] and running(str(shell.home)) == []
    left = yaml.safe_load(shell.config.read_text())
    assert [entry["name"] for entry in left["contexts"]] == ["work"]


def test_what_was_there_is_there_again_and_a_killed_cluster_goes_on(shell: Shell) -> None:
    shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=2,memory=2Gi,count=2")
    shell.kubectl("apply", "-f", "-", text=shell.sleeper)
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
    until(lambda: len(running(shell.mark)) == 2)  # the shell and its sleep
    before = running(shell.mark)
    os.kill(shell.pid(), signal.SIGKILL)
    until(lambda: start_time(shell.pid()) is None)
    shell.shoal("up", "--detach", "--name", "test")  # without a word about nodes: as before
    assert len(shell.kubectl("get", "nodes", "-o", "name").split()) == 2
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
    assert running(shell.mark) == before
    assert shell.kubectl("get", "pod", "sleeper", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"
    os.kill(shell.pid(), signal.SIGKILL)
    until(lambda: start_time(shell.pid()) is None)
    shell.shoal("down", "--name", "test")  # no server is there to do it: the command itself does
    assert running(shell.mark) == []


def test_a_restarted_cluster_restarts_the_pods_that_should_run(shell: Shell) -> None:
    shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=2,memory=2Gi")
    once = shell.sleeper.replace("name: sleeper", "name: once").replace("spec:", "spec:\n  restartPolicy: Never")
    shell.kubectl("apply", "-f", "-", text=f"{shell.sleeper}---{once}")
    shell.kubectl("wait", "pod/sleeper", "pod/once", "--for=condition=Ready", "--timeout=60s")
    shell.shoal("down", "--name", "test")
    assert running(shell.mark) == []
    shell.shoal("up", "--detach", "--name", "test")
    shell.kubectl("wait", "pod/once", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s")
    count = ("get", "pod", "sleeper", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
    until(lambda: shell.kubectl(*count) == "1" and running(shell.mark))


USED = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: books}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {mode: slow}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 8080, targetPort: web}]
---
apiVersion: v1
kind: Pod
metadata: {name: echo, labels: {app: echo}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: hashicorp/http-echo
    args: ["-text=hi"]
    ports: [{name: web, containerPort: 18099}]
    readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: used}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: conf, configMap: {name: settings}}, {name: data, persistentVolumeClaim: {claimName: books}}]
  containers:
  - name: c
    image: python
    command: [sh, -c, "trap 'exit 7' TERM; n=0; while true; do n=$((n+1)); echo tick $n; sleep 0.2; done"]
    volumeMounts: [{name: conf, mountPath: /conf}, {name: data, mountPath: /data}]
---
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec: {containers: [{name: c, image: busybox, command: ["true"], resources: {requests: {cpu: "64"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lost}
spec:
  containers: [{name: c, image: busybox, command: ["true"], envFrom: [{configMapRef: {name: nowhere}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: foreign}
spec: {containers: [{name: c, image: "example.org/team/special:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: broken}
spec: {restartPolicy: Never, containers: [{name: c, image: busybox, command: ["/etc/passwd"]}]}
"""


IN_CLUSTER = """
import json, os, ssl, urllib.error, urllib.request
def of(name): return open("/var/run/secrets/kubernetes.io/serviceaccount/" + name).read()
trusted = ssl.create_default_context(cadata=of("ca.crt"))
server = "https://%s:%s" % (os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
asked = urllib.request.Request(server + "/api/v1/namespaces/%s/pods" % of("namespace"))
asked.add_header("Authorization", "Bearer " + of("token"))
ways = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
try:
    answer = urllib.request.build_opener(*ways).open(asked)
except urllib.error.HTTPError as error:
    answer = error
found = json.load(answer)
print(answer.status, found.get("message") or sorted(pod["metadata"]["name"] for pod in found["items"]))
"""


@pytest.mark.parametrize(
    ("shell", "sandbox"), [("", "auto"), ("", "loopback"), ("ordinary", "auto")], indirect=["shell"]
)
def test_pods_are_used_as_kubectl_users_do(shell: Shell, tmp_path: Path, sandbox: str) -> None:
    """Exec, cp, attach, run -i, debug, logs, port-forward, a changed config map, a Service, the API from inside; and
    four pods that cannot run say why."""
    isolated = sandbox == "auto" and "netns" in shell.shoal("doctor")
    shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=4,memory=4Gi", "--sandbox", sandbox)
    shell.kubectl("apply", "-f", "-", text=USED)
    shell.kubectl("wait", "pod/used", "pod/echo", "--for=condition=Ready", "--timeout=60s")

    assert shell.kubectl("exec", "used", "--", "sh", "-c", "echo in; cat /conf/mode") == "in\nslow"
    assert "exit code 3" in shell.kubectl("exec", "used", "--", "sh", "-c", "exit 3", good=False)
    (tmp_path / "sent").write_text("there and back")
    shell.kubectl("cp", str(tmp_path / "sent"), "used:/data/file")
    assert shell.kubectl("exec", "used", "--", "cat", "/data/file") == "there and back"
    if isolated:  # where paths are mapped, tar's own names are not those that kubectl expects
        shell.kubectl("cp", "used:/data/file", str(tmp_path / "returned"))
        assert (tmp_path / "returned").read_text() == "there and back"

    assert shell.kubectl("logs", "used", "--tail=1").startswith("tick ")
    assert shell.kubectl("logs", "used", "--timestamps", "--tail=1").startswith("20")
    for words in (("logs", "-f", "used", "--tail=0"), ("attach", "used")):
        watching = shell.begin("kubectl", *words)
        assert watching.stdout is not None and "tick" in watching.stdout.readline()
        watching.kill()
        watching.wait()

    sort = ("run", "sorter", "-i", "--rm", "--restart=Never", "--image=busybox", "--", "sort")
    assert shell.kubectl(*sort, text="pears\napples\n").startswith("apples\npears\n")
    look = ("debug", "used", "-i", "--image=busybox", "--target=c", "--", "sh", "-c", "read word; echo looked $word")
    assert "looked around" in shell.kubectl(*look, text="around\n")

    forward = shell.begin("kubectl", "port-forward", "service/front", ":8080")
    assert forward.stdout is not None
    local = re.search(r"Forwarding from (127\.0\.0\.1:\d+)", forward.stdout.readline())
    assert local is not None
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{local[1]}") as answer:
        assert answer.read() == b"hi\n"
    forward.kill()
    forward.wait()
    fetch = "import os, urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open('http://front:8080').read())"
    if isolated:
        assert shell.kubectl("exec", "used", "--", "python3", "-c", fetch) == "b'hi\\n'\n"

    shell.kubectl("patch", "configmap", "settings", "-p", '{"data": {"mode": "fast"}}')
    until(lambda: shell.kubectl("exec", "used", "--", "cat", "/conf/mode") == "fast")

    inside = ("exec", "used", "--", "python3", "-c", IN_CLUSTER)
    refused = shell.kubectl(*inside)
    assert refused.startswith("403 ") and '"system:serviceaccount:default:default" cannot list' in refused
    shell.kubectl("create", "role", "look", "--verb=list", "--resource=pods")
    shell.kubectl("create", "rolebinding", "look", "--role=look", "--serviceaccount=default:default")
    assert shell.kubectl(*inside) == "200 ['broken', 'echo', 'foreign', 'huge', 'lost', 'used']\n"
    volumes = "jsonpath={.spec.volumes[*].name}"
    assert shell.kubectl("get", "pod", "used", "-o", volumes) == "conf data"  # its spec is as it was given

    assert shell.kubectl("get", "pvc", "books", "-o", "jsonpath={.status.phase}") == "Bound"
    waiting = "jsonpath={.status.containerStatuses[0].state.waiting.reason}"
    until(lambda: shell.kubectl("get", "pod", "lost", "-o", waiting) == "CreateContainerConfigError")
    until(lambda: shell.kubectl("get", "pod", "foreign", "-o", waiting) == "ErrImageNeverPull")
    for pod, words_of in (
        ("huge", "Insufficient cpu"),
        ("foreign", "--image special="),
        ("broken", "permission denied"),
    ):
        until(lambda pod=pod, words_of=words_of: words_of in shell.kubectl("describe", "pod", pod))
    assert shell.kubectl("get", "pod", "used", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"


def test_several_clusters_from_a_file_and_flags(shell: Shell, tmp_path: Path) -> None:
    """Each has its own context, nodes and pods; one goes and the other does not notice."""
    (tmp_path / "shoal.yaml").write_text(
        "nodes:\n- {cpu: 2, memory: 2Gi, name: first, labels: {disk: fast}}\nbaseLoad: {cpu: 100m, memory: 64Mi}\n"
    )
    more = ("--node", "cpu=1,memory=1Gi,name=second,taints=only=me:NoSchedule")
    shell.shoal("up", "--detach", "--name", "test", "--config", str(tmp_path / "shoal.yaml"), *more)
    pool = ("--pool", "name=pool,cpu=1,memory=1Gi,min=1,delay=0s")
    shell.shoal("up", "--detach", "--name", "other", "--node", "cpu=1,memory=1Gi", *pool)
    shell.kubectl("wait", "--for=create", "node/pool-0", "--timeout=60s", "--context", "shoal-other")
    contexts = [entry["name"] for entry in yaml.safe_load(shell.config.read_text())["contexts"]]
    assert contexts == ["shoal-test", "shoal-other"]
    nodes = shell.kubectl("get", "nodes", "-o", "name", "--context", "shoal-test").split()
    assert nodes == ["node/first", "node/second"]
    described = shell.kubectl("describe", "node", "first", "--context", "shoal-test")
    assert "disk=fast" in described and "100m (5%)" in described and "hugepages-2Mi" in described
    for context in ("shoal-test", "shoal-other"):
        shell.kubectl("apply", "-f", "-", "--context", context, text=shell.sleeper)
        shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s", "--context", context)
    shell.shoal("down", "--name", "other")
    shell.kubectl("get", "pod", "sleeper", "--context", "shoal-test")
    until(lambda: len(running(shell.mark)) == 2)  # the shell and its sleep, those of one pod
    assert [entry["name"] for entry in yaml.safe_load(shell.config.read_text())["contexts"]] == ["shoal-test"]
    shell.shoal("up", "--detach", "--name", "other", "--node", "name=fresh,cpu=1,memory=1Gi")
    nodes = shell.kubectl("get", "nodes", "-o", "name", "--context", "shoal-other").split()
    assert nodes == ["node/fresh"]  # what this start declares, not what the last one did
    until(lambda: shell.kubectl("get", "pods", "-o", "name", "--context", "shoal-other") == "")  # gone with their node


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("up", "--name", "Bad_Name"), "cluster name"),
        (("down", "--name", "absent"), "there is no cluster absent"),
        (("kubeconfig", "--name", "absent"), "shoal up --name absent"),
        (("node", "add", "cpu=1,memory=1Gi", "--name", "absent"), "is not running"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in shell.shoal(*words, good=False)


def test_doctor_says_what_the_machine_allows(shell: Shell) -> None:
    said = shell.shoal("doctor")
    for line in ("Python", "sandbox", "memory limits", "GPUs"):
        assert line in said
