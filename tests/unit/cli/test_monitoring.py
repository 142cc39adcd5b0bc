"""Every query of the dashboards and rules names metrics and labels that a running controller serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tools import monitoring

from shoal.api import kinds
from tests.cluster import Cluster
from tests.unit.cli.test_readiness import Replica, admin, running_replica
from tests.unit.queues.build import cluster_queue, counts, flavor, local_queue, make, ray_job

AGGREGATIONS = ("sum", "max", "min", "count", "by", "or", "and", "unless")
FUNCTIONS = frozenset(
    {
        *AGGREGATIONS,
        "rate",
        "increase",
        "absent",
        "histogram_quantile",
        "max_over_time",
        "min_over_time",
        "label_values",
    }
)
SUFFIXES = ("_bucket", "_count", "_sum")
OF_A_PROCESS = frozenset({"shoal_requests_total"})
"""Counted by the connection to a real server: tests/integration/test_install.py looks for it."""
ADDED_BY_PROMETHEUS = frozenset({"pod", "namespace", "job", "instance"})


def queries() -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query: of the files as they are."""
    for path in sorted(monitoring.FOLDER.glob("*.json")):
        whole = json.loads(path.read_text())
        for panel in whole["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for one in whole["templating"]["list"]:
            if one["type"] == "query":
                yield f"{path.name}: {one['name']}", one["query"]
    for group in yaml.safe_load((monitoring.FOLDER / "shoal-rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"{group['name']}: {rule['alert']}", rule["expr"]


QUERIES = dict(queries())


def metrics_in(query: str) -> dict[str, set[str]]:
    """Names of metrics in a query, each with the labels that select its series; grouping labels go to all of them."""
    selected: dict[str, set[str]] = {}
    for name, braces in re.findall(r"([a-z_]+)\{([^}]*)\}", query):
        selected.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]~?", braces))
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", query)
    grouped = {label.strip() for listed in re.findall(r"\bby\s*\(([^)]*)\)", plain) for label in listed.split(",")}
    plain = re.sub(r"\bby\s*\([^)]*\)", " ", plain)
    if plain.startswith("label_values"):
        plain, _, label = plain.partition(",")
        grouped = {label.strip(" )")}
    names = {one for one in re.findall(r"[a-z_][a-z0-9_]*", plain) if one not in FUNCTIONS}
    return {name: selected.get(name, set()) | grouped for name in names}


def test_the_files_are_up_to_date() -> None:
    kept = {path.name: path.read_text() for path in monitoring.FOLDER.iterdir()}
    assert kept == monitoring.files(), "monitoring/ is stale: run make monitoring"


def test_the_reader_of_queries_finds_names_and_labels() -> None:
    query = 'sum(rate(a_total{queue=~"$q", x!="y"}[5m])) by (le, kind) / count(b > 0) or absent(c_d)'
    assert metrics_in(query) == {"a_total": {"queue", "x", "le", "kind"}, "b": {"le", "kind"}, "c_d": {"le", "kind"}}


@pytest.mark.parametrize("place", QUERIES)
def test_brackets_close_and_every_function_is_known(place: str) -> None:
    query, open_ = QUERIES[place], list[str]()
    for sign in re.sub(r'"[^"]*"', "", query):
        if sign in "([{":
            open_.append(sign)
        elif sign in ")]}":
            assert open_ and open_.pop() + sign in ("()", "[]", "{}"), query
    assert open_ == []
    assert set(re.findall(r"([a-z_]+)\s*\(", query)) <= FUNCTIONS


async def served(replica: Replica) -> dict[str, Any]:
    """Families by the name that a query uses."""
    port = await replica.health.start(port=0)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            text = await answer.text()
    finally:
        await replica.health.stop()
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        for suffix in ("", *(SUFFIXES if family.type == "histogram" else ())):
            found[family.name + suffix + ("_total" if family.type == "counter" else "")] = family
    return found


async def test_every_query_names_what_a_controller_serves(quiet: Cluster) -> None:
    await make(quiet, flavor(), cluster_queue(), local_queue())
    async with running_replica(Replica(admin(quiet))) as replica:
        for part in ("lease", "gangs", "ray"):
            await replica.until(part, None)
        await make(quiet, ray_job("train", 2))
        await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) != (0, 0, 0))
        found = await served(replica)
    for place, query in QUERIES.items():
        for name, labels in metrics_in(query).items():
            if name in OF_A_PROCESS:
                continue
            assert name in found, f"{place}: no controller serves {name}"
            told = {label for sample in found[name].samples for label in sample.labels}
            unknown = labels - told - ADDED_BY_PROMETHEUS
            assert not found[name].samples or not unknown, f"{place}: {name} has no label {unknown}"


async def test_quota_and_usage_have_kueues_names_and_units(quiet: Cluster) -> None:
    await make(quiet, flavor(), cluster_queue(), local_queue())
    async with running_replica(Replica(admin(quiet))) as replica:
        await replica.until("gangs", None)
        found = await served(replica)
    (nominal,) = (one for one in found["kueue_cluster_queue_nominal_quota"].samples if one.labels["resource"] == "cpu")
    assert set(nominal.labels) == {"cohort", "cluster_queue", "flavor", "resource", "replica_role"}
    assert nominal.value == 4.0  # cores, not thousandths
    (limit, *_) = found["kueue_cluster_queue_borrowing_limit"].samples
    assert limit.value == float("inf")
    assert [one.value for one in found["shoal_leading"].samples] == [1.0]
