"""`recursant policy`: what each agent needs, and what it may take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recursant.cli.options import ApiOption, Output, OutputOption, RunDirOption

if TYPE_CHECKING:
    from recursant.agents.policy import AgentPolicy

app = typer.Typer(no_args_is_help=True, help="The agents' policies: apply, look at, compare, delete.")

FileOption = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE", help="A file of one agent or with a list `agents`; - for stdin.")
]
AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
CapacityOption = Annotated[
    bool, typer.Option("--require-capacity", help="Refuse a policy that no worker can serve now.")
]
IfMatchOption = Annotated[
    str | None,
    typer.Option("--if-match", metavar="VERSION", help="Only if this version is in force, as `policy get` shows it."),
]


@app.callback()
def _policy() -> None:
    """The agents' policies: apply, look at, compare, delete."""


@app.command()
def apply(
    file: FileOption,
    require_capacity: CapacityOption = False,
    if_match: IfMatchOption = None,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Apply policies: every gateway gets them at once, and takes nothing that is invalid.

    A policy that no worker can serve is applied with a warning, and the warm-up hook runs.

    Example: recursant policy apply -f voice-transcribe.yaml
    """
    from recursant.cli.api_client import find_api, send_json
    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.output import show_document

    policies = _read(file)
    if if_match is not None and len(policies) != 1:
        raise CommandError("--if-match is for a file of one agent", USAGE)
    base = find_api(api, run_dir)
    headers = {"x-recursant-set-by": _user()}
    if if_match is not None:
        headers["if-match"] = f'"{if_match}"'
    query = "?require_capacity=true" if require_capacity else ""
    answers: list[Any] = []
    for policy in policies:
        answer = send_json("PUT", base, f"/v1/policies/{policy.agent_id}{query}", _as_dict(policy), headers)
        answers.append(answer)
        _warn(answer)
        if output is Output.TABLE:
            typer.echo(f"{answer['agent_id']} applied, version {answer['version']}")
    if output is not Output.TABLE:
        show_document({"policies": answers}, output)


@app.command()
def get(
    agent: Annotated[str | None, typer.Argument(metavar="[AGENT]", help="The agent's id; all without it.")] = None,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the policies in force.

    Example: recursant policy get chat-web -o yaml
    """
    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.output import show_document, show_table

    base = find_api(api, run_dir)
    document = get_json(base, "/v1/policies" if agent is None else f"/v1/policies/{_quoted(agent)}")
    if output is not Output.TABLE:
        show_document(document, output)
        return
    found = document["policies"] if agent is None else [document]
    columns = ("AGENT", "FAMILY", "PRIORITY", "SLA MS", "FALLBACK", "VERSION", "SOURCE", "SET BY")
    show_table(columns, [_row(each) for each in found])


@app.command()
def diff(
    file: FileOption,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare a file with the policies in force. Ends with 1 where they differ.

    Example: recursant policy diff -f recursant.yaml
    """
    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.output import show_document

    policies = _read(file)
    document = get_json(find_api(api, run_dir), "/v1/policies")
    in_force = {each["agent_id"]: each["policy"] for each in document["policies"]}
    changes: list[dict[str, Any]] = []
    for policy in policies:
        before: dict[str, Any] = in_force.get(policy.agent_id, {})
        for field, value in _as_dict(policy).items():
            if field not in before or before[field] != value:
                changes.append({"agent_id": policy.agent_id, "field": field, "from": before.get(field), "to": value})
    if output is not Output.TABLE:
        show_document({"changes": changes}, output)
    else:
        for each in changes:
            typer.echo(f"{each['agent_id']}: {each['field']}: {each['from']} -> {each['to']}")
    if changes:
        raise typer.Exit(1)


@app.command()
def delete(
    agent: AgentArgument, if_match: IfMatchOption = None, api: ApiOption = None, run_dir: RunDirOption = None
) -> None:
    """Delete a policy, also one of the configuration file. Its requests are then those of an unknown agent.

    Example: recursant policy delete voice-transcribe
    """
    from recursant.cli.api_client import find_api, send_json

    headers = {"x-recursant-set-by": _user()}
    if if_match is not None:
        headers["if-match"] = f'"{if_match}"'
    send_json("DELETE", find_api(api, run_dir), f"/v1/policies/{_quoted(agent)}", None, headers)
    typer.echo(f"{agent} deleted")


@app.command()
def validate(
    file: FileOption,
    require_capacity: CapacityOption = False,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check policies, and whether the fleet could serve them now; changes nothing.

    Example: recursant policy validate -f voice-transcribe.yaml --require-capacity
    """
    from recursant.cli.api_client import find_api, send_json
    from recursant.cli.errors import CommandError
    from recursant.cli.output import show_document

    base = find_api(api, run_dir)
    answers = [send_json("POST", base, "/v1/policies/validate", _as_dict(policy)) for policy in _read(file)]
    for answer in answers:
        _warn(answer)
        if output is Output.TABLE:
            typer.echo(f"{answer['agent_id']}: ok, version {answer['version']}")
    if output is not Output.TABLE:
        show_document({"policies": answers}, output)
    if require_capacity and any(answer["warnings"] for answer in answers):
        raise CommandError("no worker can serve some of these now")


def _read(file: str) -> "tuple[AgentPolicy, ...]":
    import sys

    from recursant.cli.configuration import check
    from recursant.cli.errors import USAGE, CommandError
    from recursant.config.load import ConfigError, parse_config

    if file == "-":
        try:
            config = parse_config(sys.stdin.read(), "stdin").config
        except ConfigError as error:
            raise CommandError("\n".join(map(str, error.problems)), USAGE) from error
    else:
        config = check(Path(file)).config
    if not config.agents:
        raise CommandError(f"{file} has no agents", USAGE)
    return config.agents


def _as_dict(policy: "AgentPolicy") -> dict[str, Any]:
    return policy.model_dump(mode="json", by_alias=True)


def _user() -> str:
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # In a container the user may have no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"[:128].encode("ascii", "replace").decode()


def _quoted(agent: str) -> str:
    from urllib.parse import quote

    return quote(agent, safe="")


def _warn(answer: dict[str, Any]) -> None:
    for warning in answer["warnings"]:
        hook = answer.get("warm_up", "none")
        told = "" if hook == "none" else f" (warm-up {hook})"
        typer.echo(f"warning: {answer['agent_id']}: {warning}{told}", err=True)


def _row(each: dict[str, Any]) -> list[str]:
    policy = each["policy"]
    words = (policy["model_family"], policy["priority"], policy["latency_sla_ms"], policy["fallback_strategy"])
    shown = ["-" if word is None else str(word) for word in words]
    return [each["agent_id"], *shown, each["version"], each["source"], each["set_by"] or "-"]
