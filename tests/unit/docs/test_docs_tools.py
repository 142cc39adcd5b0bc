"""The tools that keep the documentation true find what is wrong, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.docs import commands, links, pages
from tools.docs.pages import ROOT, parse
from tools.docs.run import shows

PAGE = ROOT / "docs" / "index.md"


@pytest.mark.parametrize(
    "command",
    [
        "shoal up --detach --node cpu=4,memory=8Gi",
        "shoal up --runtime simulated --set queues.fair_sharing=true",
        "shoal node add cpu=8,memory=16Gi,count=2 --name west",
        "shoal get -A   # every gang",
        "shoal install --image … --dry-run -o yaml",
        "export A=$(shoal kubeconfig --name west) && kubectl --kubeconfig $A get nodes",
        "kubectl apply -f samples/appwrapper/raycluster.yaml",
        "make docs-check PAGE=docs/start.md",
        'pip install "shoal-ray[local,gpu]"',
        "python bench/engine.py",
        "KUBECONFIG=x shoal get 2> errors",
    ],
)
def test_good_commands_pass(command: str) -> None:
    assert commands.problems(command) == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("shoal upp", "no command upp"),
        ("shoal up --detached", "no option --detached"),
        ("shoal up --runtime container", "is one of process, simulated"),
        ("shoal node add --nam x", "no option --nam"),
        ("echo $(shoal kubeconfig --nme west)", "no option --nme"),
        ("shoal get | shoal sort", "no command sort"),
        ("kubectl aply -f x.yaml", "no verb aply"),
        ("kubectl apply -f samples/none.yaml", "no file samples/none.yaml"),
        ("make tests", "no target tests"),
        ('pip install "shoal-ray[all]"', "no extra all"),
        ("python bench/none.py", "no file bench/none.py"),
        ("python -m tests.none", "no module tests.none"),
        ("shoal get 'x", "a shell cannot read this"),
    ],
)
def test_bad_commands_are_found(command: str, wrong: str) -> None:
    assert [one for one in commands.problems(command) if wrong in one], commands.problems(command)


def test_blocks_have_their_lines_and_what_they_show() -> None:
    console = "```console\n$ shoal get \\\n    -A\nNAME\n$ true\n```\n"
    text = f"# A\n\n{console}\n```bash\n# why\nshoal get\ncat <<E\nshoal x\nE\n```\n"
    page = parse(PAGE, text)
    found = [(one.line, one.text, one.shown) for _, one in page.commands()]
    assert found == [
        (4, "shoal get \\\n    -A", ("NAME",)),
        (7, "true", None),
        (12, "shoal get", None),
        (13, "cat <<E\nshoal x\nE", None),
    ]


def test_a_reason_not_to_run_holds_for_the_block_below_it_alone() -> None:
    text = "*Not run by the docs check: needs a GPU.*\n\n```bash\na\n```\n\n```bash\nb\n```\n"
    assert [block.not_run for block in parse(PAGE, text).blocks] == ["needs a GPU", ""]


def test_a_block_that_is_never_closed_is_named() -> None:
    with pytest.raises(ValueError, match=r"index.md:3: this block of code is never closed"):
        parse(PAGE, "a\n\n```bash\nshoal get\n")


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("start.md", ""),
        ("start.md#start-a-ray-job-in-a-queue-on-this-machine", ""),
        ("https://ray.io", ""),
        ("none.md", "leads to no file"),
        ("start.md#none", "leads to no heading"),
        ("../../outside.md", "leads to no file"),
    ],
)
def test_links(target: str, wrong: str) -> None:
    found = links.problems(parse(PAGE, f"see [it]({target})"))
    assert (found == []) if not wrong else (wrong in found[0] and found[0].startswith("docs/index.md:1:"))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 3s", "a   14s\n", True),
        ("ready after 0.9 s: https://127.0.0.1:37797", "ready after 1.2 s: https://127.0.0.1:41859", True),
        ("since 2026-11-16T18:41:35Z", "since 2027-01-01T00:00:00Z", True),
        ("train-7fx2k created", "train-abcde created", True),
        ("a … c", "a b c", True),
        ("…\nend", "x\ny\nend", True),
        ("begin\n…", "begin\nx", True),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
        ("Running", "Queued", False),
        ("4 cpu", "5 cpu", False),
    ],
)
def test_what_a_page_shows_is_what_was_printed(shown: str, printed: str, same: bool) -> None:
    assert shows(tuple(shown.split("\n")), printed) is same


def test_all_pages_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in pages.all_pages()}
    assert {"README.md", "CONTRIBUTING.md", "docs/start.md", "docs/reference/compatibility/mcad.md"} <= names
    assert not [name for name in names if not Path(ROOT / name).exists()]
