"""What scripts/compile-hot-path compiles is there, and is what runs for every request."""

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
