"""`shoal why NAME`: why a gang runs or waits, and what would help.

Asks the controller and prints its answer; works nothing out. Without an answer it prints what is stored on the gang:
there, gangs of other namespaces are by UID only; they are named to those who may read them, and counted for all others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from shoal.api.times import parse_time, seconds_text
from shoal.cli import show
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, output_option, reach
from shoal.kube.clock import SystemClock
from shoal.sdk.consumers import quota_consumers
from shoal.sdk.explaining import explain_to, searched_kinds

HELD = ("inactive", "suspended")
"""How a gang stands that `shoal hold`, or the same by another hand, keeps from running."""
QUOTA_WORDS = ("quotasubtree", "quotasubtrees", "quotasubtree.quota.codeflare.dev")
NO_PLACE = ("bad-fact", "clusters")
"""Kinds of shortfalls that are about a gang alone, or tell of every cluster themselves."""


@click.command(
    epilog="\b\nExamples:\n  shoal why train --fresh\n  shoal why aw/train -n team-a -o json\n  shoal why rayjob/tune\n"
    "  shoal why workload/bare\n  shoal why pod/train-head\n  shoal why quotasubtree/team-root"
)
@gang_argument
@namespace_option
@click.option(
    "--fresh", is_flag=True, help="Answer only after the controller has seen everything stored before this question."
)
@output_option
@cluster_options
def command(
    gang: str,
    namespace: str,
    fresh: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Say why a gang runs or waits: what is short, by how much and where, which gangs hold it, what would help; of one
    that has ended, how, when, after how long, and its last lines.

    Every kind that can wait may be asked about: AppWrappers, Ray kinds and Jobs with or without a queue, JobSets, pods,
    bare Workloads, and any other kind that a queue holds.

    Of a QuotaSubtree: which gangs are charged at its nodes, by name as far as you may read them.

    The leading controller is asked (a Question, which it removes after a minute). Where it does not answer, or you may
    not create one, this is what was stored last, and says how old that is.
    """
    word, _, wanted = gang.rpartition("/")
    if word.lower() in QUOTA_WORDS:
        used = asyncio.run(_consumers(wanted, namespace, fresh, (kubeconfig, context, name)))
        _print_consumers(used) if output == "table" else show.document(used, output)
        return
    told = asyncio.run(_explain(word, wanted, namespace, fresh, (kubeconfig, context, name)))
    if output == "table":
        _print(told)
    else:
        show.document(told, output)


async def _explain(word: str, name: str, namespace: str, fresh: bool, where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        searched = await searched_kinds(client, word, namespace, all_kinds=True)
        return await explain_to(client, searched, name, namespace, fresh=fresh)


async def _consumers(name: str, namespace: str, fresh: bool, where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        return await quota_consumers(client, name, namespace, fresh=fresh)


def _print_consumers(told: dict[str, Any]) -> None:
    _say(f"{told['kind']} {told['namespace']}/{told['name']}", bold=True)
    unreadable = "that you may not read" if told["namedBy"] != "Namespace" else "of other namespaces"
    for one in told["consumers"]:
        if one.get("gangs") or one.get("hidden"):
            _say_gangs(f"{one['node']}: used by", one, "gangs", "hidden", "more", unreadable)
        else:
            _say(f"  {one['node']}: not used")


def _print(told: dict[str, Any]) -> None:
    now = SystemClock().now()
    name = f"{told['kind']} {told['namespace']}/{told['name']}"
    _say(f"{name} {_standing(told, now)}", bold=True)
    if told.get("cluster"):
        _say(f"  in cluster {told['cluster']}")
    if told.get("pods"):
        _say("  pods: " + ", ".join(f"{count} {what}" for what, count in told["pods"].items()))
    if told.get("nodes"):
        nodes = (f"{node} (pods: {count})" for node, count in told["nodes"].items())
        _say("  planned at admission on " + ", ".join(nodes))
    if told.get("quota"):
        _say("  quota from " + ", ".join(f"{tree}/{node}" for tree, node in told["quota"].items()))
    if told.get("message") and not told.get("shortfalls") and not told.get("pendingPods"):
        _say(f"  {told['message']}")
    if told["state"] in HELD and told.get("reason") != "Misconfigured":
        _say(f"  `shoal release {told['kind'].lower()}/{told['name']}` lets it run")
    for shortfall in told.get("shortfalls") or ():
        _say(f"  short: {_short(shortfall)}")
    for pod in told.get("pendingPods") or ():
        _say(f"  pod {pod['name']}: {pod['message']}")
    if told.get("position"):
        _say(f"  {_position(told)}{_as_of(told, now)}")
    if told.get("estimate"):
        _say(f"  {when(told['estimate'], now)}")
    unreadable = "that you may not read" if told.get("namedBy") != "Namespace" else "of other namespaces"
    _say_gangs("held by", told, "holders", "holdersNotShown", "moreHolders", unreadable)
    _say_gangs("would start if these ended:", told, "release", "releaseNotShown", "moreRelease", unreadable)
    for line in _helps(told):
        _say(f"  {line}")
    if told.get("clusterTooSmall"):
        _say("  cannot start even on an empty cluster: its nodes are too small or too few; add larger nodes, or more")
    if told.get("resumeAt") and parse_time(told["resumeAt"]) > now:
        seconds = (parse_time(told["resumeAt"]) - now) // 1_000_000
        said = f"{told['setbacks']} starts failed" if told["setbacks"] else "the last start failed"
        _say(f"  {said}; tried again in {seconds} s")
    for words in told.get("lastLines") or ():
        _say(f"  last lines of {words['of']}:")
        for line in words["lines"]:
            _say(f"    {line}")
    if told.get("notAnswered"):
        stored = told.get("explainedAt") or told.get("storedAt")
        age = f", written {show.age(parse_time(stored), now)} ago" if stored else ""
        click.echo(show.harmless(f"this is what is stored{age}: {told['notAnswered']}"), err=True)


def _standing(told: dict[str, Any], now: int) -> str:
    """How it stands since when; of one that has ended, how, when, and after how long."""
    since = parse_time(told.get("endedAt") or told["since"])
    at = f"{seconds_text(since)} ({show.age(since, now)} ago)"
    if not told.get("outcome"):
        return f"has been {told['state']} since {at}"
    ran = f", after it ran for {show.length(told['ranSeconds'])}" if "ranSeconds" in told else ""
    code = f" with exit code {told['exitCode']}" if told.get("exitCode") else ""
    return f"{told['outcome']}{code} at {at}{ran}"


def when(estimate: dict[str, Any], now: int) -> str:
    """When it would start, and what that is from."""
    if not estimate.get("at"):
        return f"when it starts is {estimate.get('message') or 'unknown'}"
    at = parse_time(estimate["at"])
    return f"starts from about {estimate['at']} (in {show.age(now, max(at, now))}), {estimate.get('message', '')}"


def _helps(told: dict[str, Any]) -> list[str]:
    """What would let it start, one line each: at one place, by new nodes, or by several things together."""
    found = []
    increase, nodes, together = told.get("leastIncrease"), told.get("newNodes"), told.get("together")
    if increase and increase["place"] != "nodes":
        found.append(f"would start with {_quota(increase)}")
    elif increase and not nodes:
        found.append(f"would start with one more node that has free: {_amounts(increase)}")
    if nodes:
        found.append(f"would start with {_new_nodes(nodes)}")
    if together:
        parts = [_quota(one) for one in together.get("quotas") or ()]
        parts += [_new_nodes(together["nodes"])] if together.get("nodes") else []
        found.append(f"would start with {' and '.join(parts)}")
    if told.get("startsByItself"):
        found.append("starts by itself: all that it waits for is on its way")
    return found


def _quota(increase: dict[str, Any]) -> str:
    return f"more quota at {increase['place']}: {_amounts(increase)}"


def _new_nodes(nodes: dict[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in (nodes.get("labels") or {}).items())
    count = nodes.get("count", 1)
    many = "one more node that has" if count == 1 else f"{count} more nodes that each have"
    return f"{many} free: {_amounts(nodes)}" + (f" (labels {labels})" if labels else "")


def _amounts(increase: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in (increase.get("amounts") or {}).items())


def _position(told: dict[str, Any]) -> str:
    where = f" in ClusterQueue {told['clusterQueue']}" if told.get("clusterQueue") else ""
    text = f"position {told['position']} of {told['queueLength']}{where}"
    if told.get("localPosition") and (told.get("localQueue") or told["localQueueLength"] != told["queueLength"]):
        mine = f"LocalQueue {told['localQueue']}" if told.get("localQueue") else "this namespace"
        text += f", {told['localPosition']} of {told['localQueueLength']} in {mine}"
    return text


def _as_of(told: dict[str, Any], now: int) -> str:
    """How old a stored position is; an answer is of this moment."""
    if "reason" in told or not told.get("explainedAt"):
        return ""
    return f", as of {show.age(parse_time(told['explainedAt']), now)} ago"


def _say_gangs(label: str, told: dict[str, Any], listed: str, hidden: str, more: str, unreadable: str) -> None:
    names, unnamed, further = told.get(listed) or [], told.get(hidden) or 0, told.get(more) or 0
    parts = [", ".join(names)] if names else []
    if unnamed:
        parts.append(f"{unnamed} {'more ' if names else ''}gang{'s' if unnamed > 1 else ''} {unreadable}")
    if further:
        parts.append(f"{further} more")
    if parts:
        _say(f"  {label} " + " and ".join(parts))


def _say(text: str, *, bold: bool = False) -> None:
    """Styles are for terminals only; click drops them elsewhere."""
    text = show.sized(show.harmless(text))
    click.echo(click.style(text, bold=bold) if bold else text)


def _short(shortfall: dict[str, Any]) -> str:
    text = str(shortfall.get("message") or shortfall["kind"])
    if not shortfall.get("message") and shortfall.get("needed"):
        text = f"{shortfall['needed']} needed, {shortfall.get('available') or 0} unused"
    if shortfall.get("resource"):
        text = f"{shortfall['missing']} {shortfall['resource']} ({text})"
    place = shortfall.get("place") if shortfall["kind"] not in NO_PLACE else ""
    return f"{text} at {place}" if place and place not in text else text
