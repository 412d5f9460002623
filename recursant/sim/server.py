"""The worker's HTTP server: vLLM's API as an ASGI application.

What vLLM 0.32 was seen to do, this does: bodies, statuses, error types. Where a generative vLLM has no such route
(`/v1/embeddings`) it answers a bare 404; here the refusal says why, as vLLM's releases before did.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from recursant.sim import orca, text
from recursant.sim.control import Control
from recursant.sim.errors import ApiError, bad_request, engine_dead, invalid_body
from recursant.sim.faults import FaultKind, FaultSpec
from recursant.sim.formats import (
    DONE,
    ChatFormat,
    CompletionFormat,
    ResponseFormat,
    StreamFormat,
    event,
    permission,
    usage,
)
from recursant.sim.generation import Generation
from recursant.sim.http import ClientGone, Receive, Request, Scope, Send, stop_task, until_gone
from recursant.sim.other_apis import MessagesFormat, ResponsesFormat, parse_message, parse_response
from recursant.sim.protocol import (
    GenerationSpec,
    ServedModels,
    check_model,
    checked_messages,
    parse_chat,
    parse_completion,
    parse_json,
)
from recursant.sim.recorder import RecordedRequest
from recursant.sim.sleep import SleepRoutes
from recursant.sim.worker import SimWorker

# The API that is imitated.
VLLM_VERSION: Final = "0.32.0"

Handler = Callable[[Request], Awaitable[None]]
Parser = Callable[[Mapping[str, Any], ServedModels], GenerationSpec]


class SimServer:
    """The ASGI application of one worker."""

    def __init__(self, worker: SimWorker, control: Control) -> None:
        self._worker = worker
        self._control = control
        generate = self._generate
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/completions": {"POST": partial(generate, parse=parse_completion, form=CompletionFormat)},
            "/v1/chat/completions": {"POST": partial(generate, parse=parse_chat, form=ChatFormat)},
            "/v1/responses": {"POST": partial(generate, parse=parse_response, form=ResponsesFormat)},
            "/v1/messages": {"POST": partial(generate, parse=parse_message, form=MessagesFormat)},
            "/v1/embeddings": {"POST": self._embeddings},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/kv_event_sources": {"GET": self._kv_event_sources},
            "/tokenize": {"POST": self._tokenize},
            "/metrics": {"GET": self._metrics},
            **SleepRoutes(worker).routes(),
            **control.routes(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        methods = self._routes.get(request.path) or self._control.dynamic_route(request.path)
        if methods is None:
            await request.respond_json(404, {"detail": "Not Found"})
            return
        handler = methods.get(request.method)
        if handler is None:
            allowed = {"allow": ", ".join(methods)}
            await request.respond(405, b'{"detail":"Method Not Allowed"}', headers=allowed)
            return
        try:
            await handler(request)
        except ApiError as error:
            await request.respond_error(error)
        except ClientGone:
            pass

    async def _generate(self, request: Request, *, parse: Parser, form: type[ResponseFormat]) -> None:
        """Completions, chats and their kin: record, parse, admit, generate, answer."""
        worker = self._worker
        base_id = request.header("x-request-id") or uuid.uuid4().hex
        body = await request.body()
        record = worker.recorder.record(base_id, request.method, request.path, request.headers, body, time.time())
        try:
            with worker.serving():
                spec = parse(self._json(request, body), worker.models)
                self._note(record, spec)
                response = form(base_id, spec.model, int(time.time()), worker.id)
                record.response_id = response.id
                await self._answer(request, spec, response, worker.admit(spec), record)
        except ApiError as error:
            record.outcome = f"error {error.status}"
            raise
        finally:
            if record.outcome == "running":
                record.outcome = "aborted"

    async def _answer(
        self,
        request: Request,
        spec: GenerationSpec,
        response: ResponseFormat,
        fault: FaultSpec | None,
        record: RecordedRequest,
    ) -> None:
        kind = None if fault is None else fault.kind
        error_after = fault.after_tokens if fault is not None and kind is FaultKind.ERROR_IN_STREAM else None
        generation = self._worker.open(spec)
        watcher = asyncio.create_task(until_gone(request, generation.hang_up))
        try:
            if kind is FaultKind.HANG:
                await generation.hung_up()
                return
            self._worker.queue(generation)
            if isinstance(response, StreamFormat) and spec.stream:
                await self._stream(request, generation, response, error_after)
            else:
                await self._whole(request, generation, response, error_after)
            if not generation.disconnected:
                record.outcome = "finished"
        finally:
            # Also when the client left or the server ends.
            self._worker.close(generation)
            await stop_task(watcher)

    async def _whole(
        self, request: Request, generation: Generation, response: ResponseFormat, error_after: int | None
    ) -> None:
        if error_after is not None:
            raise self._worker.failed(engine_dead())
        while not generation.done:
            await generation.wait()
            if generation.disconnected:
                return
        choices = [(choice, choice.take()[0]) for choice in generation.choices]
        completion_tokens = sum(choice.reply.tokens for choice in generation.choices)
        body = response.whole(choices, generation.spec.prompt_tokens, completion_tokens)
        load = orca.load_report(request.header(orca.REQUEST_HEADER), self._worker.engine)
        await request.respond_json(200, body, load)

    async def _stream(
        self, request: Request, generation: Generation, response: StreamFormat, error_after: int | None
    ) -> None:
        spec = generation.spec
        sent = [0] * len(generation.choices)
        opened = False
        # As vLLM does: the head goes out before there is any token, so what fails later fails inside a 200.
        await request.start_events()
        while True:
            if error_after is not None and sum(sent) >= error_after:
                error = self._worker.failed(engine_dead())
                await request.write(event(error.body) + DONE, more=False)
                return
            await generation.wait()
            if generation.disconnected:
                return
            parts: list[bytes] = []
            for choice, delta, tokens in generation.news():
                if not opened:
                    opened = True
                    parts.append(
                        response.opening(len(sent), usage(spec.prompt_tokens, 0) if spec.continuous_usage else None)
                    )
                sent[choice.index] += tokens
                continuous = usage(spec.prompt_tokens, sent[choice.index]) if spec.continuous_usage else None
                ended = choice.done
                parts.append(
                    response.chunk(choice, delta, ended=ended, continuous=continuous, last=not spec.include_usage)
                )
            done = generation.done
            if done:
                if spec.include_usage:
                    parts.append(response.usage_chunk(spec.prompt_tokens, sum(sent)))
                parts.append(DONE)
            if parts:
                await request.write(b"".join(parts), more=not done)
            if done:
                return

    @staticmethod
    def _note(record: RecordedRequest, spec: GenerationSpec) -> None:
        record.model = spec.model
        record.priority = spec.priority
        record.stream = spec.stream
        record.prompt_tokens = spec.prompt_tokens

    @staticmethod
    def _json(request: Request, body: bytes) -> dict[str, Any]:
        media_type = request.header("content-type").split(";", 1)[0].strip().lower()
        if media_type != "application/json":
            raise invalid_body("Unsupported Media Type: Only 'application/json' is allowed", None)
        return parse_json(body)

    async def _embeddings(self, request: Request) -> None:
        body = self._json(request, await request.body())
        check_model(body, self._worker.models)
        raise bad_request("The model does not support Embeddings API")

    async def _models(self, request: Request) -> None:
        worker = self._worker
        cards = [self._card(name, None) for name in worker.options.models]
        cards += [self._card(name, worker.options.models[0]) for name in worker.options.lora_adapters]
        await request.respond_json(200, {"object": "list", "data": cards})

    def _card(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._worker.started_at,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": self._worker.models.max_model_len,
            "permission": [permission(f"modelperm-{name}", self._worker.started_at)],
        }

    async def _health(self, request: Request) -> None:
        await request.respond(200 if self._worker.healthy else 503, b"")

    async def _version(self, request: Request) -> None:
        await request.respond_json(200, {"version": VLLM_VERSION})

    async def _load(self, request: Request) -> None:
        tracked = self._worker.options.server_load_tracking
        await request.respond_json(200, {"server_load": self._worker.in_flight if tracked else 0})

    async def _kv_event_sources(self, request: Request) -> None:
        await request.respond_json(200, {})

    async def _tokenize(self, request: Request) -> None:
        body = self._json(request, await request.body())
        check_model(body, self._worker.models)
        if "messages" in body:
            prompt = text.render_chat(checked_messages(body["messages"]), body.get("tools"))
        elif isinstance(body.get("prompt"), str):
            prompt = text.prompt_bytes(body["prompt"])
        else:
            raise invalid_body("{'type': 'missing', 'msg': 'Field required'}", "body.prompt")
        ids = text.token_ids(prompt)
        limit = self._worker.models.max_model_len
        await request.respond_json(200, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def _metrics(self, request: Request) -> None:
        page = self._worker.metrics.render()
        await request.respond(200, page, "text/plain; version=0.0.4; charset=utf-8")
