"""Everything that we serve at one moment, immutable: resources by type and name, versions, differences, consistency."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from xds_server.problems import InconsistentSnapshotError
from xds_server.references import References, references_of
from xds_server.resource import CLUSTER, ENDPOINT, Resource

_EMPTY: Final[Mapping[str, Resource]] = MappingProxyType({})


def fingerprint(versions: Iterable[tuple[str, str]]) -> str:
    """The version of a set of resources, from the names and versions of its members, in any order."""
    digest = hashlib.sha256()
    for name, version in sorted(versions):
        digest.update(f"{len(name)}:{name}{len(version)}:{version}".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TypeDiff:
    """How the resources of one type differ between two snapshots, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Snapshot:
    """A set of resources. Equal content has equal versions, on every replica and after every restart.

    Args:
        resources: no two of one type and name.
        previous: the snapshot before, from which parsed references are taken over where a resource did not change.

    Raises:
        InconsistentSnapshotError: two resources of one type have the same name, or one cannot be parsed.
    """

    def __init__(self, resources: Iterable[Resource] = (), *, previous: "Snapshot | None" = None) -> None:
        types: dict[str, dict[str, Resource]] = {}
        for resource in resources:
            named = types.setdefault(resource.type_url, {})
            if resource.name in named:
                raise InconsistentSnapshotError([f"{_label(resource.type_url, resource.name)} exists twice"])
            named[resource.name] = resource
        self._types = {type_url: MappingProxyType(named) for type_url, named in types.items()}
        self._versions = {
            type_url: fingerprint((name, resource.version) for name, resource in named.items())
            for type_url, named in types.items()
        }
        self._references = {
            (type_url, name): _known(resource, previous) or references_of(resource)
            for type_url, named in types.items()
            for name, resource in named.items()
        }

    @property
    def types(self) -> Set[str]:
        """The type URLs of which there is at least one resource."""
        return self._types.keys()

    def of_type(self, type_url: str) -> Mapping[str, Resource]:
        """The resources of one type, by name."""
        return self._types.get(type_url, _EMPTY)

    def get(self, type_url: str, name: str) -> Resource | None:
        """One resource."""
        return self.of_type(type_url).get(name)

    def version(self, type_url: str) -> str:
        """The version of all resources of a type together; of the empty set where there are none."""
        return self._versions.get(type_url) or fingerprint(())

    def endpoints_of(self, cluster: str) -> str | None:
        """The EDS name of a cluster; None where there is no such cluster, or it uses no EDS."""
        references = self._references.get((CLUSTER, cluster))
        return None if references is None else references.endpoints

    def diff(self, previous: "Snapshot") -> dict[str, TypeDiff]:
        """What changed since `previous`: only types that differ."""
        found = {}
        for type_url in sorted(self.types | previous.types):
            if self.version(type_url) == previous.version(type_url):
                continue
            now, before = self.of_type(type_url), previous.of_type(type_url)
            found[type_url] = TypeDiff(
                added=tuple(sorted(now.keys() - before.keys())),
                changed=tuple(
                    sorted(name for name in now.keys() & before.keys() if now[name].version != before[name].version)
                ),
                removed=tuple(sorted(before.keys() - now.keys())),
            )
        return found

    def check(self, static_clusters: Collection[str] = ()) -> None:
        """Check that the resources fit together: Envoy itself accepts routes to clusters that do not exist.

        Args:
            static_clusters: clusters that every client has from its own bootstrap.

        Raises:
            InconsistentSnapshotError: a cluster, route table, assignment or extension is named and does not exist,
                or an assignment belongs to no cluster.
        """
        problems = []
        for owner, references in self._references.items():
            for named in references.resources:
                type_url, name = named
                if named not in self._references and not (type_url == CLUSTER and name in static_clusters):
                    problems.append(f"{_label(*owner)} names {_label(*named)}, which does not exist")
        used = {references.endpoints for references in self._references.values()}
        problems.extend(
            f"{_label(ENDPOINT, name)} belongs to no cluster" for name in self.of_type(ENDPOINT) if name not in used
        )
        if problems:
            raise InconsistentSnapshotError(sorted(problems))


def _known(resource: Resource, previous: "Snapshot | None") -> References | None:
    """The references of the same content in `previous`: most resources never change."""
    if previous is None:
        return None
    before = previous.get(resource.type_url, resource.name)
    if before is None or before.version != resource.version:
        return None
    return previous._references[resource.type_url, resource.name]


def _label(type_url: str, name: str) -> str:
    return f"{type_url.rpartition('.')[2]} {name!r}"
