"""What scripts/compile-hot-path compiles is there, and is what runs for every request."""

import ast
import runpy
import sys
from pathlib import Path

from extproc import session

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "compile-hot-path"))


def test_the_list_names_modules_of_the_packages_once_each_and_in_order() -> None:
    listed: tuple[str, ...] = SCRIPT["HOT_PATH"]
    assert list(listed) == sorted(set(listed))
    assert all((ROOT / name).is_file() and name.split("/")[0] in SCRIPT["PACKAGES"] for name in listed)


def test_no_class_that_is_not_compiled_is_derived_from_one_that_is() -> None:
    # Python would refuse it, and only once that module is imported from the compiled packages.
    compiled: set[str] = set()
    derived: dict[str, str] = {}
    for package in SCRIPT["PACKAGES"]:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            if name in SCRIPT["HOT_PATH"]:
                compiled.update(each.name for each in classes)
            else:
                derived.update({base.id: name for each in classes for base in each.bases if isinstance(base, ast.Name)})
    assert {base: name for base, name in derived.items() if base in compiled} == {}


def test_what_a_request_s_session_imports_of_ours_is_on_the_list_or_has_nothing_to_compile() -> None:
    # Data of the configuration, errors, and bodies, whose time goes into JSON.
    spared = {
        "extproc/body.py",
        "extproc/stream.py",
        "recursant/admission/queue.py",
        "recursant/problems.py",
    }
    imported = {
        Path(str(sys.modules[value.__module__].__file__)).relative_to(ROOT).as_posix()
        for value in vars(session).values()
        if getattr(value, "__module__", "").startswith(("extproc.", "recursant."))
    }
    assert imported - spared <= set(SCRIPT["HOT_PATH"])
