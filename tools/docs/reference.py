"""The pages of the reference that are written by a program: command line, settings, metrics.

`python -m tools.docs.reference` writes them, `--check` says which are stale. The command line comes from click, the
settings from their types (the text below a field is its description), the metrics from where they are made.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import msgspec
from tools.docs.pages import ROOT

from shoal.cli import exits
from shoal.cli.choices import cluster_settings, queue_settings, wrapper_settings
from shoal.cli.main import shoal
from shoal.controllers.ray.settings import RaySettings
from shoal.local.settings import FILE_FIELDS
from shoal.local.settings import LocalSettings as MachineSettings

HERE = ROOT / "docs" / "reference"
WRITTEN = "<!-- written by `make docs-reference`; change the source instead -->\n"


def pages() -> dict[Path, str]:
    """Every generated page, by its place."""
    return {HERE / "cli.md": command_line(), HERE / "settings.md": settings(), HERE / "metrics.md": metrics()}


# The command line


def command_line() -> str:
    parts = [
        "# Command line\n",
        WRITTEN,
        "Every command answers `--help` (`-h`). What cannot work as written is refused before anything starts, with "
        "the flag or the place in the file, and exit code 2; any other error is one line and exit code 1.\n",
    ]
    parts += ["## Exit codes\n", "| code | meaning |", "|---|---|"]
    parts += [f"| {code} | {meaning} |" for code, meaning in exits.MEANING.items()] + [""]
    for path, command in _commands(shoal, ("shoal",)):
        parts += _command(path, command)
    return "\n".join(parts)


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command, info_name=path[-1])
    if len(path) > 1:
        yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _commands(found, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> list[str]:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join([" ".join(path), *command.collect_usage_pieces(context)])
    made = [f"{'#' * len(path)} {' '.join(path)}\n", f"```text\n{usage}\n```\n"]
    made += [textwrap.fill(" ".join(part.split()), 120) + "\n" for part in (command.help or "").split("\n\n")]
    rows = [
        f"| `{_flag(one, context)}` | {_cell(_about(one, context))} |"
        for one in command.get_params(context)
        if isinstance(one, click.Option) and not one.hidden and "--help" not in one.opts
    ]
    if rows:
        made += ["| option | meaning |", "|---|---|", *rows, ""]
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("shoal ")]
    if examples:
        made += ["*Not run by the docs check: examples of the help text, held against the flags.*\n", "```bash"]
        made += [re.sub(r" {2,}(?=[a-z])", "  # ", line) for line in examples]
        made += ["```\n"]
    return made


def _flag(option: click.Option, context: click.Context) -> str:
    names = ", ".join(option.opts)
    if option.is_flag or option.count:
        return names
    value = option.make_metavar(context).strip("[]") if not option.metavar else option.metavar
    return f"{names} {value}".replace("|", "\\|")


def _about(option: click.Option, context: click.Context) -> str:
    text = option.help or ""
    plain = option.default not in (None, "", (), False) and not callable(option.default)
    if plain and option.show_default and "efault:" not in text:
        text += f" Default: `{option.default}`."
    if option.multiple:
        text += "" if "repeat" in text else " May be given more than once."
    if option.required:
        text += " Required."
    return text.strip()


# Settings


def settings() -> str:
    parts = [
        "# Settings\n",
        WRITTEN,
        "`--set NAME=VALUE` of `shoal up`, `shoal controller` and `shoal install` sets any of the first four "
        "tables; repeat it for more. A part of a setting is reached with a dot (`--set patience.retry_limit=5`), "
        "a list is written with commas (`--set queues.copied_labels=team,project`). "
        "In a configuration file of `shoal up` the same names stand under `gangs`. A name that does not exist, or "
        "a value that does not fit, is refused before anything starts.\n",
    ]
    groups = (
        ("AppWrappers and planning", "`--set NAME=VALUE`.", type(wrapper_settings({}, {})), ""),
        ("Queues", "`--set queues.NAME=VALUE`.", type(queue_settings({}, {})), "queues."),
        ("Several clusters", "`--set clusters.NAME=VALUE`.", type(cluster_settings({}, {})), "clusters."),
    )
    for title, how, struct, prefix in groups:
        parts += [f"## {title}\n", f"{how}\n", *_table(list(_fields(struct, prefix))), ""]
    parts += [
        "## Ray\n",
        "`--set ray.NAME=VALUE`, and `--set ray.feature_gates=NAME=true,…`. KubeRay's own switches are read from the "
        "environment as well, as is what begins with `SHOAL_RAY_` ([which variables there are](ray.md#settings)); "
        "sidecars, variables, labels and annotations for every Ray pod stand in the file of `SHOAL_RAY_CONFIG`.\n",
        *_table(list(_fields(RaySettings, "ray."))),
        "",
        "## One machine\n",
        "The configuration file of `shoal up --config FILE`. All but the two times have a flag, too ([shoal "
        "up](cli.md#shoal-up)); nodes and pools are written in the file as in their flags, one map each.\n",
        *_table(list(_machine())),
        "",
    ]
    return "\n".join(parts)


def _machine() -> Iterator[tuple[str, str, str, str]]:
    """As the file spells them; what no file may say is left out."""
    flags = {
        "nodes": "as `--node`; none: one node of this machine's own size",
        "pools": "as `--pool`",
        "baseLoad": "as `--base-load`",
        "images": "as `--image`, from name to target",
        "runtime": "as `--runtime`, for nodes and pools that say nothing",
        "sandbox": "as `--sandbox`",
        "supply": "as `--supply`",
        "policy": "as `--policy`",
        "preemption": "as `--preemption`",
    }
    for field in msgspec.structs.fields(MachineSettings):
        name = re.sub(r"_(.)", lambda found: found[1].upper(), field.name)
        if name in FILE_FIELDS:
            about = flags.get(name) or _descriptions(MachineSettings)[field.name]
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield name, _type(field.type), _default(default), about


NOT_CHOSEN = {
    "ray_sidecars": "read from the Ray operator's own file",
    "stamps": "follows from where the controllers run",
    "patience.terminal_exit_codes": "by annotation of each AppWrapper",
    "patience.retryable_exit_codes": "by annotation of each AppWrapper",
    "node_health.marks": "has no form on the command line",
    "queues.ray_sidecars": "read from the Ray operator's own file",
    "ray.version": "of this release",
    "ray.gates": "ray.feature_gates",
    "ray.container_env": "in the file of SHOAL_RAY_CONFIG",
    "ray.head_sidecars": "in the file of SHOAL_RAY_CONFIG",
    "ray.worker_sidecars": "in the file of SHOAL_RAY_CONFIG",
    "ray.pod_labels": "in the file of SHOAL_RAY_CONFIG",
    "ray.pod_annotations": "in the file of SHOAL_RAY_CONFIG",
}
"""Fields of the types that `--set` is not the way to, and why."""


def _fields(struct: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default, meaning; parts of a setting follow it."""
    about = _descriptions(struct)
    for field in msgspec.structs.fields(struct):
        if prefix + field.name in NOT_CHOSEN:
            continue
        inner = next((one for one in (field.type, *get_args(field.type)) if hasattr(one, "__struct_fields__")), None)
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if inner is None:
            yield f"{prefix}{field.name}", _type(field.type), _default(default), about.get(field.name, "")
            continue
        unset = default is None
        yield f"{prefix}{field.name}", "parts below", "not set" if unset else "", about.get(field.name, "")
        yield from _fields(inner, f"{prefix}{field.name}.")


def _descriptions(struct: Any) -> dict[str, str]:
    """The string that stands below a field describes it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for one in tree.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            name = one.target.id
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and name:
            found[name] = " ".join(str(one.value.value).split())
            name = ""
    return found


def _type(given: Any) -> str:
    if get_origin(given) is Annotated:
        return _type(get_args(given)[0]) + _bounds(get_args(given)[1:])
    if get_origin(given) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(given))
    options = [one for one in get_args(given) if one is not type(None)]
    if type(None) in get_args(given) and len(options) == 1:
        return _type(options[0])
    if get_origin(given) is tuple:
        return f"list of {_type(options[0])}"
    plain = {bool: "true or false", float: "number", int: "whole number", str: "text"}
    return plain.get(given) or ("map" if get_origin(given) is dict else "list")


def _bounds(metas: tuple[Any, ...]) -> str:
    found = [one for one in metas if isinstance(one, msgspec.Meta)]
    said = [f"at least {one.ge:g}" for one in found if one.ge is not None]
    said += [f"above {one.gt:g}" for one in found if one.gt is not None]
    said += [f"at most {one.le:g}" for one in found if one.le is not None and one.le < 1e9]
    return f", {', '.join(said)}" if said else ""


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"
    if isinstance(value, frozenset):
        value = tuple(sorted(value))
    if isinstance(value, tuple | list):
        return f"`{', '.join(map(str, value))}`" if value else "empty"
    return f"`{value}`" if value not in ("", {}) else "empty"


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    made = ["| name | value | default | meaning |", "|---|---|---|---|"]
    return made + [
        f"| `{name}` | {_cell(kind)} | {_cell(default)} | {_cell(about)} |" for name, kind, default, about in rows
    ]


# Metrics


_METRIC = re.compile(r"(shoal|kueue|kuberay)_[a-z_]+")


def metrics() -> str:
    parts = [
        "# Metrics\n",
        WRITTEN,
        "`shoal controller --health-port PORT` serves `/metrics` beside `/healthz` and `/readyz`; an installed "
        "controller does so on port 8081. A counter's name ends in `_total`. Metrics of queues and of Ray have "
        "the names that Kueue and KubeRay give them.\n",
        "| metric | meaning |",
        "|---|---|",
        *(f"| `{name}` | {_cell(about)} |" for name, about in sorted(metrics_of(ROOT / "src").items())),
        "",
    ]
    return "\n".join(parts)


def metrics_of(source: Path) -> dict[str, str]:
    """Every metric by name, with its help text, from the calls and the tables that make them."""
    found: dict[str, str] = {}
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"""["'](shoal|kueue|kuberay)_""", text):
            continue  # most of the source; reading it takes seconds
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.For):
                found.update(_in_loop(node))
        for node in ast.walk(tree):
            values = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
            name, about = _texts(values)
            if _METRIC.fullmatch(name) and name not in found and f"{name}_total" not in found:
                found[_counted(name, isinstance(node, ast.Call) and _makes_counter(node))] = about
    return found


def _in_loop(loop: ast.For) -> Iterator[tuple[str, str]]:
    """A table of names that a loop turns into metrics, with what the loop puts before each name."""
    made = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and _family(one).endswith("MetricFamily")]
    if not made or not isinstance(loop.iter, ast.Tuple):
        return
    first = made[0].args[0]
    parts = first.values if isinstance(first, ast.JoinedStr) else []
    prefix = next((str(one.value) for one in parts if isinstance(one, ast.Constant)), "")
    for row in loop.iter.elts:
        name, about = _texts(row.elts if isinstance(row, ast.Tuple) else [])
        if _METRIC.fullmatch(prefix + name):
            yield _counted(prefix + name, _makes_counter(made[0])), about


def _texts(values: list[ast.expr]) -> tuple[str, str]:
    """A name, and the first sentence after it."""
    texts = [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    leads = bool(values) and isinstance(values[0], ast.Constant) and isinstance(values[0].value, str)
    about = next((one for one in texts[1:] if " " in one or one.endswith(".")), "")
    return (texts[0], about) if leads and about else ("", "")


def _family(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def _makes_counter(call: ast.Call) -> bool:
    return _family(call) == "CounterMetricFamily"


def _counted(name: str, counter: bool) -> str:
    return f"{name}_total" if counter and not name.endswith("_total") else name


def _cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|") if "\\|" not in text else text


def main() -> None:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit("".join(f"{path.relative_to(ROOT)} is stale: run make docs-reference\n" for path in stale) or 0)
    for path in stale:
        path.write_text(pages()[path])
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
