"""Build hook: where RECURSANT_COMPILE=1 is set, what runs for every request is compiled with mypyc.

    RECURSANT_COMPILE=1 pip install .

The compiled modules lie beside their sources in the wheel and give the same answers; Python imports them first. Which
they are, and what their build requires, is in pyproject.toml. Needs a C compiler. Any other build is pure Python.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "RECURSANT_COMPILE"


class HotPathHook(BuildHookInterface[BuilderConfig]):
    """Adds the compiled modules to the wheel."""

    def dependencies(self) -> list[str]:
        """What the build requires, besides hatchling."""
        return list(self.config["requires"]) if os.environ.get(VARIABLE) == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. An editable installation runs from the sources, so there is nothing to compile for it."""
        if os.environ.get(VARIABLE) != "1" or version == "editable":
            return
        # Not in the tree: a compiled module beside its source would be imported instead of it. Goes with this process.
        self._folder = tempfile.TemporaryDirectory(prefix="recursant-build-")
        with contextlib.chdir(self.root):
            built = _compiled(self.config["hot-path"], Path(self._folder.name))
        build_data["force_include"].update(built)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _compiled(modules: list[str], folder: Path) -> dict[str, str]:
    """Compile the modules, named from the working directory; the files by where they belong in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    libraries = folder / "lib"
    extensions = mypycify(
        ["--config-file", "pyproject.toml", *modules], opt_level="2", target_dir=str(folder / "source")
    )
    command = Distribution({"name": "recursant", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib = str(libraries)
    command.build_temp = str(folder / "objects")
    command.ensure_finalized()
    command.run()
    return {str(path): path.relative_to(libraries).as_posix() for path in libraries.rglob("*") if path.is_file()}
