"""The names that clients, workers, Envoy and we agree on: headers, metadata, clusters, ports.

Everything here is a contract. Lua and YAML under `envoy/` repeat some of it; a test holds them together.
"""

from typing import Final

# --- request headers that a client may send (HTTP/2 spelling, lower case) ---
AGENT_ID: Final = "x-agent-id"
AGENT_META: Final = "x-agent-meta"
AGENT_PRIORITY: Final = "x-agent-priority"
AGENT_LATENCY_SLA_MS: Final = "x-agent-latency-sla-ms"
AGENT_MAX_NEW_TOKENS: Final = "x-agent-max-new-tokens"
AGENT_CONTEXT_LENGTH: Final = "x-agent-context-length"
AGENT_MODEL_FAMILY: Final = "x-agent-model-family"
SESSION_ID: Final = "x-session-id"
REAL_TIME: Final = "x-real-time"
REQUEST_ID: Final = "x-request-id"
TRACEPARENT: Final = "traceparent"

# The client's description of itself ends at the gateway: these never reach a worker. The id goes on as
# WORKER_AGENT.
AGENT_DESCRIPTION_HEADERS: Final = (
    AGENT_META,
    AGENT_PRIORITY,
    AGENT_LATENCY_SLA_MS,
    AGENT_MAX_NEW_TOKENS,
    AGENT_CONTEXT_LENGTH,
    AGENT_MODEL_FAMILY,
)

# All that the ext_proc service reads. Envoy sends it nothing else, so that it never holds credentials, cookies or
# whatever else clients send.
EXTPROC_HEADERS: Final = (
    ":path",
    ":status",
    "content-length",
    "content-type",
    "retry-after",
    AGENT_ID,
    *AGENT_DESCRIPTION_HEADERS,
    SESSION_ID,
    REAL_TIME,
    REQUEST_ID,
    TRACEPARENT,
)

# --- headers that only the gateway may set; stripped from clients before anything else ---
OWN_HEADER_PREFIX: Final = "x-recursant-"
ENVOY_HEADER_PREFIX: Final = "x-envoy-"
# The endpoint picker protocol's header of the Gateway API Inference Extension.
DESTINATION_ENDPOINT: Final = "x-gateway-destination-endpoint"

# --- to the worker ---
WORKER_AGENT: Final = "x-recursant-agent"
WORKER_CLASS: Final = "x-recursant-class"
WORKER_PRIORITY: Final = "x-recursant-priority"
# How the request ids of our probes begin.
PROBE_REQUEST_ID: Final = "recursant-probe"

# --- on the response ---
SERVED_BY: Final = "x-recursant-worker"
SERVED_AGENT: Final = "x-recursant-agent"
FALLBACK: Final = "x-recursant-fallback"
AFFINITY: Final = "x-recursant-affinity"
CLAMPED: Final = "x-recursant-clamped"
RETRY_AFTER: Final = "retry-after"

# The name under which requests without a known agent are counted and answered.
NO_AGENT: Final = "default"
# "model": "auto" becomes a model of the agent's family.
AUTO_MODEL: Final = "auto"

# --- between extproc, Lua and Envoy's load balancer ---
# Dynamic metadata that extproc writes: {endpoints: "ip:port,ip:port", models: {...}, priority: N}
METADATA_NAMESPACE: Final = "recursant"
METADATA_ENDPOINTS: Final = "endpoints"  # "ip:port[,ip:port...]", best first
METADATA_SELECTED: Final = "selected"  # Envoy writes the host it really picked
# Concrete name for "auto" and the names that this request may use, "," before, between and after (",a,b,").
METADATA_MODEL: Final = "model"
METADATA_ALLOWED_MODELS: Final = "allowed_models"
METADATA_REPLACED_MODELS: Final = "replaced_models"  # names that become `model`, as "auto" does
METADATA_PRIORITY: Final = "priority"  # vLLM's own order: smaller = sooner
METADATA_MAX_TOKENS: Final = "max_tokens"  # the most that the body may ask for
# What Lua did about it: a bound of the client's was lowered, or one was added where there was none.
METADATA_CLAMPED: Final = "clamped"
CLAMPED_LOWERED: Final = "lowered"
CLAMPED_ADDED: Final = "added"
# How x-recursant-clamped calls a bound in the body that was lowered.
CLAMPED_MAX_TOKENS: Final = "max_tokens"
# What the attempt's Lua leaves of a worker's 500 that was tried again elsewhere: its address, and its answer, base64.
METADATA_FAILED: Final = "failed"
METADATA_FAILED_BODY: Final = "failed_body"
# Its mark on such an answer, which the retry policy looks for; clients never see it.
RETRY_MARK: Final = "x-recursant-again"
# Lua's mark on requests that came past ext_proc with nothing decided, and the log that tells the control plane.
METADATA_FAIL_OPEN: Final = "fail_open"
FAIL_OPEN_LOG: Final = "recursant_fail_open"
# Endpoint metadata that Envoy's own subset policy matches when extproc is away.
LB_NAMESPACE: Final = "envoy.lb"
LB_MODEL: Final = "model"
LB_POOL: Final = "pool"
LB_POOL_OPEN: Final = "open"  # every endpoint that is not exclusive

# --- Envoy resources ---
FLEET_CLUSTER: Final = "fleet"
EXTPROC_CLUSTER: Final = "extproc"
XDS_CLUSTER: Final = "xds"
GATEWAY_LISTENER: Final = "gateway"
GATEWAY_ROUTES: Final = "gateway"
LUA_AGENT_FILTER: Final = "recursant.lua.agent"
LUA_BODY_FILTER: Final = "recursant.lua.body"
LUA_ATTEMPT_FILTER: Final = "recursant.lua.attempt"
EXTPROC_FILTER: Final = "envoy.filters.http.ext_proc"

# --- default addresses ---
LOOPBACK: Final = "127.0.0.1"
GATEWAY_PORT: Final = 8000
ENVOY_ADMIN_PORT: Final = 9901
XDS_PORT: Final = 18000
XDS_METRICS_PORT: Final = 18001
API_PORT: Final = 8001
EXTPROC_METRICS_PORT: Final = 9003
WORKER_PORT: Final = 8101
