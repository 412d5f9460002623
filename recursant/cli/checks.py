"""What `recursant doctor` looks at. Each check finds something out and says what to do about it."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from recursant.cli.configuration import CONFIG_FILE, built_in_config
from recursant.cli.errors import CommandError
from recursant.cli.options import DEFAULT_RUN_DIR
from recursant.cli.versions import installed_versions
from recursant.config.load import ConfigError, check_config
from recursant.config.model import Config
from recursant.data import envoy_file
from recursant.hot_path import build
from recursant.store.embedded import embedded_redis_command
from recursant.supervise.endpoints import EndpointsError, read_endpoints
from recursant.supervise.envoy import envoy_binary
from recursant.supervise.layout import UpOptions, lay_out
from recursant.supervise.ports import PortError, check_bindings
from recursant.supervise.rundir import RunDirectory, RunDirectoryError

_PYTHON: Final = (3, 11)
_MACHINES: Final = ("x86_64", "aarch64")
_ENVOY_VERSION: Final = "1.40."
# Every request holds a few: client, worker, ext_proc.
_OPEN_FILES: Final = 4_096
_RUN_S: Final = 10.0
_ENVOY_FILES: Final = ("bootstrap.yaml", "lua/agent.lua", "lua/body.lua")
_REINSTALL: Final = "pip install 'recursant[gateway]'"


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        found: what is there.
        advice: what to do about it; empty where nothing needs doing.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def run_checks(config_file: Path | None, run_dir: Path | None) -> list[Check]:
    """Look at everything. Nothing is started that stays, nothing is changed."""
    run = RunDirectory(run_dir or DEFAULT_RUN_DIR)
    checks = [_python(), _platform(), _open_files(), *_packages(), _envoy(), _embedded_redis(), _files()]
    config, check = _config(config_file)
    checks += [check, _run_directory(run)]
    if config is not None:
        checks += [_ports(config, run), _redis(config, run)]
    return checks


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info >= _PYTHON:
        return Check("python", Verdict.OK, found)
    return Check("python", Verdict.FAIL, found, "use Python 3.11 or newer")


def _platform() -> Check:
    found = f"{platform.system()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in _MACHINES:
        return Check("platform", Verdict.OK, found)
    return Check("platform", Verdict.FAIL, found, f"use Linux on {' or '.join(_MACHINES)}, or a container of it")


def _open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _OPEN_FILES or soft == resource.RLIM_INFINITY:
        return Check("open files", Verdict.OK, f"{soft} allowed")
    return Check("open files", Verdict.WARN, f"{soft} allowed", f"ulimit -n {_OPEN_FILES} or more, for many requests")


def _packages() -> Iterator[Check]:
    versions = installed_versions()
    missing = [name for name, version in versions.items() if version is None]
    yield Check("recursant", Verdict.OK, build())
    if missing:
        yield Check("packages", Verdict.FAIL, f"missing: {', '.join(missing)}", _REINSTALL)
    else:
        yield Check("packages", Verdict.OK, f"grpcio {versions['grpcio']}, protobuf {versions['protobuf']}, …")


def _envoy() -> Check:
    try:
        binary = envoy_binary()
    except FileNotFoundError as error:
        return Check("envoy", Verdict.FAIL, str(error), _REINSTALL)
    said = _ask_version([str(binary), "--version"])
    # ".../envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL"
    version = next((part for part in said.split("/") if part[:1].isdigit() and part.count(".") == 2), "")
    if not version:
        return Check("envoy", Verdict.FAIL, f"{binary} does not run: {said[:200]}", _REINSTALL)
    if not version.startswith(_ENVOY_VERSION):
        return Check("envoy", Verdict.WARN, f"{version} at {binary}", f"Recursant is tested with {_ENVOY_VERSION}x")
    return Check("envoy", Verdict.OK, f"{version} at {binary}")


def _embedded_redis() -> Check:
    try:
        [binary, *_] = embedded_redis_command(Path(), port=1)
    except FileNotFoundError as error:
        return Check("embedded redis", Verdict.WARN, str(error), f"{_REINSTALL}, or use your own with --redis-url")
    said = _ask_version([binary, "--version"])
    if "v=" not in said:
        return Check("embedded redis", Verdict.FAIL, f"{binary} does not run: {said[:200]}", _REINSTALL)
    return Check("embedded redis", Verdict.OK, said.split("v=")[1].split()[0])


def _files() -> Check:
    try:
        for name in _ENVOY_FILES:
            envoy_file(name)
    except FileNotFoundError as error:
        return Check("files", Verdict.FAIL, str(error), _REINSTALL)
    return Check("files", Verdict.OK, "bootstrap and Lua are there")


def _config(path: Path | None) -> tuple[Config | None, Check]:
    try:
        file = path or (CONFIG_FILE if CONFIG_FILE.exists() else built_in_config())
        result = check_config(file)
    except ConfigError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        advice = f"recursant config check {path or CONFIG_FILE}"
        return None, Check("configuration", Verdict.FAIL, f"{error.problems[0]}{more}", advice)
    except CommandError as error:
        return None, Check("configuration", Verdict.FAIL, str(error), _REINSTALL)
    if result.warnings:
        return result.config, Check(
            "configuration", Verdict.WARN, str(result.warnings[0]), f"recursant config check {file}"
        )
    return result.config, Check("configuration", Verdict.OK, str(file))


def _run_directory(run: RunDirectory) -> Check:
    place = run.path
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        return Check("run directory", Verdict.FAIL, f"{place} cannot be written", "choose another with --run-dir")
    return Check("run directory", Verdict.OK, f"{run.path}{', running' if _running(run) else ''}")


def _ports(config: Config, run: RunDirectory) -> Check:
    if _running(run):
        return Check("ports", Verdict.OK, "in use by the `recursant up` that runs here")
    try:
        layout = lay_out(config, UpOptions(), run)
        check_bindings(layout.bindings)
    except (PortError, RunDirectoryError) as error:
        return Check("ports", Verdict.FAIL, str(error), "see the message")
    return Check("ports", Verdict.OK, ", ".join(str(binding.port) for binding in layout.bindings))


def _redis(config: Config, run: RunDirectory) -> Check:
    running = _running(run)
    url = config.redis.url or (read_endpoints(run.path).redis if running else None)
    if url is None:
        return Check("redis", Verdict.OK, "none configured; `recursant up` starts its own")
    try:
        from redis import Redis, RedisError
    except ImportError:
        return Check("redis", Verdict.FAIL, "the redis package is missing", _REINSTALL)
    try:
        with Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as client:
            client.ping()
            version = str(client.info("server").get("redis_version"))
    except (RedisError, OSError, ValueError) as error:
        # Not the error's text alone: it never holds the URL, but an operator needs to know whose Redis.
        return Check("redis", Verdict.FAIL, f"not reachable: {error}", "see redis.url in the configuration")
    if int(version.split(".")[0]) < 7:
        return Check("redis", Verdict.FAIL, f"version {version}", "use Redis 7.0 or newer")
    return Check("redis", Verdict.OK, f"answers, speaks Redis {version}")


def _running(run: RunDirectory) -> bool:
    try:
        pid = read_endpoints(run.path).pid
        os.kill(pid, 0)
    except (EndpointsError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _ask_version(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip()
