"""One resource type on one stream: what the client wants, was told, answered and refused.

xDS keeps versions, nonces, subscriptions and answers per type: each type is a stream of its own within the stream.
Both protocol variants share this ledger; it is pure, time is an argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from xds_server.holds import Holds
from xds_server.resource import Resource
from xds_server.snapshot import Snapshot, fingerprint
from xds_server.status import SyncState, TypeStatus
from xds_server.subscription import WILDCARD, Change, Mode, Subscription
from xds_server.told import ABSENT, UNKNOWN, Due, Phase, Told, Verdict
from xds_server.traits import traits_of
from xds_server.unanswered import Push, Unanswered

_MAX_REASON: Final = 2_000
_NOTHING_DUE: Final = Due()


class Substream:
    """The ledger of one type.

    Args:
        type_url: the type.
        max_names: the most names that the client may subscribe to.
        whole: each response carries everything wanted, so that a refused one needs no bookkeeping by name.

    Attributes:
        told: by name. Bounded by what the client subscribed to and by what exists.
        greeting: it asked for everything and waits for a first answer, even an empty one.
        nonce: of the last response; empty before it.
        refusal: the version of the last response if that was refused; else empty.
    """

    def __init__(self, type_url: str, *, max_names: int, whole: bool) -> None:
        self.type_url = type_url
        self.traits = traits_of(type_url)
        self.whole = whole
        self.subscription = Subscription(max_names)
        self.told: dict[str, Told] = {}
        self.unanswered = Unanswered()
        self.greeting = False
        self.nonce = ""
        self.refusal = ""
        self.last_seen = 0.0
        self._asked: set[str] = set()
        self._holds = Holds()
        self._sent = ""
        self._accepted = ""
        self._reason = ""
        # Type versions at which nothing was due; emptied by whatever may change that.
        self._quiet: set[tuple[Phase, str]] = set()

    # --- what the client asks for ---

    @property
    def started(self) -> bool:
        """Has the client asked for this type yet?"""
        return self.subscription.mode is not Mode.SILENT

    def apply(self, change: Change, claims: Mapping[str, str] | None = None) -> None:
        """Take over a change of the subscription.

        Args:
            change: what the subscription made of the request.
            claims: versions by name that the client says it has; only in the first request of the type.
        """
        self._quiet.clear()
        wanted = {name: version for name, version in (claims or {}).items() if self.subscription.wants(name)}
        self.told.update((name, Told(version, Verdict.ACCEPTED)) for name, version in wanted.items())
        known = wanted.keys() if self.traits.trusts_claims else set()
        for name in change.released:
            if name == WILDCARD:
                for told in [told for told in self.told if not self.subscription.wants(told)]:
                    self._forget(told)
            elif self.subscription.wants(name):
                # The wildcard still covers it: the client must hear what has become of it.
                self._asked.add(name)
            else:
                self._forget(name)
        for name in change.asked - known:
            if name == WILDCARD:
                self.greeting = not wanted
                self._asked.update(self.told.keys() - known)
            else:
                self._asked.add(name)

    def push_again(self, name: str) -> bool:
        """Send this name although it did not change; not while its content is refused. Will it be sent?"""
        told = self.told.get(name)
        if told is not None and told.verdict is Verdict.REJECTED:
            return False
        self._quiet.clear()
        self._asked.add(name)
        return True

    def _forget(self, name: str) -> None:
        self.told.pop(name, None)
        self._asked.discard(name)

    # --- what it lacks ---

    def due(self, snapshot: Snapshot, phase: Phase) -> Due:
        """What to send now. While nothing has changed since the last empty answer this costs nothing."""
        quiet = (phase, snapshot.version(self.type_url))
        if quiet in self._quiet:
            return _NOTHING_DUE
        for name in self._holds.release(lambda name: self._agreed(snapshot, name)):
            told = self.told.get(name)
            if told is not None and told.verdict is Verdict.REJECTED:
                # Should this content return, it will be news.
                told.version = UNKNOWN
                self._quiet.clear()
        upserts: list[Resource] = []
        absent: list[str] = []
        leaving: list[str] = []
        for name in self._names(snapshot):
            told = self.told.get(name)
            asked = name in self._asked
            target = snapshot.get(self.type_url, name)
            gone = target is None and told is not None and told.version != ABSENT
            if gone and self.traits.blank is not None:
                target = Resource.of(self.type_url, name, self.traits.blank(name))
            if target is not None and told is not None and told.version == target.version and not asked:
                continue
            if gone and told is not None and self.traits.removed_last and phase is Phase.MAKE:
                leaving.append(name)
                if asked and told.kept is not None:
                    upserts.append(told.kept)
            elif target is not None:
                upserts.append(target)
            elif gone or asked or (told is None and name in self.subscription.names):
                absent.append(name)
        due = Due(upserts, absent, leaving)
        if not due and not self._holds:
            self._quiet.add(quiet)
        return due

    def _names(self, snapshot: Snapshot) -> list[str]:
        names: set[str] = set(self.subscription.names)
        if self.subscription.covers_all:
            names.update(snapshot.of_type(self.type_url), self.told, self._asked)
        return sorted(names)

    def _agreed(self, snapshot: Snapshot, name: str) -> str | None:
        """The version of `name` where the last one sent is still the one to be served."""
        told, resource = self.told.get(name), snapshot.get(self.type_url, name)
        return told.version if told and resource and told.version == resource.version else None

    def take_retry(self, snapshot: Snapshot) -> Resource | None:
        """One resource that was refused in company of one that has changed since."""
        while (name := self._holds.take()) is not None:
            if self._agreed(snapshot, name) is not None and self.told[name].verdict is Verdict.REJECTED:
                return snapshot.get(self.type_url, name)
        return None

    def retry_together(self) -> bool:
        """Make all of those due at once. Were there any?"""
        names = self._holds.take_all() & self.told.keys()
        self._asked |= names
        return bool(names)

    # --- what was sent ---

    def record(
        self, nonce: str, resources: Iterable[Resource], absent: Sequence[str], now: float, version: str | None = None
    ) -> str:
        """Take down a response; returns its version: given, or that of everything that the client then has."""
        self._quiet.clear()
        self.greeting = False
        sent = {}
        for resource in resources:
            before = self.told.get(resource.name)
            accepted = before.accepted if before else None
            self.told[resource.name] = Told(resource.version, Verdict.PENDING, resource, accepted)
            sent[resource.name] = resource.version
        self._asked -= sent.keys()
        self._holds.sent(sent)
        self.mark_absent(absent)
        if version is None:
            version = fingerprint((name, told.version) for name, told in self.told.items() if told.version != ABSENT)
        self.nonce, self._sent, self.refusal = nonce, version, ""
        self.unanswered.add(nonce, Push(version, sent, absent, now))
        return version

    def mark_absent(self, names: Iterable[str]) -> None:
        """The client knows that these do not exist. Only subscribed names are remembered: others may be endless."""
        for name in names:
            self._quiet.clear()
            self._forget(name)
            if name in self.subscription.names:
                self.told[name] = Told(ABSENT, Verdict.ACCEPTED)

    # --- what it answered ---

    def accept(self, nonce: str) -> None:
        """The client sent an ACK."""
        push = self.unanswered.pop(nonce)
        self._accepted = push.version
        for name, version in push.told.items():
            told = self.told.get(name)
            if told is not None and told.version == version:
                told.verdict, told.accepted = Verdict.ACCEPTED, told.resource

    def reject(self, nonce: str, reason: str) -> Push:
        """The client sent a NACK. What it refused, which is returned, is held until it changes."""
        push = self.unanswered.pop(nonce)
        self._quiet.clear()
        self._reason = reason[:_MAX_REASON]
        if nonce == self.nonce:
            self.refusal = push.version
        group = {}
        for name, version in push.told.items():
            told = self.told.get(name)
            if told is not None and told.version == version:
                told.verdict = Verdict.REJECTED
                group[name] = version
        if push.told and not self.whole:
            # Nothing of the response may have been applied: what it took away is said again, alone.
            self._asked.update(name for name in push.absent if self.subscription.wants(name))
        if group and not self.whole:
            if len(group) == len(push.told):
                self._holds.hold(group)
            else:
                # One of them has been replaced meanwhile, and may have been the wrong one.
                self._holds.retry(group)
        return push

    # --- how it stands ---

    @property
    def refused(self) -> tuple[str, ...]:
        """The names whose last version the client refused."""
        return tuple(sorted(name for name, told in self.told.items() if told.verdict is Verdict.REJECTED))

    @property
    def settled(self) -> bool:
        """Did the client accept everything that it was sent?"""
        return not self.unanswered and not self.refused

    def status(self, now: float, timeout_s: float) -> TypeStatus:
        """For people and metrics."""
        refused = self.refused
        oldest = self.unanswered.oldest
        if refused:
            state = SyncState.NACK
        elif oldest is not None:
            state = SyncState.STALE if now - oldest.sent_at >= timeout_s else SyncState.PENDING
        else:
            state = SyncState.SYNCED
        reason = self._reason if refused else ""
        return TypeStatus(self.type_url, state, self._sent, self._accepted, reason, refused, self.last_seen)
