"""What the fleet serves under which name, and at which address."""

from collections.abc import Callable, Iterator

from recursant.fleet.worker import WorkerRecord


class Served:
    """Addresses and names of all workers, usable or not; found again when somebody asks after a change.

    Args:
        records: gives every worker, with its row.
    """

    def __init__(self, records: Callable[[], Iterator[tuple[int, WorkerRecord]]]) -> None:
        self._records = records
        self._row_of_endpoint: dict[str, int] = {}
        self._families: dict[str, frozenset[str]] = {}
        self._stale = False

    def changed(self) -> None:
        """Some worker serves something else, or elsewhere."""
        self._stale = True

    def row_of_endpoint(self, endpoint: str) -> int | None:
        """The row of the worker that Envoy dials at `ip:port`."""
        self._refresh()
        return self._row_of_endpoint.get(endpoint)

    def knows_model(self, name: str) -> bool:
        """Does any worker, usable or not, serve this model or adapter?"""
        self._refresh()
        return name in self._families

    def families_of(self, name: str) -> frozenset[str]:
        """The families under which the fleet serves this model or adapter name."""
        self._refresh()
        return self._families.get(name, frozenset())

    def names_of_family(self, family: str) -> frozenset[str]:
        """The models and adapters that the fleet serves under a family."""
        self._refresh()
        return frozenset(name for name, families in self._families.items() if family in families)

    def knows_family(self, family: str) -> bool:
        """Does any worker, usable or not, serve this family?"""
        self._refresh()
        return any(family in families for families in self._families.values())

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._stale = False
        self._row_of_endpoint.clear()
        families: dict[str, set[str]] = {}
        for row, record in self._records():
            if record.endpoint is not None:
                self._row_of_endpoint[record.endpoint] = row
            served = {model.family for model in record.models if model.family}
            for model in record.models:
                families.setdefault(model.name, set()).add(model.family)
            for adapter in record.state.lora_adapters:
                families.setdefault(adapter, set()).update(served)
        self._families = {name: frozenset(found) for name, found in families.items()}
