"""What a user may write about a cluster, by flag or file, and how what cannot work is refused: before anything starts,
with the flag, the place in the file and the words at fault, and exit code 2."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from shoal.cli import down, up
from shoal.cli.cluster import LocalCluster
from shoal.cli.main import shoal
from shoal.errors import BadInput, ShoalError
from shoal.local import kubeconfigs
from shoal.local.apiserver import Server
from shoal.local.home import Home
from shoal.local.settings import LocalSettings, read_file
from tests.faults import proven


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("shoal.cli.up.asyncio.run", lambda work: pytest.fail("a cluster was started"))


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--node", "cpu=1,memory=1Gi,cout=2", "there is no field 'cout'"),
        ("--node", "cpu=1,memory=1Gx", "memory: '1Gx' is not a quantity"),
        ("--node", "cpu=1", "memory is missing"),
        ("--node", "cpu=1,memory=1Gi,count=none", "count is 'none'; write a whole number from 1"),
        ("--node", "cpu=1,memory=1Gi,name=Big_Node", "name 'Big_Node': a lowercase RFC 1123 subdomain"),
        ("--node", "cpu=1,memory=1Gi,labels=a b=c", "label 'a b=c': name part must consist of"),
        ("--node", "cpu=1,memory=1Gi,taints=k=v:Never", "taint 'k=v:Never' must read key=value:NoSchedule"),
        ("--pool", "cpu=1,memory=1Gi", "a pool needs a name"),
        ("--pool", "name=a,cpu=1,memory=1Gi,delay=soon", "delay 'soon' is not a duration"),
        ("--pool", "name=a,cpu=1,memory=1Gi,min=3,max=1", "max=1 is below min=3"),
        ("--base-load", "cpu=lots", "cpu: 'lots' is not a quantity"),
        ("--base-load", "limits.cores=1", "there is no field 'cores'"),
        ("--base-load", "cpu=100k", "cpu=100k is more than the first node offers"),
        ("--name", "My Cluster", "must be lower-case letters, digits and dashes"),
        ("--config", "/nonexistent/cluster.yaml", "No such file or directory"),
        ("--port", "70000", "is not in the range"),
        ("--policy", "astrology", "policy 'astrology' is unknown; use one of fifo"),
        ("--image", "glue", "must read name=target"),
        (
            "--image",
            "glue=bar",
            "unknown image 'bar'; name a Python environment, with a / in its path, or one of alpine",
        ),
        ("--set", "bind_secs=3", "bind_secs: there is no such setting"),
    ],
)
def test_a_bad_flag_is_named_and_ends_with_2(flag: str, text: str, words: str) -> None:
    done = CliRunner().invoke(shoal, ["up", flag, text])
    assert done.exit_code == 2, done.output
    assert f"Invalid value for '{flag}'" in done.output
    assert words in done.output


def test_a_base_load_needs_a_node() -> None:
    pool = ["--pool", "name=a,cpu=1,memory=1Gi"]
    done = CliRunner().invoke(shoal, ["up", *pool, "--base-load", "cpu=1"])
    assert done.exit_code == 2 and "there is no node to put the base load on" in done.output


def test_two_of_one_name_are_refused() -> None:
    pool = ["--pool", "name=a,cpu=1,memory=1Gi"]
    done = CliRunner().invoke(shoal, ["up", *pool, *pool])
    assert done.exit_code == 2 and "two pools are called a" in done.output
    node = ["--node", "name=a,cpu=1,memory=1Gi"]
    done = CliRunner().invoke(shoal, ["up", *node, *node])
    assert done.exit_code == 2 and "two nodes are called a" in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1", r"is not YAML: while parsing a flow sequence: see line 1, column 1: \[1 \^ expected"),
        ("just words", "must hold a mapping with baseLoad, "),
        ("1: 2", "unknown field '1'; there are baseLoad"),
        ("nodes: 3", "nodes must be a list"),
        ("nodes: [{cpu: 1, memory: 1Gi}, 3]", r"nodes\[1\]: 3 must be text such as"),
        ("nodes: [{cpu: 1, memory: 1Gb}]", r"nodes\[0\]: memory: '1Gb' is not a quantity"),
        ("nodes: [{cpu: 1, memory: [1Gi]}]", r"nodes\[0\]: memory must be a plain value"),
        ("nodes: [{cpu: 1, memory: 1Gi, taints: [{key: k}]}]", r"nodes\[0\]: taint \{'key': 'k'\} must read"),
        ("nodes: [{cpu: 1, memory: 1Gi, name: a}, 'cpu=1,memory=1Gi,name=a']", "two nodes are called a"),
        ("pools: {name: a}", "pools must be a list"),
        ("pools: [{cpu: 1, memory: 1Gi}]", r"pools\[0\]: a pool needs a name"),
        ("baseLoad: 3", "baseLoad: 3 must be text"),
        ("images: [a]", "images must be a mapping"),
        ("images: {a: 7}", "images: image mapping 'a=7': unknown image '7'"),
        ("images: {a: /nonexistent}", "images: image mapping 'a=/nonexistent': /nonexistent is not a directory"),
        ("gangs: [1]", "gangs must be a mapping"),
        ("sandbox: chroot", "sandbox is 'chroot'; choose from auto, netns, mounts, loopback"),
        ("runtime: docker", "runtime is 'docker'; choose from process, simulated"),
        ("durability: some", "durability is 'some'; choose from full, normal"),
        ("supply: [fit]", r"supply is \['fit'\]; choose from fit, aggregate"),
        ("preemption: 'no'", "preemption is 'no'; write true or false"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_file(file)


def test_a_file_may_write_what_kubernetes_writes(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "nodes: [{cpu: 0.5, memory: 1Gi, hugepages-2Mi: 0, labels: {spot: true, size: 3}, "
        "taints: [{key: k, value: v, effect: NoSchedule}, {key: spot, effect: NoExecute}]}]"
    )
    (node,) = read_file(file).nodes
    assert node.labels == {"spot": "true", "size": "3"}
    assert node.taints == (
        {"key": "k", "value": "v", "effect": "NoSchedule"},
        {"key": "spot", "effect": "NoExecute"},
    )


def test_settings_of_gangs_in_a_file_are_looked_at_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("gangs: {bind_secs: 3}")
    done = CliRunner().invoke(shoal, ["up", "--config", str(file)])
    assert done.exit_code == 2 and "bind_secs: there is no such setting" in done.output


def test_a_node_to_add_is_looked_at_before_the_cluster() -> None:
    done = CliRunner().invoke(shoal, ["node", "add", "cpu=1,memory=1Gi,cuont=2"])
    assert done.exit_code == 2 and "there is no field 'cuont'" in done.output


def test_an_agents_address_is_one() -> None:
    done = CliRunner().invoke(shoal, ["node", "--kubeconfig", "x", "--address", "10.0.0.999"])
    assert done.exit_code == 2 and "'10.0.0.999' is no IP address" in done.output


def test_a_place_that_cannot_keep_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ShoalError, match=f"state cannot be kept in {tmp_path}/file/local: Not a directory; name another"
    ):
        shoal(["up", "--node", "cpu=1,memory=1Gi"], standalone_mode=False)


async def test_a_start_that_comes_second_takes_nothing_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two were typed at once: one has the state, the other fails and leaves the first as it is."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    home = Home("twice", tmp_path)
    home.create()
    first = Server(home.api)
    await first.start()
    for changes_this_process in ("quiet_environment", "spare_descriptors"):
        monkeypatch.setattr(f"shoal.cli.cluster.{changes_this_process}", lambda: None)
    try:
        await first.serve()
        first.write_kubeconfig(home.kubeconfig, context=home.context)
        kubeconfigs.add(home.kubeconfig, home.context)
        home.write_running(ready=True)
        before = (tmp_path / "kubeconfig").read_text()
        with pytest.raises(ShoalError, match="is in use by process"):
            await up._run(home, LocalSettings(), 0, no_kubeconfig=False)
        assert home.running() is not None and (tmp_path / "kubeconfig").read_text() == before
    finally:
        await first.stop()


async def test_a_cluster_that_is_starting_is_stopped_when_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods are not ended under its hands."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setattr(down, "PATIENCE", 0.3)
    monkeypatch.setattr(down, "remove_all", lambda home: pytest.fail("pods of a cluster that starts were ended"))
    home = Home("early", tmp_path)
    home.create()
    first = Server(home.api)
    await first.start()
    try:
        with pytest.raises(ShoalError, match=r"cluster early neither starts nor stops: .* is in use by process"):
            await asyncio.to_thread(shoal, ["down", "--name", "early"], standalone_mode=False)
    finally:
        await first.stop()


def comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Home, "note_removed", lambda self, name: None)


@proven(without=comes_back)
@pytest.mark.parametrize("nodes", [("cpu=2,memory=1Gi,name=a", "cpu=2,memory=1Gi,name=b"), ()])
def test_f161_a_node_that_was_removed_stays_away_until_nodes_are_declared_again(
    nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F161: a declared node is removed by hand, and the cluster is started again without a word about nodes. Holds: it
    stays removed; it is back once nodes are declared again."""
    started: list[LocalSettings] = []
    monkeypatch.setattr(up, "_warn_if_larger", started.append)
    monkeypatch.setattr(up, "_run", lambda *given, **more: None)
    monkeypatch.setattr("shoal.cli.up.asyncio.run", lambda work: None)
    home = Home("again")
    declared = [part for text in nodes for part in ("--node", text)]

    def start(*words: str) -> list[str]:
        found = CliRunner().invoke(shoal, ["up", "--name", "again", "--no-kubeconfig", *words])
        assert found.exit_code == 0, found.output
        home.remember(settings=msgspec.to_builtins(started[-1]))
        return [shape.name for shape in LocalCluster(home, started[-1])._nodes()]

    first, *others = start(*declared)
    home.note_removed(first)
    home.note_removed("added-later")
    assert start() == others
    assert start() == others
    assert start(*(declared or ["--node", "cpu=2,memory=1Gi,name=node-0"])) == [first, *others]
