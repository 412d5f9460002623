"""What the build compiles is there, and is what runs for every request; and what is built says so."""

import ast
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from bench import compiled
from extproc import session
from recursant import __version__, hot_path

ROOT = Path(__file__).parent.parent.parent
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
HOT_PATH = WHEEL["hooks"]["custom"]["hot-path"]


def test_the_list_names_modules_of_the_packages_once_each_and_in_order() -> None:
    assert sorted(set(HOT_PATH)) == HOT_PATH
    assert all((ROOT / name).is_file() and name.split("/")[0] in WHEEL["packages"] for name in HOT_PATH)


def test_no_class_that_is_not_compiled_is_derived_from_one_that_is() -> None:
    # Python would refuse it, and only once that module is imported from the compiled packages.
    classes_of_hot_path: set[str] = set()
    derived: dict[str, str] = {}
    for package in WHEEL["packages"]:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            if name in HOT_PATH:
                classes_of_hot_path.update(each.name for each in classes)
            else:
                derived.update({base.id: name for each in classes for base in each.bases if isinstance(base, ast.Name)})
    assert {base: name for base, name in derived.items() if base in classes_of_hot_path} == {}


def test_nothing_on_the_list_waits() -> None:
    # An exception that passes a compiled `finally` with an `await` in it stays the one being handled, for good.
    waiting = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    modules = {name: ast.parse((ROOT / name).read_text()) for name in HOT_PATH}
    assert [name for name, tree in modules.items() if any(isinstance(node, waiting) for node in ast.walk(tree))] == []


def test_what_a_request_s_session_imports_of_ours_is_on_the_list_or_has_nothing_to_compile() -> None:
    # Data of the configuration, errors, and bodies, whose time goes into JSON.
    spared = {
        "extproc/body.py",
        "extproc/stream.py",
        "recursant/admission/queue.py",
        "recursant/problems.py",
    }
    imported = {
        value.__module__.replace(".", "/") + ".py"
        for value in vars(session).values()
        if getattr(value, "__module__", "").startswith(("extproc.", "recursant."))
    }
    assert imported - spared <= set(HOT_PATH)


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURSANT_COMPILE", raising=False)
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in WHEEL["packages"]
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"recursant/_{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "envoy").rglob("*.*")}
    expected |= {"recursant/_default.yaml"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert wheel.endswith("-py3-none-any.whl")


@pytest.mark.parametrize(("value", "needs_mypyc"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_only_the_build_that_compiles_requires_mypyc(
    value: str | None, needs_mypyc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECURSANT_COMPILE", raising=False)
    if value is not None:
        monkeypatch.setenv("RECURSANT_COMPILE", value)
    requires = WheelBuilder(str(ROOT)).config.dependencies
    assert any(each.startswith("mypy") for each in requires) is needs_mypyc


def test_the_benchmark_compiles_as_make_does() -> None:
    assert (
        f"\tRECURSANT_COMPILE=1 $(BIN)/python {compiled.INSTALL} build/compiled .\n" in (ROOT / "Makefile").read_text()
    )


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/x/recursant/names.py", False),
        ("/x/recursant/names.pyc", False),
        (f"/x/recursant/names{EXTENSION_SUFFIXES[0]}", True),
        ("/x/recursant.so/names.py", False),
    ],
)
def test_what_counts_as_compiled(file: str, expected: bool) -> None:
    assert hot_path.is_compiled(file) is expected


def test_version_and_build_are_one_line(pytestconfig: pytest.Config) -> None:
    expected = "compiled" if pytestconfig.getoption("--compiled") else "not compiled"
    assert hot_path.build() == f"{__version__} (hot path {expected})"
