"""`shoal submit`: a manifest, or a command with a few flags, from this terminal to its last line of log.

It creates the gang, waits as long as it takes with the live reason, passes the driver's log on, and ends with the
driver's exit code. Ctrl-C leaves the gang alone. Ray is not needed here. Whether it would start is asked, not guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from shoal.api import kinds, manifests
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import exits, show, spellings, telling
from shoal.cli.at_fault import in_file, in_flags
from shoal.cli.reach import cluster_options, namespace_option, reach
from shoal.cli.spellings import spelling_options
from shoal.cli.submit_shapes import filled, job_shape, marked, marks_of, read_file
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.sdk import asking, following, logs, packing, shapes, submitting

EXAMPLES = """\b
Examples:
  shoal submit job.yaml
  shoal submit job.yaml --queue team-a --notify https://hooks.example.com/shoal/
  shoal submit --queue team-a --workers 2 --worker-gpu 1 -- python train.py --epochs 3
  shoal submit --working-dir . --runtime-env-json '{"pip": ["torch"]}' -- python train.py
  shoal submit --check --queue team-a --workers 8 -- python train.py
  shoal submit --no-wait --job-name tune -- python tune.py
"""


DRY_RUN, CHECK = "dry-run", "check"
AtFault = Callable[[int, Json], list[str]]
"""Where the object of this number asks for what it can never get, by the controller's answer."""
AFTER_DASHES = "shoal.submit.after_dashes"


class SubmitCommand(click.Command):
    """Remembers whether there was a `--`: `submit -- job.yaml` runs a command of that name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[AFTER_DASHES] = "--" in args
        return super().parse_args(ctx, args)


def _pairs(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return _read_pairs(values)


def _pair_lists(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Of labels, whose values have no commas: several may be given at once, as `kubectl ray` takes them."""
    return _read_pairs([part for text in values for part in text.split(",")])


def _read_pairs(values: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r}: write NAME=VALUE")
        found[name] = value
    return found


def _json(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    import json

    try:
        found = json.loads(value) if value else {}
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter('must be a JSON object, such as {"pip": ["torch"]}')
    return found


@click.command(cls=SubmitCommand, epilog=EXAMPLES)
@click.argument("words", metavar="FILE | -- COMMAND", nargs=-1, type=click.UNPROCESSED)
@click.option("-f", "--filename", type=click.Path(path_type=Path), help="A manifest, as FILE.")
@click.option("--queue", default="", help="LocalQueue of the namespace.")
@click.option("--priority", default="", help="A WorkloadPriorityClass.")
@click.option("--job-name", default="", help="Default: from the script, with a few letters that make it new.")
@click.option("--workers", "--worker-replicas", type=click.IntRange(0), default=1, show_default=True)
@click.option("--worker-cpu", default="1", show_default=True)
@click.option("--worker-memory", default="2Gi", show_default=True)
@click.option("--worker-gpu", default="0", show_default=True)
@click.option("--head-cpu", default="1", show_default=True)
@click.option("--head-memory", default="2Gi", show_default=True)
@click.option("--head-gpu", default="0", show_default=True)
@click.option("--image", default="", help=f"Default: rayproject/ray of --ray-version, or {shapes.RAY_VERSION}.")
@click.option("--ray-version", default="", help=f"Default: {shapes.RAY_VERSION}.")
@click.option(
    "--working-dir",
    help="A folder that is packed (.gitignore and .rayignore count, 10 MB at most) and travels with the job, or an "
    "address such as s3://…. Default: this folder, where the command names a file of it.",
)
@click.option("--runtime-env-json", callback=_json, help="Ray's runtime environment.")
@click.option("--runtime-env", type=click.Path(path_type=Path), help="The same from a YAML file.")
@click.option(
    "--env", "environment", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="Variable of all pods."
)
@click.option("--node-selector", multiple=True, callback=_pair_lists, metavar="NAME=VALUE", help="Label of its nodes.")
@click.option(
    "--head-node-selectors", multiple=True, callback=_pair_lists, metavar="NAME=VALUE", help="Of the head's node alone."
)
@click.option(
    "--worker-node-selectors", multiple=True, callback=_pair_lists, metavar="NAME=VALUE", help="Of the workers' nodes."
)
@click.option(
    "-l", "--label", "--labels", multiple=True, callback=_pair_lists, metavar="NAME=VALUE", help="Label of the job."
)
@click.option("--metadata-json", callback=_json, help="Ray's metadata of the job.")
@click.option("--submission-id", "--job-id", default="", help="Ray's id of the job.")
@click.option("--entrypoint-num-cpus", "--entrypoint-cpu", type=float, default=0.0, help="For the driver itself.")
@click.option("--entrypoint-num-gpus", "--entrypoint-gpu", type=float, default=0.0)
@click.option("--entrypoint-resources", "--entrypoint-resource", callback=_json)
@click.option("--time-limit", type=click.IntRange(0), default=0, metavar="SECONDS", help="The job fails after so long.")
@click.option("--keep-cluster", is_flag=True, help="Keep the Ray cluster after the job has ended.")
@click.option("--ttl-seconds-after-finished", type=click.IntRange(0), default=0)
@click.option("--backoff-limit", type=click.IntRange(0), default=0, help="How often a failed job is tried again.")
@click.option("--notify", default="", metavar="URL", help="Gets a notice when it starts, ends or is preempted.")
@click.option("--no-wait", is_flag=True, help="Return once it is created.")
@click.option("--check", is_flag=True, help="Ask the controller whether it would start now, and create nothing.")
@click.option("--dry-run", is_flag=True, help="Print the manifest and create nothing.")
@spelling_options
@namespace_option
@cluster_options
def command(words: tuple[str, ...], filename: Path | None, **options: Any) -> None:
    """Submit a manifest, or a command as a Ray job; wait for it, print its log, end with its exit code.

    A command becomes a RayJob with a Ray cluster of its own, which goes when the job has ended. With -f as well it is
    run in the Ray cluster that the manifest's RayJob describes. Ctrl-C detaches: the gang goes on.

    Flags of `ray job submit` and `kubectl ray job submit` are understood, but for --name, which means a cluster here:
    write --job-name.
    """
    where = (options["kubeconfig"], options["context"], options["name"])
    namespace, wait = options["namespace"], not options["no_wait"]
    created: list[tuple[Kind, str]] = []
    try:
        spellings.refuse(options)
        _check_name(options["name"])
        file = filename or _file(words)
        if file is not None and (filename is not None and words):
            job, directory = filled(file, words, options)
            work = _submit_job(
                job, directory, namespace, wait, _before(options), where, created,
                lambda _, answer: in_file(read_file(file), str(file), 0, job, answer),
            )  # fmt: skip
        elif file is not None:
            marks = marks_of(options)
            work = _submit_file(file, marks, namespace, wait, _before(options), where, created)
        else:
            shape, directory = job_shape(words, options)
            job = shapes.ray_job(shape, namespace)
            work = _submit_job(
                job, directory, namespace, wait, _before(options), where, created,
                lambda _, answer: in_flags(job, answer),
            )  # fmt: skip
        code = telling.run(work, lambda: _again(created, where, namespace))
    except BadInput as error:
        raise click.UsageError(str(error)) from None
    sys.exit(code)


def _check_name(cluster: str | None) -> None:
    """`kubectl ray` gives the job's name with --name."""
    from shoal.local.home import Home

    if cluster is not None and not Home(cluster).kubeconfig.exists():
        raise BadInput(f"--name: there is no cluster {cluster} on this machine; the name of a job is --job-name")


def _again(created: list[tuple[Kind, str]], where: tuple[Any, ...], namespace: str) -> str:
    """What to type to come back."""
    flags, lines = telling.where_words(where, namespace), []
    for kind, name in created:
        gang = f"{kind.kind.lower()}/{name}{flags}"
        lines += [f"it goes on; attach again with: shoal logs -f {gang}", f"or stop it with: shoal stop {gang}"]
    return "\n".join(lines)


def _file(words: tuple[str, ...]) -> Path | None:
    """The manifest that a single word names; what stands after -- is a command."""
    after_dashes = click.get_current_context().meta.get(AFTER_DASHES)
    if len(words) == 1 and not after_dashes and (words[0] == "-" or words[0].endswith((".yaml", ".yml", ".json"))):
        return Path(words[0])
    return None


async def _submit_job(
    job: Json,
    directory: Path | None,
    namespace: str,
    wait: bool,
    before: str,
    where: tuple[Any, ...],
    created: list[tuple[Kind, str]],
    at_fault: AtFault,
) -> int:
    archive = packing.pack(directory) if directory is not None else b""
    if before:
        names = [one["metadata"]["name"] for one in submitting.secrets_of(job["metadata"]["name"], archive)]
        whole = submitting.with_code(job, names) if archive else job
        if before == DRY_RUN:
            show.document(whole, "yaml")
            return exits.DONE
        async with reach(*where) as client:
            return await plan(client, [(kinds.RAY_JOB, whole)], namespace, at_fault)
    async with reach(*where) as client:
        if archive:
            made = await submitting.create_with_code(client, job, archive)
        else:
            made = await submitting.create(client, kinds.RAY_JOB, job, namespace)
        created.append((kinds.RAY_JOB, made["metadata"]["name"]))
        _say_created(kinds.RAY_JOB, made, wait)
        return await attend(client, kinds.RAY_JOB, made) if wait else exits.DONE


async def _submit_file(
    file: Path, marks: Json, namespace: str, wait: bool, before: str, where: tuple[Any, ...],
    created: list[tuple[Kind, str]],
) -> int:  # fmt: skip
    source = "standard input" if str(file) == "-" else str(file)
    text = read_file(file)
    objects = manifests.read(text, source)
    if not objects:
        raise BadInput(f"{source} holds no object")
    if before == DRY_RUN:
        for obj in objects:
            show.document(obj, "yaml")
        return exits.DONE
    followed: list[tuple[Kind, Json]] = []
    async with reach(*where) as client:
        kinds_of = [await submitting.kind_of(client, obj, source) for obj in objects]
        found = [
            (kind, marked(obj, marks) if submitting.is_gang(kind) else obj)
            for kind, obj in zip(kinds_of, objects, strict=True)
        ]
        if before == CHECK:
            return await plan(
                client, found, namespace,
                lambda number, answer: in_file(text, source, number, objects[number], answer),
            )  # fmt: skip
        for kind, obj in found:
            made = await submitting.create(client, kind, obj, namespace)
            _say_created(kind, made, wait)
            if submitting.is_gang(kind):
                followed.append((kind, made))
                created.append((kind, made["metadata"]["name"]))
        if not wait or not followed:
            return exits.DONE
        if len(followed) == 1:
            return await attend(client, *followed[0])
        return await _until_all_end(client, followed)


def _before(options: dict[str, Any]) -> str:
    """What stops before anything is created; empty where nothing does."""
    return DRY_RUN if options["dry_run"] else CHECK if options["check"] else ""


async def plan(client: Client, found: list[tuple[Kind, Json]], namespace: str, at_fault: AtFault) -> int:
    """The server's own validation, then the controller's word on each gang; the worst of them is the exit code. Of one
    that can never run, what it was given to ask for too much: `at_fault` knows where that is written."""
    codes = [exits.DONE]
    for number, (kind, obj) in enumerate(found):
        judged = await submitting.create(client, kind, obj, namespace, dry_run=True)
        if not submitting.is_gang(kind):
            continue
        where = judged["metadata"].get("namespace") or namespace
        judged["metadata"].pop("managedFields", None)
        try:
            answer = await asking.would_start(client, judged, where)
        except asking.NoAnswer as error:
            raise ShoalError(f"whether it would start is not known: {error}") from None
        code, words = verdict(answer)
        click.echo(show.harmless(f"{kind.kind} {judged['metadata']['name']} {words}"))
        for line in at_fault(number, answer) if code == exits.NEVER else ():
            click.echo(show.harmless(f"  {line}"))
        codes.append(code)
    return max(codes)


def verdict(answer: Json) -> tuple[int, str]:
    """Exit code and sentence of an answer."""
    message, position = str(answer.get("message") or ""), int(answer.get("position") or 0)
    match answer.get("verdict"):
        case "Starts":
            return exits.DONE, "starts now"
        case "Never":
            return exits.NEVER, f"can never run: {message}"
        case "Waits":
            behind = f" behind {position - 1}" if position > 1 else ""
            estimate = answer.get("estimate") or {}
            soon = f", from about {estimate['at']} ({estimate.get('message', '')})" if estimate.get("at") else ""
            unknown = f"; when it starts is {estimate['message']}" if estimate and not soon else ""
            return exits.WAITS, f"waits{behind}{soon}: {message}{unknown}"
    raise ShoalError(f"whether it would start is not known: {message or 'the controller gives no verdict'}")


async def attend(client: Client, kind: Kind, obj: Json) -> int:
    """Wait for a gang and pass its log on; its exit code. A kind without a log is followed to its end."""
    writer = telling.LogWriter()
    try:
        view = await logs.follow(client, kind, obj, telling.change, writer.write)
    except ShoalError as error:
        click.echo(show.harmless(f"no log: {error}"), err=True)
        async for view in following.follow(client, kind, obj):
            telling.change(view)
    finally:
        writer.close()
    return exits.of(view)


async def _until_all_end(client: Client, followed: list[tuple[Kind, Json]]) -> int:
    """Several gangs: their changes, no logs; the worst exit code."""
    import asyncio

    async def one(kind: Kind, obj: Json) -> int:
        async for view in following.follow(client, kind, obj):
            telling.change(view)
        return exits.of(view)

    return max(await asyncio.gather(*(one(*gang) for gang in followed)))


def _say_created(kind: Kind, made: Json, wait: bool) -> None:
    """On standard output where no log follows there."""
    metadata = made["metadata"]
    where = f" in namespace {metadata['namespace']}" if metadata.get("namespace") else ""
    click.echo(show.harmless(f"{kind.kind} {metadata['name']} created{where}"), err=wait)
