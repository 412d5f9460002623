"""A service that follows its configuration file: what it counts, logs, and does with an edit."""

import logging
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from recursant.config.model import Config
from recursant.config.reload import Edit, Outcome, Reloader
from recursant.config.watch import ConfigWatch

_log = logging.getLogger(__name__)


class ReloadCounter:
    """`recursant_config_reloads_total`, and a line in the log for each edit.

    Args:
        registry: where the counter is exported.
        file: the name of the file, for the log.
    """

    def __init__(self, registry: CollectorRegistry, file: str) -> None:
        self._file = file
        self._count = Counter(
            "recursant_config_reloads", "Edits of the configuration file.", ("outcome",), registry=registry
        )
        for outcome in Outcome:
            self._count.labels(outcome)

    def edited(self, edit: Edit) -> None:
        """Count an edit and log it."""
        self._count.labels(edit.outcome).inc()
        level = logging.WARNING if edit.outcome is Outcome.REFUSED or edit.restart else logging.INFO
        _log.log(level, "%s", "; ".join(edit.lines(self._file)))


async def watch_config(
    file: Path, config: Config, registry: CollectorRegistry, on_applied: Callable[[Edit], None]
) -> None:
    """Follow a configuration file until cancelled; every edit is counted and logged.

    Args:
        file: the one that operators edit. Where `config` was made from another one, what that merged in stays.
        config: the configuration in force.
        registry: where the edits are counted.
        on_applied: puts an edit in force that changes something.
    """
    counter = ReloadCounter(registry, str(file))

    def edited(edit: Edit) -> None:
        if edit.outcome is Outcome.APPLIED:
            on_applied(edit)
        counter.edited(edit)

    await ConfigWatch(file, Reloader(config, None), edited).run()
