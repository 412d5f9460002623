"""Reading recursant.yaml: the operators' files load, and every mistake is named with file, line, field and value."""

import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from recursant.agents.policy import AgentPolicy
from recursant.config import load
from recursant.config.document import MAX_BYTES
from recursant.config.load import (
    ConfigError,
    ConfigFileError,
    ConfigSyntaxError,
    ConfigValueError,
    Problem,
    check_config,
    dump_config,
    load_config,
    parse_config,
)
from recursant.config.model import Config, StaticModel
from recursant.config.validate import validate
from recursant.fleet.static import static_state
from recursant.store.codec import check

# SPEC A2, word for word.
OPERATORS_FILE = """\
routing:
  default_fallback: round_robin        # when no agent matches
  timeout_ms: 15000                    # global bound
agents:
  - agent_id: chat-web
    model_family: qwen
    min_vram_mb: 3200
    latency_sla_ms: 800
    priority: 10
    fallback_strategy: queue_and_retry
    retry_max: 3
    retry_delay_ms: 200
  - agent_id: code-completion
    model_family: deepseek
    min_vram_mb: 6400
    latency_sla_ms: 2000
    priority: 8
    fallback_strategy: degrade_to_qwen
  - agent_id: batch-summary
    model_family: phi
    min_vram_mb: 1200
    latency_sla_ms: 5000
    priority: 1
    fallback_strategy: drop
workers:
  - {host: vllm-node-01, port: 8000, models: [qwen, phi]}
  - {host: vllm-node-02, port: 8000, models: [deepseek, qwen]}
"""
ONE_AGENT = """\
agent_id: voice-transcribe
model_family: whisper
min_vram_mb: 4200
latency_sla_ms: 3000
fallback_strategy: queue_and_retry
timeout_ms: 15000
"""


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    return caught.value.problems


def test_the_operators_file_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "recursant.yaml"
    path.write_text(OPERATORS_FILE)
    result = check_config(path)
    config = result.config
    assert result.warnings == ()
    assert config.routing.default_fallback == "round_robin"
    assert config.routing.timeout_ms == 15_000
    assert [agent.agent_id for agent in config.agents] == ["chat-web", "code-completion", "batch-summary"]
    chat = config.agents[0]
    assert (chat.model_family, chat.min_vram_mb, chat.latency_sla_ms, chat.priority) == ("qwen", 3200, 800, 10)
    assert (chat.fallback_strategy, chat.retry_max, chat.retry_delay_ms) == ("queue_and_retry", 3, 200)
    assert [(worker.worker_id, worker.models) for worker in config.workers] == [
        ("vllm-node-01:8000", ("qwen", "phi")),
        ("vllm-node-02:8000", ("deepseek", "qwen")),
    ]


def test_a_single_agent_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "voice.yaml"
    path.write_text(ONE_AGENT)
    (policy,) = load_config(path).agents
    assert policy == AgentPolicy(
        agent_id="voice-transcribe",
        model_family="whisper",
        min_vram_mb=4200,
        latency_sla_ms=3000,
        fallback_strategy="queue_and_retry",
        timeout_ms=15_000,
    )
    assert load_config(path) == Config(agents=(policy,))


def test_agents_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "recursant.yaml"
    path.write_text(OPERATORS_FILE)
    assert [agent.priority for agent in load_config(path).agents] == [10, 8, 1]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "agents:\nworkers: ~\nredis:\n", "\ufeffagents: []\n"])
def test_what_is_not_given_is_default(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_config(path) == Config()


ERRORS: list[tuple[str, str, list[tuple[int, str, str | None, str, str | None]]]] = [
    # name, file, [(line, field, value, message, allowed)]
    (
        "types",
        'routing:\n  timeout_ms: "15000"\nagents: {}\nlimits: [1]\ngateway:\n  port: true\nxds: {debounce_ms: 1.5}\n',
        [
            (2, "routing.timeout_ms", "'15000'", "wrong type", "a whole number from 1 to 86400000"),
            (3, "agents", "a mapping", "wrong type", "a list"),
            (4, "limits", "a list of 1", "wrong type", "a mapping"),
            (6, "gateway.port", "true", "wrong type", "a whole number from 1 to 65535"),
            (7, "xds.debounce_ms", "1.5", "wrong type", "a whole number from 0 to 10000"),
        ],
    ),
    (
        "ranges and choices",
        """\
agents:
- agent_id: a
  priority: -3
  class: urgent
  fallback_strategy: degrade_to_
  inspect_body: ~
gateway: {port: 70000}
""",
        [
            (3, "agents[0].priority", "-3", "out of range", "a whole number from 0 to 1000"),
            (4, "agents[0].class", "'urgent'", "not allowed", "critical, high, normal, low"),
            (
                5,
                "agents[0].fallback_strategy",
                "'degrade_to_'",
                "not allowed",
                "queue_and_retry, drop, round_robin, reject, degrade_to_<family>",
            ),
            (6, "agents[0].inspect_body", "nothing", "not allowed", "auto, always, never"),
            (7, "gateway.port", "70000", "out of range", "a whole number from 1 to 65535"),
        ],
    ),
    (
        "unknown and missing keys",
        "redsi: {url: x}\nrouting:\n  time-out-ms: 1\nworkers:\n- port: 1\n",
        [
            (
                1,
                "redsi",
                None,
                "unknown key, did you mean redis?",
                (
                    "admission, agents, api, decisions, extproc, families, gateway, isolation, limits, liveness, "
                    "paths, probes, redis, routing, warm_up, workers, xds"
                ),
            ),
            (
                3,
                "routing.time-out-ms",
                None,
                "unknown key, did you mean timeout_ms?",
                "affinity, candidates, default_fallback, timeout_ms, weights",
            ),
            (5, "workers[0].host", None, "missing", "a host name or an IP address"),
        ],
    ),
    (
        "duplicates",
        """\
agents:
- agent_id: a
- agent_id: b
- agent_id: a
  agent_id: c
workers:
- {host: n1, id: one}
- {host: n2, id: one}
- {host: N1}
- {host: '::1'}
- {host: '0:0::1', id: six}
- {host: n5, id: 'n6:8000'}
- {host: n6}
paths:
- {path: /x, agent_id: a}
- {path: /x, agent_id: b}
extproc:
  listen:
  - h:1
  - h:1
""",
        [
            (4, "agents[2].agent_id", "'a'", "agent_id given twice, first on line 2", None),
            (5, "agents[2].agent_id", None, "duplicate key, first given on line 4", None),
            (8, "workers[1].id", "'one'", "worker id given twice, first on line 7", None),
            (9, "workers[2].host", "'n1:8000'", "worker address given twice, first on line 7", None),
            (11, "workers[4].host", "'::1:8000'", "worker address given twice, first on line 10", None),
            (13, "workers[6]", "'n6:8000'", "worker id given twice, first on line 12", None),
            (16, "paths[1].path", "'/x'", "path given twice, first on line 15", None),
            (20, "extproc.listen[1]", "'h:1'", "address given twice, first on line 19", None),
        ],
    ),
    (
        "references",
        "agents: [{agent_id: a}]\npaths:\n- {path: /x, agent_id: nobody}\n- {path: /readyz, agent_id: a}\n",
        [
            (3, "paths[0].agent_id", "'nobody'", "no such agent", "a"),
            (4, "paths[1].path", "'/readyz'", "the gateway answers this path itself", None),
        ],
    ),
    (
        "paths without agents",
        "paths: [{path: /x, agent_id: nobody}]\n",
        [(1, "paths[0].agent_id", "'nobody'", "no such agent", "none, there are no agents")],
    ),
    (
        "models, in their two forms",
        "workers:\n- host: n\n  models:\n  - ok\n  - 7\n  - {nme: x}\n  - a,b\n  - [x]\n",
        [
            (5, "workers[0].models[1]", "7", "wrong type", "1 to 256 printable characters without commas or a mapping"),
            (6, "workers[0].models[2].name", None, "missing", "1 to 256 printable characters without commas"),
            (6, "workers[0].models[2].nme", None, "unknown key, did you mean name?", "family, name"),
            (
                7,
                "workers[0].models[3]",
                "'a,b'",
                "not allowed",
                "1 to 256 printable characters without commas or a mapping",
            ),
            (
                8,
                "workers[0].models[4]",
                "a list of 1",
                "wrong type",
                "1 to 256 printable characters without commas or a mapping",
            ),
        ],
    ),
    (
        "words with a syntax of their own",
        """\
families:
- {pattern: '(', family: f}
workers:
- {host: 'http://n'}
extproc:
  listen: ['unix:here', '::1:80', 'h:0']
redis: {url: 'http://h'}
""",
        [
            (
                2,
                "families[0].pattern",
                "'('",
                "not a regular expression: missing ), unterminated subpattern at position 0",
                "a regular expression of Python",
            ),
            (
                4,
                "workers[0].host",
                "'http://n'",
                "not a host name and not an IP address; give it without scheme, port and brackets",
                "a host name or an IP address",
            ),
            (
                6,
                "extproc.listen[0]",
                "'unix:here'",
                "the path of a Unix socket must be absolute",
                "unix:/absolute/path, host:port or [IPv6]:port",
            ),
            (
                6,
                "extproc.listen[1]",
                "'::1:80'",
                "an IPv6 address needs brackets, nothing else may have them",
                "unix:/absolute/path, host:port or [IPv6]:port",
            ),
            (
                6,
                "extproc.listen[2]",
                "'h:0'",
                "no port from 1 to 65535 at its end",
                "unix:/absolute/path, host:port or [IPv6]:port",
            ),
            (7, "redis.url", "'http://h'", "not a URL of Redis", "redis://…, rediss://… or unix:///path"),
        ],
    ),
    (
        "between keys",
        """\
routing:
  weights: {token_rate: 0, queue: 0}
extproc:
  message_timeout_ms: 500
  max_message_timeout_ms: 400
""",
        [
            (2, "routing.weights", "a mapping", "at least one weight must be above 0", "a mapping"),
            (
                5,
                "extproc.max_message_timeout_ms",
                "400",
                "shorter than extproc.message_timeout_ms",
                "a whole number of at least 500",
            ),
        ],
    ),
    (
        "a single agent",
        "agent_id: a b\npriority: high\nworkers: x\n",
        [
            (
                1,
                "agent_id",
                "'a b'",
                "not allowed",
                "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
            ),
            (2, "priority", "'high'", "wrong type", "a whole number from 0 to 1000"),
            (3, "workers", "'x'", "wrong type", "a list"),
        ],
    ),
    ("not a mapping", "- a\n- b\n", [(1, "", "a list of 2", "wrong type", "a mapping")]),
    (
        "no infinite weights",
        "routing:\n  weights:\n    queue: .inf\n    token_rate: .nan\n",
        [
            (3, "routing.weights.queue", "inf", "out of range", "a number from 0 to 1000000"),
            (4, "routing.weights.token_rate", "nan", "out of range", "a number from 0 to 1000000"),
        ],
    ),
    (
        "YAML's own",
        "a: 1\n\tb: 2\n",
        [(2, "", None, "a tab where YAML wants spaces", None)],
    ),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_every_mistake_is_named(text: str, expected: list[tuple[int, str, str | None, str, str | None]]) -> None:
    assert problems_of(text) == tuple(
        Problem("f.yaml", line, field, value, message, allowed) for line, field, value, message, allowed in expected
    )


@pytest.mark.parametrize(
    "worker",
    [
        "{host: '0.0.0.0'}",
        "{host: '::'}",
        "{host: 'fe80::1%eth0'}",
        "{host: '[::1]'}",
        "{host: 'node:8000'}",
        "{host: '10.0.0.256'}",
        "{host: ''}",
        "{host: '-x'}",
        "{host: n, id: 'two words'}",
        "{host: n, id: 'nöde'}",
        "{host: n, id: ''}",
        "{host: n, models: ['a,b']}",
        "{host: n, models: ['']}",
        '{host: n, models: ["a\\nb"]}',
    ],
)
def test_workers_that_nobody_could_dial_or_name(worker: str) -> None:
    (problem,) = problems_of(f"workers: [{worker}]")
    assert problem.field.startswith("workers[0]")


@pytest.mark.parametrize(
    "worker",
    [
        "{host: '10.0.0.1'}",
        "{host: '::1'}",
        "{host: vllm_node-1.gpu.svc.cluster.local.}",
        "{host: 8xh100}",
        "{host: n, id: 'gpu/0:1'}",
        "{host: n, models: ['org/A model @ v2', {name: x, family: y}]}",
    ],
)
def test_workers_that_can_be_dialled_and_named(worker: str) -> None:
    (parsed,) = parse_config(f"workers: [{worker}]", "f.yaml").config.workers
    # The registry takes it into its first report; that must be a valid one.
    state = static_state(parsed)
    state.incarnation, state.sequence = "first", 1
    check(state)


def test_the_text_of_a_problem_is_one_line() -> None:
    (problem,) = problems_of("agents:\n- agent_id: chat\n  priority: -3\n")
    assert str(problem) == (
        "f.yaml:3: agents[0].priority: out of range, got -3; allowed: a whole number from 0 to 1000"
    )
    assert str(Problem("f.yaml", None, "", None, "no such file")) == "f.yaml: no such file"


def test_the_error_has_one_line_for_each_problem() -> None:
    with pytest.raises(ConfigValueError) as caught:
        parse_config('"odd\\nkey": 1\nagents: ["two\\nlines"]\napi: {port: 0, prot: 1}\n', "f.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["f.yaml:1", r"['odd\nkey']"],
        ["f.yaml:2", "agents[0]"],
        ["f.yaml:3", "api.port"],
        ["f.yaml:3", "api.prot"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "redis: {url: 'http://user:hunter2@h:1/0'}",
        "redis: {url: 'http://user:hun/ter@hunter2@h:1/0'}",
        "redis: {url: 'redis://:hunter2@h:port'}",
        "redis: {url: 'http://h/?password=hunter2&x=1'}",
        "redis: {url: ':hunter2@h:6379'}",
        "redis: 'redis://:hunter2@h'",
        "redis: {url: ['redis://:hunter2@h']}",
        "redis: {password: hunter2}",
        "gateway: {host: 'redis://:hunter2@h'}",
        "redis: {url: 'redis://:hunter2@h'",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    # Nor through an exception that came before.
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("key", "meant"),
    [("PRIORITY", "priority"), ("min-vram-mb", "min_vram_mb"), ("prioritty", "priority"), ("colour", None)],
)
def test_a_misspelt_key_is_recognised(key: str, meant: str | None) -> None:
    (problem,) = problems_of(f"agents: [{{agent_id: a, {key}: 1}}]")
    assert problem.message == ("unknown key" if meant is None else f"unknown key, did you mean {meant}?")


@pytest.mark.parametrize(
    ("text", "field"), [("<name>: 1", "['<name>']"), ("workers: [{host: n, <details>: 1}]", "workers[0]['<details>']")]
)
def test_a_key_like_one_of_our_own_marks(text: str, field: str) -> None:
    (problem,) = problems_of(text)
    assert (problem.field, problem.message) == (field, "unknown key")


def test_values_are_shown_bounded() -> None:
    (problem,) = problems_of(f"agents: [{{agent_id: a, class: {'x' * 10_000}}}]")
    assert problem.value is not None
    assert len(problem.value) == 80


def test_many_names_are_not_all_listed() -> None:
    agents = ", ".join(f"{{agent_id: a{n:03}}}" for n in range(100))
    (problem,) = problems_of(f"agents: [{agents}]\npaths: [{{path: /x, agent_id: b}}]")
    assert problem.allowed is not None
    assert problem.allowed.startswith("a000, a001, ")
    assert problem.allowed.endswith("a019 and 80 more")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ConfigFileError) as caught:
            load_config(path)
        return str(caught.value)

    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"agents: []\n# caf\xe9\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    assert refusal(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file"
    assert refusal(tmp_path) == f"{tmp_path}: is a directory, not a file"
    assert refusal(latin) == f"{latin}:2: not UTF-8"
    assert refusal(large) == f"{large}: larger than {MAX_BYTES} bytes"
    assert refusal(latin / "below") == f"{latin}/below: cannot be read: Not a directory"


def test_exceptions_are_one_tree() -> None:
    for each in (ConfigFileError, ConfigSyntaxError, ConfigValueError):
        assert issubclass(each, ConfigError)
    assert sorted(load.__all__) == load.__all__
    assert all(hasattr(load, name) for name in load.__all__)


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        (
            "agents:\n- agent_id: a\n  workers: [big, other]\nworkers: [{host: n, id: big, exclusive: true}]\n",
            3,
            "agents[0].workers[1]",
            "no exclusive worker of this file has that id",
        ),
        ("gateway:\n  port: 8001\n", 2, "gateway.port", "the same address as api.port"),
        ("api:\n  host: 0.0.0.0\n", 2, "api.host", "other machines can reach this address"),
        ("xds: {metrics_host: node.example}", 1, "xds.metrics_host", "other machines can reach this address"),
    ],
)
def test_what_is_doubtful_is_a_warning(text: str, line: int, field: str, message: str) -> None:
    warnings = {(each.line, each.field): each.message for each in parse_config(text, "f.yaml").warnings}
    if field == "gateway.port":
        # The listener that comes second names the first.
        assert warnings == {(1, "api.port"): "the same address as gateway.port; both on one machine cannot listen"}
        return
    assert list(warnings) == [(line, field)]
    assert warnings[line, field].startswith(message)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_is_not_doubtful(host: str) -> None:
    assert parse_config(f"gateway: {{host: '{host}'}}", "f").warnings == ()


def test_the_file_in_the_root_loads_without_warning() -> None:
    result = check_config(Path(__file__).parents[2] / "recursant.yaml")
    assert result.warnings == ()
    assert result.config.workers == ()
    assert result.config.redis.url is None
    assert [agent.agent_id for agent in result.config.agents] == ["chat-web", "code-completion", "batch-summary"]
    # It spells out defaults; they must be the real ones.
    operators = parse_config(OPERATORS_FILE, "f").config
    assert result.config.agents == operators.agents
    assert result.config.path_entries == operators.path_entries
    assert result.config.model_copy(update={"agents": (), "paths": None}) == Config()


# --- dump and load ---

_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)
_AGENTS = st.builds(
    lambda **fields: AgentPolicy.model_validate(fields),
    agent_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    model_family=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=64),
    model=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=128),
    priority=st.integers(0, 1_000),
    min_vram_mb=st.integers(0, 10**9),
    latency_sla_ms=st.none() | st.integers(1, 10**9),
    fallback_strategy=st.sampled_from(["queue_and_retry", "drop", "degrade_to_qwen"]),
    workers=st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=3),
    allow_real_time=st.booleans(),
    **{"class": st.sampled_from([None, "critical", "low"])},
)
_WORKERS = st.builds(
    dict,
    host=st.from_regex(r"[a-z][a-z0-9]{0,10}(\.[a-z]{2,5})?|10\.0\.0\.[1-9]|fe80::[1-9]", fullmatch=True),
    port=st.integers(1, 65535),
    models=st.lists(_NAMES | st.builds(StaticModel, name=_NAMES, family=st.none() | _NAMES), max_size=3),
    exclusive=st.booleans(),
    capacity_tokens=st.none() | st.integers(1, 10**12),
)
_CONFIGS = st.builds(
    lambda **fields: Config.model_validate(fields),
    agents=st.lists(_AGENTS, max_size=3, unique_by=lambda agent: agent.agent_id),
    workers=st.lists(_WORKERS, max_size=3, unique_by=lambda worker: worker["host"]),
    routing=st.builds(
        dict,
        timeout_ms=st.integers(1, 86_400_000),
        weights=st.builds(dict, token_rate=st.floats(0.001, 1_000_000), queue=st.floats(0, 1_000_000)),
    ),
    families=st.lists(
        st.builds(dict, pattern=st.sampled_from([".*", "^a|b$", "\\d+: #", "'\""]), family=_NAMES), max_size=2
    ),
    redis=st.builds(dict, url=st.none() | st.sampled_from(["redis://:p%40ss@h:1/0", "unix:///run/r.sock?db=1"])),
)


@given(_CONFIGS)
def test_what_is_written_loads_back_equal(config: Config) -> None:
    assert parse_config(dump_config(config), "dumped").config == config


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_KEYS = st.sampled_from([*Config.model_fields, *AgentPolicy.model_fields, "class", "<name>", "<details>", "name"])
_NEAR = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 10) | st.sampled_from(["auto", "/x", "redis://h", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@example({"workers": [{"models": [{"routing": None, "<details>": None, "name": None}]}]})
@given(_PLAIN | _NEAR | st.fixed_dictionaries({"workers": st.lists(st.fixed_dictionaries({"models": _NEAR}))}))
def test_no_document_is_too_strange_for_an_answer(data: Any) -> None:
    result = validate(data)
    assert (result.config is None) == bool(result.errors)
    for each in (*result.errors, *result.warnings):
        text = str(Problem("f", 1, load.field_path(each.location), each.value, each.message, each.allowed))
        assert text.isprintable()
        text.encode()


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("{}[]:,-&*!|>'\"#%@ \n\tab1<", max_size=60))
def test_no_text_is_too_strange_for_an_answer(text: str) -> None:
    try:
        parse_config(text, "f")
    except ConfigError as error:
        assert len(str(error).splitlines()) == len(error.problems) > 0  # noqa: PT017  # most texts raise, some load


def test_the_models_keep_the_url_of_redis_to_themselves() -> None:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"redis": {"url": "http://:hunter2@h"}})
    assert "hunter2" not in str(caught.value)
    config = Config.model_validate({"redis": {"url": "redis://:hunter2@h"}})
    assert "hunter2" not in f"{config!r} {config} {config.redis!r} {config.redis}"
