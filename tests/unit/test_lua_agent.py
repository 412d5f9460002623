import pytest
from lua_kit import Outcome, Script

AGENT = Script("agent")


def run(headers: dict[str, str], **context: object) -> Outcome:
    return AGENT.run(headers={":method": "POST", **headers}, context={"request_id_bytes": 128, **context})


# --- the agent of a path (SPEC A6) ---


def test_a_path_names_the_agent() -> None:
    assert run({}, agent_id="chat-web").headers["x-agent-id"] == "chat-web"


def test_a_clients_own_agent_wins_only_where_the_route_allows_it() -> None:
    sent = {"x-agent-id": "batch"}
    assert run(sent, agent_id="chat-web", allow_client_agent=False).headers["x-agent-id"] == "chat-web"
    assert run(sent, agent_id="chat-web", allow_client_agent=True).headers["x-agent-id"] == "batch"
    assert run({"x-agent-id": ""}, agent_id="chat-web", allow_client_agent=True).headers["x-agent-id"] == "chat-web"


def test_elsewhere_the_header_stays_as_it_is() -> None:
    assert run({"x-agent-id": "batch"}).headers["x-agent-id"] == "batch"
    assert "x-agent-id" not in run({}).headers


# --- the request id ---


@pytest.mark.parametrize("good", ["a", "0e1f-22", "req_1.2:3/4+5=6", "x" * 128])
def test_a_good_request_id_is_kept(good: str) -> None:
    assert run({"x-request-id": good}).headers["x-request-id"] == good


@pytest.mark.parametrize("bad", ["", "x" * 129, "a b", "a\nb", 'a"b', "-a", "ä", "a,b", "a;b", "{}"])
def test_a_bad_request_id_does_not_reach_anybody(bad: str) -> None:
    assert "x-request-id" not in run({"x-request-id": bad}).headers


def test_the_longest_request_id_is_configured() -> None:
    assert "x-request-id" in run({"x-request-id": "x" * 16}, request_id_bytes=16).headers
    assert "x-request-id" not in run({"x-request-id": "x" * 17}, request_id_bytes=16).headers


# --- the content type ---


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"content-type": ""},
        # What `curl -d` sends.
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "Application/X-WWW-Form-UrlEncoded; charset=utf-8"},
    ],
)
def test_a_body_without_a_type_of_its_own_is_json(sent: dict[str, str]) -> None:
    assert run({"content-length": "2", **sent}).headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "text/plain", "application/json; charset=utf-8"])
def test_other_types_stay(kind: str) -> None:
    assert run({"content-length": "2", "content-type": kind}).headers["content-type"] == kind


def test_without_a_body_there_is_nothing_to_name() -> None:
    assert "content-type" not in run({}).headers
    assert "content-type" not in run({"content-length": "0"}).headers
    assert "content-type" not in run({":method": "GET", "content-length": "2"}).headers
