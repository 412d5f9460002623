"""extproc's answers about its own decisions, passed on: nobody else has its counts, policies and log."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import httpx

from recursant.api.errors import ProblemError
from recursant.api.peers import extproc_bases
from recursant.config.model import Config
from recursant.problems import ApiProblem, bad_request, unavailable

# It answers from memory. It is given longer than a scrape is: whoever asks this waits for nothing else.
TIMEOUT_S: Final = 5.0
# Between the places of the processes in a cursor.
_SEPARATOR: Final = ","
# A place in no log: to a log it is one of an earlier process, and counts as its beginning.
_BEGINNING: Final = ":0"

Parameters = Sequence[tuple[str, str]]
_Answer = dict[str, Any] | ApiProblem | None


class ExtProcInspection:
    """Asks the extproc of this configuration, all of its processes.

    Args:
        config: where their metrics are served; these answers are beside them.
        client: closed by its owner.
    """

    def __init__(self, config: Config, client: httpx.AsyncClient) -> None:
        self._bases = extproc_bases(config)
        self._client = client

    async def ask(self, path: str, parameters: Parameters) -> dict[str, Any]:
        """GET a document: the only process's, or the processes' together.

        Raises:
            ProblemError: no process answers, or they find something wrong with the question.
        """
        asked = questions(path, parameters, len(self._bases))
        answers = await asyncio.gather(*map(self._ask, self._bases, [path] * len(self._bases), asked))
        documents = [answer for answer in answers if isinstance(answer, dict)]
        if not documents:
            where = ", ".join(self._bases)
            away = unavailable(f"extproc does not answer at {where}: Envoy routes without it", code="extproc_away")
            raise ProblemError(next((answer for answer in answers if isinstance(answer, ApiProblem)), away))
        if len(answers) == 1:
            return documents[0]
        found = [answer if isinstance(answer, dict) else None for answer in answers]
        return together(found, dict(parameters))

    async def _ask(self, base: str, path: str, parameters: Parameters) -> _Answer:
        """The document, the problem, or None where the process is away."""
        try:
            response = await self._client.get(
                f"{base}{path}", params=httpx.QueryParams(list(parameters)), timeout=TIMEOUT_S
            )
            document = response.json()
        except (httpx.HTTPError, ValueError):
            return None
        if response.is_success and isinstance(document, dict):
            return document
        return _problem(document)


def questions(path: str, parameters: Parameters, processes: int) -> list[Parameters]:
    """What to ask each process, so that their answers together answer `parameters`. Pure."""
    given = dict(parameters)
    after = given.get("after")
    if path != "/decisions" or processes == 1 or after is None:
        return [parameters] * processes
    places = [place or _BEGINNING for place in after.split(_SEPARATOR)]
    # A cursor of another number of processes is of an earlier run.
    if len(places) != processes:
        places = [_BEGINNING] * processes
    # Whoever follows must miss nothing, so what a process gives is passed on whole.
    limit = max(int(given.get("limit", "100")) // processes, 1)
    asked = given | {"limit": str(limit)}
    return [list((asked | {"after": place}).items()) for place in places]


def together(documents: Sequence[dict[str, Any] | None], given: dict[str, str]) -> dict[str, Any]:
    """The documents of several processes as one; None stands for one that is away. Pure.

    Args:
        documents: of the processes in their order; one at least is there.
        given: the parameters that were asked.
    """
    there = [document for document in documents if document is not None]
    if "decisions" not in there[0]:
        # They count together, so each would decide alike; only who waits is each one's own.
        waiting: Counter[str] = Counter()
        for document in there:
            waiting.update(document["waiting"])
        return there[0] | {"waiting": dict(waiting)}
    decisions = sorted((each for document in there for each in document["decisions"]), key=lambda each: each["time"])
    after = given.get("after")
    if after is None:
        decisions = decisions[-int(given.get("limit", "100")) :]
    # Whoever is away now is asked from its place again; if another process stands there then, from its beginning.
    before = [] if after is None else after.split(_SEPARATOR)
    before = before if len(before) == len(documents) else [_BEGINNING] * len(documents)
    places = [old if each is None else each["cursor"] for each, old in zip(documents, before, strict=True)]
    return {"decisions": decisions, "cursor": _SEPARATOR.join(places)}


def _problem(document: Any) -> ApiProblem:
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return unavailable("extproc answers with something else", code="extproc_away")
    return bad_request(str(error.get("message")), param=error.get("param"))
