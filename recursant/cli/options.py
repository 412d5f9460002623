"""Options that several commands share, and how their values are read."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

# Where `recursant up` keeps its files, seen from the current folder.
DEFAULT_RUN_DIR: Final = Path("run")
RUN_DIR_VARIABLE: Final = "RECURSANT_RUN_DIR"
API_VARIABLE: Final = "RECURSANT_API"
# Of the commands that report a worker: the heading of these options.
REPORTING: Final = "Where it reports, and as what"


class Output(StrEnum):
    """How a list is shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class LogLevel(StrEnum):
    """Levels of our own logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to show it.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least level that is logged.")]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Text, or one JSON object a line.")]
RunDirOption = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        envvar=RUN_DIR_VARIABLE,
        show_default=str(DEFAULT_RUN_DIR),
        help="The run directory of a [bold]recursant up[/bold].",
    ),
]
JoinRunDirOption = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        envvar=RUN_DIR_VARIABLE,
        help="Join the [bold]recursant up[/bold] of this run directory, usually ./run.",
    ),
]
ApiOption = Annotated[
    str | None,
    typer.Option("--api", envvar=API_VARIABLE, metavar="URL", help="The control API, as http://host:port."),
]
ReportToRedisOption = Annotated[
    str | None,
    typer.Option("--redis-url", envvar="RECURSANT_REDIS_URL", metavar="URL", rich_help_panel=REPORTING),
]
ReportToApiOption = Annotated[
    str | None,
    typer.Option(
        "--api",
        envvar=API_VARIABLE,
        metavar="URL",
        help="The control API, where Redis cannot be reached.",
        rich_help_panel=REPORTING,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The configuration; ./recursant.yaml if it is there."),
]


def split_commas(values: Iterable[str] | None) -> tuple[str, ...]:
    """A repeatable option whose values may be comma lists, as one list."""
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())
