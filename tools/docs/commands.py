"""Is this command line one that a reader could type? Judged without running it.

Of `shoal` every command and flag is held against click; of `make` the target; of `kubectl` the verb and the files; of
`python` the file or module; of `pip install` the extras. Words in capitals, `…` and `$NAME` stand for the reader's own.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from itertools import pairwise

import click
from tools.docs.pages import ROOT

from shoal.cli.main import shoal

VERBS = frozenset(
    re.findall(
        r"\S+",
        "apply create get describe delete wait logs exec cp attach port-forward label annotate patch scale config auth "
        "api-resources explain edit top cordon uncordon drain rollout run version debug diff",
    )
)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ENVIRONMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_OWN = re.compile(r"…|\$|<|^[A-Z][A-Z0-9_/.:-]*$")


def problems(text: str) -> list[str]:
    """What is wrong with a command as a page shows it; empty when nothing is."""
    first, _, heredoc = text.replace("\\\n", " ").partition("\n")
    found: list[str] = []
    for inner in _SUBSTITUTION.findall(first):
        found += problems(inner)
    plain = _SUBSTITUTION.sub("SUBSTITUTED", first)
    del heredoc  # manifests in here-documents are applied when the page runs
    try:
        parts = _pieces(plain)
    except ValueError as error:
        return [*found, f"a shell cannot read this: {error}"]
    for words in parts:
        found += _one(words)
    return found


def _pieces(text: str) -> list[list[str]]:
    """The simple commands of a line, without assignments in front and redirections behind."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    pieces: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if word.startswith("#"):
            break
        if set(word) <= set("|&;"):
            pieces.append([])
        elif set(word) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        elif pieces[-1] or not _ENVIRONMENT.match(word):
            pieces[-1].append(word)
    return [piece for piece in pieces if piece]


def _one(words: list[str]) -> list[str]:
    program, rest = words[0].rsplit("/", 1)[-1], words[1:]
    judge = {
        "shoal": _shoal,
        "make": _make,
        "kubectl": _kubectl,
        "python": _python,
        "python3": _python,
        "pip": _pip,
        "pytest": _pytest,
        "systemd-run": lambda given: _one(given[given.index("shoal") :]) if "shoal" in given else [],
    }.get(program)
    return judge(rest) if judge else []


def _shoal(words: list[str], group: click.Command = shoal) -> list[str]:
    """Walk down to the command, then every flag must be one of its own."""
    context = click.Context(group)
    flags = {name: one for one in group.get_params(context) for name in (*one.opts, *one.secondary_opts)}
    path = [group.name or "shoal"]
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name = word.split("=", 1)[0]
        if word == "--":
            return []  # what follows is a command of the reader's own
        if name.startswith("-") and name != "-":
            if name not in flags:
                return [f"{' '.join(path)} has no option {name}"]
            option = flags[name]
            takes = isinstance(option, click.Option) and not option.is_flag and not option.count
            if takes and "=" not in word:
                if index >= len(words):
                    return [f"{' '.join(path)} {name} takes a value"]
                value, index = words[index], index + 1
            else:
                value = word.partition("=")[2]
            allowed = option.type.choices if takes and isinstance(option.type, click.Choice) else (value,)
            if not _OWN.search(value) and not set(value.split("|")) <= set(allowed):
                return [f"{' '.join(path)} {name} is one of {', '.join(map(str, allowed))}"]
        elif isinstance(group, click.Group):
            if _OWN.search(word):
                return []
            for one in word.split("|"):
                found = group.get_command(context, one)
                if found is None:
                    return [f"{' '.join(path)} has no command {one}"]
            group = found  # type: ignore[assignment]
            context = click.Context(group, info_name=word, parent=context)
            flags = {flag: one for one in group.get_params(context) for flag in (*one.opts, *one.secondary_opts)}
            path.append(word)
    return []


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _make(words: list[str]) -> list[str]:
    named = [word for word in words if "=" not in word and not word.startswith("-") and not _OWN.search(word)]
    return [f"make has no target {one}" for one in named if one not in targets()]


def _kubectl(words: list[str]) -> list[str]:
    found = []
    plain = [word for word in words if not word.startswith("-")]
    verbs = [word for word in plain if word in VERBS]
    if not verbs and not any(_OWN.search(word) for word in plain):
        found.append(f"kubectl has no verb {' '.join(plain[:1])}")
    files = [word for before, word in pairwise(words) if before in ("-f", "--filename") and not _OWN.search(word)]
    found += [f"there is no file {one}" for one in files if one.startswith("samples/") and not (ROOT / one).exists()]
    return found


def _python(words: list[str]) -> list[str]:
    if words[:1] == ["-m"] and len(words) > 1:
        module = words[1].replace(".", "/")
        ours = module.startswith(("tests/", "tools/", "bench/"))
        there = any((ROOT / place).exists() for place in (module + ".py", module + "/__main__.py"))
        return [f"there is no module {words[1]}"] if ours and not there else []
    named = [word for word in words[:1] if word.endswith(".py") and "/" in word and not _OWN.search(word)]
    return [f"there is no file {one}" for one in named if not one.startswith("/") and not (ROOT / one).exists()]


def _pytest(words: list[str]) -> list[str]:
    named = [word.split("::")[0] for word in words if word.startswith("tests/") and not _OWN.search(word)]
    return [f"there is no file {one}" for one in named if not (ROOT / one).exists()]


def _pip(words: list[str]) -> list[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [one for word in words for names in re.findall(r"shoal-ray\[([^]]+)\]", word) for one in names.split(",")]
    return [f"shoal-ray has no extra {one}" for one in asked if one not in extras]
