"""`shoal check`: manifests judged without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.main import main

SAMPLES = Path(__file__).parents[3] / "samples"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["check", *arguments])
    return int(stopped.value.code or 0)


def test_our_samples_have_nothing_to_correct(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(SAMPLES)) == 0
    assert "nothing to correct" in capsys.readouterr().out


def test_each_mistake_is_named_with_file_object_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("apiVersion: ray.k8s.io/v1alpha1\nkind: Ray\nmetadata: {name: r}\nspec: {minWorker: 1}\n")
    assert run(str(path)) == 1
    answer = capsys.readouterr()
    assert answer.out == f'{path}: Ray r: spec.minWorker: unknown field "spec.minWorker"\n'
    assert answer.err == "error: mistakes to correct: 1 (objects read: 1)\n"


def test_programs_read_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("apiVersion: ray.k8s.io/v1alpha1\nkind: Ray\nmetadata: {name: r}\nspec: {minWorker: 1}\n")
    assert run(str(path), "-o", "json") == 1
    assert json.loads(capsys.readouterr().out) == {
        "objects": 1,
        "problems": [
            {"source": str(path), "object": "Ray r", "problem": 'spec.minWorker: unknown field "spec.minWorker"'}
        ],
    }


@pytest.mark.parametrize("words", [["up"], ["down"], ["node"], ["kubeconfig"], ["doctor"], ["get"], ["check"], ["why"],
                                   ["controller"], ["install"], ["uninstall"]])  # fmt: skip
def test_every_command_shows_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert "Examples:" in capsys.readouterr().out


def test_what_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    for argument, words in (
        (str(tmp_path / "none.yaml"), "cannot be read"),
        (str(broken), "line 2"),
        (str(tmp_path), "line 2"),
    ):
        assert run(argument) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and words in error and error.count("\n") == 1
