"""The one build step that pyproject.toml cannot say: the samples travel in the wheel, as shoal/samples."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSamples(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "shoal" / "samples"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).parent / "samples", target)


setup(cmdclass={"build_py": BuildWithSamples})
