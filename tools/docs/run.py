"""`make docs-check`: carries out every command of the documentation, page by page, and compares what it prints.

Each page gets a folder, a state directory and a kubeconfig of its own; its commands run one after the other in one
shell, as a reader would type them, with the repository's own `shoal` first on the PATH. What a page shows must be what
a command prints: `…` stands for anything, and ages, times and generated names may differ. A command that only looks
(`get`, `why`, `logs` and the like) is given time until it shows what the page shows. Every manifest that stands in a
page is sent to the embedded API server as a dry run. Blocks with a visible reason not to run are only read.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from tools.docs import commands, links, pages
from tools.docs.pages import ROOT, Block, Command, Page

LIMIT = 300.0
"""Seconds for one command."""
PATIENCE = 90.0
"""Seconds until a command that only looks shows what its page shows."""
_LOOKS = re.compile(r"\b(kubectl\b.* (get|describe|logs|api-resources|auth)|shoal (get|why|cluster list|doctor))\b")
_EXIT = re.compile(r"#.*\bexit code (\d+)")
_SAME = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<moment>"),
    (re.compile(r"(?<![\w.])(\d+(\.\d+)? ?(ms|s|m|h|d))+(?![\w])"), "<time>"),
    (re.compile(r"-[a-z0-9]{5}(?=[\s/]|$)"), "-<made>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
)


class Failed(Exception):
    """A page does not hold: where, what was run, what came of it."""


class Shell:
    """One bash for a whole page, so that `export` and `cd` last."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder / "shoal",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[int, str, str]:
        """Exit code, what it printed, what it said on the error output."""
        script, out, errors = (self.folder / name for name in ("command", "out", "errors"))
        script.write_text(text + "\n")
        assert self._process.stdin
        self._process.stdin.write(f". {script} > {out} 2> {errors} < /dev/null; echo done $?\n")
        self._process.stdin.flush()
        line = _read_line(self._process, time.monotonic() + LIMIT)
        if line is None:
            said = out.read_text() + errors.read_text()
            raise TimeoutError(f"did not end within {LIMIT:.0f} s; so far it printed:\n{said}")
        return int(line.split()[1]), out.read_text(), errors.read_text()

    def close(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def _read_line(process: subprocess.Popen[str], until: float) -> str | None:
    assert process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if selector.select(left):
                line = process.stdout.readline()
                if line.startswith("done ") or not line:
                    return line or None
    return None


def check(page: Page) -> int:
    """Carry one page out; returns how many commands ran. Raises Failed with page and line."""
    if not page.preludes and not any(not block.not_run for block, _ in page.commands()) and not _manifests(page):
        return 0
    folder = Path(tempfile.mkdtemp(prefix="shoal-docs-"))
    environment = _environment(folder)
    shell = Shell(folder, environment)
    ran = 0
    try:
        for prelude in page.preludes:
            _carry_out(page, shell, prelude)
        for block in page.blocks:
            if block.file:
                (folder / "shoal" / block.file).write_text("\n".join(block.lines) + "\n")
            if block.language in pages.COMMANDS and not block.not_run:
                for command in pages.commands_of(block):
                    _carry_out(page, shell, command)
                    ran += 1
        return ran
    finally:
        shell.close()
        for name in sorted((folder / "state").glob("*")):
            subprocess.run(
                ["shoal", "down", "--purge", "--name", name.name], env=environment, capture_output=True, timeout=120
            )
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """A reader's home: the repository as `shoal`, a state directory and a kubeconfig that are theirs alone."""
    (folder / "shoal").mkdir()
    for entry in ROOT.iterdir():
        (folder / "shoal" / entry.name).symlink_to(entry)
    kept = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "VIRTUAL_ENV")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SHOAL_HOME": str(folder / "state"),
        "KUBECONFIG": str(folder / "kubeconfig"),
        "COLUMNS": "160",
    }


def _carry_out(page: Page, shell: Shell, command: Command) -> None:
    where = f"{page.name}:{command.line}"
    wanted = int(found[1]) if (found := _EXIT.search(command.text)) else 0
    began = time.monotonic()
    while True:
        try:
            code, out, errors = shell.run(command.text)
        except TimeoutError as error:
            raise Failed(f"{where}: {command.text}\n{error}") from None
        as_shown = command.shown is None or any(shows(command.shown, one) for one in (out, out + errors, errors + out))
        if code == wanted and as_shown:
            return
        if not _LOOKS.search(command.text) or time.monotonic() - began > PATIENCE:
            break
        time.sleep(0.5)
    if code != wanted:
        raise Failed(f"{where}: {command.text}\nexit code {code} instead of {wanted}; it printed:\n{out}{errors}")
    shown = "\n".join(command.shown or ())
    raise Failed(f"{where}: {command.text}\nthe page shows:\n{shown}\nit printed:\n{out}{errors}")


def shows(shown: tuple[str, ...], printed: str) -> bool:
    """Is this what the page shows? A line of `…` alone stands for any lines, `…` inside one for any text."""
    pattern = ""
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        elif line.strip():
            pattern += ".*".join(re.escape(_plain(part)) for part in _plain(line).split("…")) + r" ?\n"
    text = "".join(_plain(line) + "\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, text) is not None


def _plain(line: str) -> str:
    for pattern, instead in _SAME:
        line = pattern.sub(instead, line)
    return re.sub(r"\s+", " ", line).strip()


def _manifests(page: Page) -> list[tuple[Block, dict[str, object]]]:
    """Objects that stand in YAML blocks of the page."""
    found = []
    for block in page.blocks:
        if block.language == "yaml":
            for one in yaml.safe_load_all("\n".join(block.lines)):
                if isinstance(one, dict) and one.get("kind") and not _is_made_up(str(one.get("apiVersion") or "")):
                    found.append((block, one))
    return found


def _is_made_up(api_version: str) -> bool:
    """Groups under `.example` stand for a reader's own; an object without a group and version is a part of one."""
    return not api_version or api_version.partition("/")[0].endswith(".example")


def judge_manifests(all_pages: list[Page]) -> list[str]:
    """Every manifest of every page, and every sample, as a dry run against one embedded API server."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-docs-"))
    environment = _environment(folder)
    found: list[str] = []

    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, input=text, env=environment, capture_output=True, text=True, timeout=120)

    try:
        begun = run(
            "shoal", "up", "--detach", "--runtime", "simulated", "--node", "cpu=64,memory=256Gi,nvidia.com/gpu=8"
        )
        if begun.returncode:
            return [f"shoal up: {begun.stderr}"]
        sent = [(f"{page.name}:{block.line}", one) for page in all_pages for block, one in _manifests(page)]
        for path in sorted((ROOT / "samples").rglob("*.yaml")):
            sent += [(str(path.relative_to(ROOT)), one) for one in yaml.safe_load_all(path.read_text()) if one]
        spaces = {str((one.get("metadata") or {}).get("namespace") or "default") for _, one in sent}  # type: ignore[attr-defined]
        for space in spaces - {"default"}:
            run("kubectl", "create", "namespace", space)
        for where, one in sent:
            done = run("kubectl", "create", "--dry-run=server", "-f", "-", text=yaml.safe_dump(one))
            if done.returncode and "AlreadyExists" not in done.stderr and "already exists" not in done.stderr:
                found.append(f"{where}: the API server refuses this {one['kind']}: {done.stderr.strip()}")
        print(f"ok    {len(sent)} manifests of pages and samples, as dry runs", flush=True)
        return found
    finally:
        run("shoal", "down", "--purge")
        shutil.rmtree(folder, ignore_errors=True)


def read_only_problems(page: Page) -> list[str]:
    """What is wrong with a page without running anything: links, flags, targets, files."""
    found = links.problems(page)
    for _, command in page.commands():
        found += [f"{page.name}:{command.line}: {wrong}" for wrong in commands.problems(command.text)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages; default: all")
    chosen = [path.resolve() for path in parser.parse_args().pages] or pages.all_pages()
    read = [pages.read(path) for path in chosen]
    # a page's own `make setup` must find nothing to do: it would install this tree from the page's folder
    subprocess.run(["make", "--no-print-directory", "setup"], cwd=ROOT, check=True)
    wrong = [one for page in read for one in read_only_problems(page)]
    if not shutil.which("kubectl"):
        sys.exit("error: the docs check needs kubectl on the PATH")
    wrong += judge_manifests(read)
    for page in read:
        began = time.monotonic()
        try:
            ran = check(page)
        except Failed as error:
            wrong.append(str(error))
            print(f"FAIL  {page.name} ({time.monotonic() - began:.0f} s)", flush=True)
        else:
            if ran:
                print(f"ok    {page.name}: {ran} commands ({time.monotonic() - began:.0f} s)", flush=True)
    if wrong:
        print("\n\n".join(wrong))
        sys.exit(f"\n{len(wrong)} problems in the documentation")


if __name__ == "__main__":
    main()
