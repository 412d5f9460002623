"""What operators may ask a running extproc, as JSON on the port of its metrics: `/explain` and `/decisions`.

Here and nowhere else are the counts, the policies and the log that the decisions are made with, so the answers come
from here; the control API only passes them on. Nothing on these paths changes anything.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from extproc.decisions import DecisionLog
from extproc.desk import Desk
from extproc.gateway import Gateway
from extproc.rehearsal import DECIDING_HEADERS, Question, rehearse
from recursant import names
from recursant.problems import ApiProblem, bad_request

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MAX_LIMIT: Final = 1_000
_MAX_TOKENS: Final = 1_000_000_000

Parameters = Mapping[str, list[str]]


class Inspector:
    """Answers questions about decisions. On the event loop's thread, as what it reads lives there."""

    def __init__(self, gateway: Gateway, desk: Desk, decisions: DecisionLog) -> None:
        self._gateway = gateway
        self._desk = desk
        self._decisions = decisions

    def answer(self, path: str, parameters: Parameters) -> dict[str, Any] | ApiProblem | None:
        """The document at `path`, what is wrong with the question, or None where there is no such path."""
        match path:
            case "/explain":
                question = read_question(parameters)
                if isinstance(question, ApiProblem):
                    return question
                return rehearse(self._gateway, question, waiting=self._desk.depth())
            case "/decisions":
                limit = _number(parameters, "limit", 100, 1, MAX_LIMIT)
                if isinstance(limit, ApiProblem):
                    return limit
                return self._decisions.read(
                    limit=limit or 1, agent=_last(parameters, "agent"), after=_last(parameters, "after")
                )
            case _:
                return None


def read_question(parameters: Parameters) -> Question | ApiProblem:
    """The request that the parameters describe: `agent`, `tokens`, `max_tokens`, `model`, `session`, `header`."""
    tokens = _number(parameters, "tokens", 0, 0, _MAX_TOKENS)
    if isinstance(tokens, ApiProblem):
        return tokens
    bound = _number(parameters, "max_tokens", None, 1, _MAX_TOKENS)
    if isinstance(bound, ApiProblem):
        return bound
    headers: dict[str, str] = {}
    for given in parameters.get("header", []):
        name, equals, value = given.partition("=")
        name = name.strip().lower()
        if not equals or name not in DECIDING_HEADERS:
            allowed = ", ".join(DECIDING_HEADERS)
            return bad_request(
                f"header must be NAME=VALUE, the name one of {allowed}; not {given[:64]!r}", param="header"
            )
        headers[name] = value
    for parameter, header in (("agent", names.AGENT_ID), ("session", names.SESSION_ID)):
        value_given = _last(parameters, parameter)
        if value_given is not None:
            headers[header] = value_given
    return Question(headers, tokens or 0, bound, _last(parameters, "model"))


def inspection_app(
    metrics: "WSGIApplication", ask: Callable[[str, Parameters], dict[str, Any] | ApiProblem | None]
) -> "WSGIApplication":
    """`metrics`, with `/explain` and `/decisions` beside it; `ask` answers those, from any thread."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return metrics(environ, start_response)
        parameters = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=64)
        found = ask(environ.get("PATH_INFO", ""), parameters)
        if found is None:
            return metrics(environ, start_response)
        if isinstance(found, ApiProblem):
            status, body = HTTPStatus(found.status), found.body()
        else:
            status, body = HTTPStatus.OK, json.dumps(found).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return app


def _last(parameters: Parameters, name: str) -> str | None:
    values = parameters.get(name)
    return values[-1] if values else None


def _number(parameters: Parameters, name: str, default: int | None, least: int, most: int) -> int | ApiProblem | None:
    given = _last(parameters, name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > len(str(most)) or not least <= int(given) <= most:
        return bad_request(f"{name} must be a whole number from {least} to {most}", param=name)
    return int(given)
