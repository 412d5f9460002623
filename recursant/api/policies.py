"""The agents' policies: read, checked, applied and deleted (SPEC A3, A4)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel

from recursant.agents.capacity import missing_for
from recursant.agents.directory import Condition, PolicyDirectory, PolicyInForce, VersionConflictError
from recursant.agents.policy import AGENT_ID_PATTERN, AgentPolicy
from recursant.agents.policy_codec import content_version, policy_to_dict
from recursant.api.body import read_json
from recursant.api.errors import ProblemError
from recursant.api.warm_up import WarmUp
from recursant.config.problem import field_path
from recursant.config.validate import validate
from recursant.fleet.families import FamilyResolver
from recursant.fleet.worker import WorkerRecord
from recursant.problems import ApiProblem, bad_request, unavailable
from recursant.store.exchange import StoreError

_ETAG: Final = re.compile(r'(?:W/)?"([^"]{1,64})"')
_MAX_SET_BY: Final = 128

AgentId = Annotated[str, Path(pattern=AGENT_ID_PATTERN)]
IfMatch = Annotated[str | None, Header(description='The ETag that was read, as "0123abcd", or * for any.')]
IfNoneMatch = Annotated[str | None, Header(description="* : only if there is none yet.")]
SetBy = Annotated[str, Header(alias="x-recursant-set-by", max_length=_MAX_SET_BY, description="Who, for the record.")]


class PolicyInfo(BaseModel):
    """A policy in force."""

    agent_id: str
    version: str
    # "file" or "applied"
    source: str
    set_by: str
    set_at_ms: int
    policy: dict[str, Any]


class PolicyList(BaseModel):
    """All of them, by agent id."""

    policies: list[PolicyInfo]


class Applied(PolicyInfo):
    """A policy that was applied.

    `warm_up`: "started", "running", "busy", or "none" where no hook is configured or none was needed.
    """

    warnings: list[str]
    warm_up: str


class Checked(BaseModel):
    """A policy that could be applied."""

    agent_id: str
    version: str
    policy: dict[str, Any]
    warnings: list[str]


class Deleted(BaseModel):
    """A policy that is gone."""

    agent_id: str
    deleted: bool = True


@dataclass(frozen=True, slots=True)
class PolicyDesk:
    """What the routes need.

    Attributes:
        directory: the policies.
        workers: the fleet.
        families: the resolver with one more policy in force.
        warm_up: the hook.
    """

    directory: PolicyDirectory
    workers: Callable[[], Mapping[str, WorkerRecord]]
    families: Callable[[AgentPolicy], FamilyResolver]
    warm_up: WarmUp

    def missing(self, policy: AgentPolicy) -> str | None:
        """Why no worker can serve it now."""
        return missing_for(policy, self.workers().values(), self.families(policy))


def router(desk: PolicyDesk) -> APIRouter:
    """`/v1/policies`."""
    routes = APIRouter(tags=["policies"])
    body = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": AgentPolicy.model_json_schema(by_alias=True)}},
        }
    }

    @routes.get("/v1/policies")
    async def list_policies() -> PolicyList:
        """Every policy in force."""
        return PolicyList(policies=[_info(each) for each in desk.directory.in_force.values()])

    @routes.post("/v1/policies/validate", openapi_extra=body)
    async def validate_policy(request: Request) -> Checked:
        """Check a policy, and whether the fleet could serve it, and change nothing."""
        policy = _policy(await read_json(request))
        missing = desk.missing(policy)
        return Checked(
            agent_id=policy.agent_id,
            version=content_version(policy),
            policy=policy_to_dict(policy),
            warnings=[] if missing is None else [missing],
        )

    @routes.get("/v1/policies/{agent_id}")
    async def get_policy(agent_id: AgentId, response: Response) -> PolicyInfo:
        """One policy; its version is the ETag."""
        found = desk.directory.in_force.get(agent_id)
        if found is None:
            raise _not_found(agent_id)
        response.headers["etag"] = _etag(found.version)
        return _info(found)

    @routes.put("/v1/policies/{agent_id}", openapi_extra=body)
    async def put_policy(
        agent_id: AgentId,
        request: Request,
        response: Response,
        require_capacity: Annotated[bool, Query(description="Refuse it where no worker can serve it.")] = False,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        set_by: SetBy = "api",
    ) -> Applied:
        """Apply a policy. It is live everywhere within a second, over whatever the configuration file says.

        412 where `If-Match` or `If-None-Match` does not hold; 409 with `require_capacity` where nobody can serve it.
        """
        policy = _policy(await read_json(request))
        if policy.agent_id != agent_id:
            raise ProblemError(bad_request(f"agent_id: is {policy.agent_id!r}, not {agent_id!r}", param="agent_id"))
        condition = _condition(if_match, if_none_match)
        missing = desk.missing(policy)
        if missing is not None and require_capacity:
            raise ProblemError(ApiProblem(409, missing, "conflict_error", None, "no_capacity"))
        try:
            found = await desk.directory.put(policy, set_by=_printable(set_by), condition=condition)
        except VersionConflictError as error:
            raise ProblemError(_precondition_failed(error)) from error
        except StoreError as error:
            raise ProblemError(_away(error)) from error
        warm_up = "none" if missing is None else desk.warm_up.ask_for(policy, missing)
        response.headers["etag"] = _etag(found.version)
        return Applied(**_info(found).model_dump(), warnings=[] if missing is None else [missing], warm_up=warm_up)

    @routes.delete("/v1/policies/{agent_id}")
    async def delete_policy(agent_id: AgentId, if_match: IfMatch = None, set_by: SetBy = "api") -> Deleted:
        """Delete a policy, also one of the configuration file. Its requests are then those of an unknown agent."""
        if agent_id not in desk.directory.in_force:
            raise _not_found(agent_id)
        try:
            await desk.directory.delete(agent_id, set_by=_printable(set_by), condition=_condition(if_match, None))
        except VersionConflictError as error:
            raise ProblemError(_precondition_failed(error)) from error
        except StoreError as error:
            raise ProblemError(_away(error)) from error
        return Deleted(agent_id=agent_id)

    return routes


def _policy(data: Any) -> AgentPolicy:
    if not isinstance(data, dict) or "agents" in data:
        raise ProblemError(bad_request("expected the fields of one policy", param="body", code="invalid_policy"))
    # The same words as for a file, so that both name the field and what is allowed.
    result = validate({"agent_id": None, **data})
    if result.config is None:
        texts = [
            f"{field_path(each.location)}: {each.message}{f', got {each.value}' if each.value else ''}"
            f"{f'; allowed: {each.allowed}' if each.allowed else ''}"
            for each in result.errors
        ]
        param = field_path(result.errors[0].location) or None
        raise ProblemError(bad_request("; ".join(texts), param=param, code="invalid_policy"))
    return result.config.agents[0]


def _condition(if_match: str | None, if_none_match: str | None) -> Condition:
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise ProblemError(bad_request("If-None-Match: only * is understood", param="if-none-match"))
        return Condition(absent=True)
    if if_match is None:
        return Condition()
    if if_match.strip() == "*":
        return Condition(frozenset())
    versions = frozenset(_ETAG.findall(if_match))
    if not versions:
        raise ProblemError(bad_request('If-Match: expected the ETag in quotes, as "0123abcd"', param="if-match"))
    return Condition(versions)


def _info(found: PolicyInForce) -> PolicyInfo:
    return PolicyInfo(
        agent_id=found.policy.agent_id,
        version=found.version,
        source=found.source,
        set_by=found.set_by,
        set_at_ms=found.set_at_ms,
        policy=policy_to_dict(found.policy),
    )


def _etag(version: str) -> str:
    return f'"{version}"'


def _printable(set_by: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in set_by)


def _not_found(agent_id: str) -> ProblemError:
    message = f"no policy {agent_id!r}; GET /v1/policies lists those that exist"
    return ProblemError(ApiProblem(404, message, "not_found_error", "agent_id", "policy_not_found"))


def _precondition_failed(error: VersionConflictError) -> ApiProblem:
    return ApiProblem(412, str(error), "conflict_error", "if-match", "version_conflict")


def _away(error: StoreError) -> ApiProblem:
    return unavailable(f"Redis is away, so the others cannot be told: {error}", code="redis_unavailable")
