"""extproc's answers about its own decisions, passed on: nobody else has its counts, policies and log."""

from collections.abc import Sequence
from typing import Any, Final

import httpx

from recursant.api.errors import ProblemError
from recursant.api.peers import base_url
from recursant.config.model import Config
from recursant.problems import ApiProblem, bad_request, unavailable

# It answers from memory. It is given longer than a scrape is: whoever asks this waits for nothing else.
TIMEOUT_S: Final = 5.0


class ExtProcInspection:
    """Asks the extproc of this configuration.

    Args:
        config: where its metrics are served; these answers are beside them.
        client: closed by its owner.
    """

    def __init__(self, config: Config, client: httpx.AsyncClient) -> None:
        self._base = base_url(config.extproc.metrics_host, config.extproc.metrics_port)
        self._client = client

    async def ask(self, path: str, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """GET a document.

        Raises:
            ProblemError: extproc is away, or finds something wrong with the question.
        """
        try:
            response = await self._client.get(
                f"{self._base}{path}", params=httpx.QueryParams(list(parameters)), timeout=TIMEOUT_S
            )
            document = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ProblemError(
                unavailable(f"extproc does not answer at {self._base}: Envoy routes without it", code="extproc_away")
            ) from error
        if response.is_success and isinstance(document, dict):
            return document
        raise ProblemError(_problem(document))


def _problem(document: Any) -> ApiProblem:
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return unavailable("extproc answers with something else", code="extproc_away")
    return bad_request(str(error.get("message")), param=error.get("param"))
