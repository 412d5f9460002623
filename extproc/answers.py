"""What we say to Envoy about a request that has its worker, put together from pieces that are kept.

Their arguments stand alone rather than in tuples of pairs, as a piece is looked up by the hash of all of them.
"""

from functools import lru_cache

from extproc import messages
from extproc.decision import Decision
from recursant import names


@lru_cache(maxsize=4_096)
def _to_worker(phase: messages.Phase, agent: str, class_label: str, priority: int, candidates: int) -> bytes:
    headers = (
        (names.WORKER_AGENT, agent),
        (names.WORKER_CLASS, class_label),
        (names.WORKER_PRIORITY, str(priority)),
        # The list is walked to its end and no further (DESIGN §10).
        ("x-envoy-max-retries", str(candidates - 1)),
    )
    return messages.continue_piece(phase, headers, names.AGENT_DESCRIPTION_HEADERS)


def to_worker(
    phase: messages.Phase,
    decision: Decision,
    agent: str,
    class_label: str,
    priority: int,
    own_headers: tuple[tuple[str, str], ...],
) -> bytes:
    """Send the request to the workers of `decision`, with the headers that tell them whose it is.

    Args:
        phase: the message that is answered.
        decision: where it goes.
        agent: whose it is.
        class_label: the priority class that it counts as.
        priority: of its agent, narrowed.
        own_headers: set for this request alone.
    """
    answer = _to_worker(phase, agent, class_label, priority, len(decision.rows))
    for name, value in own_headers:
        # Pieces of their own, so that the kept one repeats.
        answer += messages.header_piece(phase, name, value)
    endpoints = decision.endpoints.encode()
    if len(endpoints) < messages.SHORTEST_FILLED:
        return answer + _metadata(decision.endpoints, *_repeating(decision))
    before, after = _around_endpoints(len(endpoints), *_repeating(decision))
    return answer + before + endpoints + after


def _repeating(decision: Decision) -> tuple[str, str, str, int | None, int | None]:
    """All metadata but the endpoints: it is the same for most requests of an agent."""
    return (
        decision.model,
        decision.allowed_models,
        decision.replaced_models,
        decision.engine_priority,
        decision.max_tokens,
    )


def _metadata(
    endpoints: str, model: str, allowed: str, replaced: str, priority: int | None, max_tokens: int | None
) -> bytes:
    fields: dict[str, str | int] = {names.METADATA_ENDPOINTS: endpoints}
    if model:
        fields[names.METADATA_MODEL] = model
    if allowed:
        fields[names.METADATA_ALLOWED_MODELS] = allowed
    if replaced:
        fields[names.METADATA_REPLACED_MODELS] = replaced
    if priority is not None:
        fields[names.METADATA_PRIORITY] = priority
    if max_tokens is not None:
        fields[names.METADATA_MAX_TOKENS] = max_tokens
    return messages.metadata_piece(fields)


@lru_cache(maxsize=4_096)
def _around_endpoints(
    length: int, model: str, allowed: str, replaced: str, priority: int | None, max_tokens: int | None
) -> tuple[bytes, bytes]:
    filler = messages.filler(length)
    return messages.around(_metadata(filler, model, allowed, replaced, priority, max_tokens), filler)


@lru_cache(maxsize=4_096)
def to_client(
    agent: str,
    worker: str,
    fallback: str | None,
    affinity: str | None,
    clamped: tuple[str, ...],
    retry_after: str | None,
) -> bytes:
    """Let the response go on, with the headers that tell the client how it was served.

    Args:
        agent: whose it was.
        worker: who served it; empty for nobody.
        fallback: the one that was taken.
        affinity: what became of it.
        clamped: the fields that asked for more than the policy gives.
        retry_after: seconds, where the answer should say so and does not.
    """
    headers = [(names.SERVED_AGENT, agent)]
    if worker:
        headers.append((names.SERVED_BY, worker))
    if fallback is not None:
        headers.append((names.FALLBACK, fallback))
    if affinity is not None:
        headers.append((names.AFFINITY, affinity))
    if clamped:
        headers.append((names.CLAMPED, ",".join(clamped)))
    if retry_after is not None:
        headers.append((names.RETRY_AFTER, retry_after))
    return messages.continue_piece("response_headers", tuple(headers))
