"""Load reports on responses, as vLLM gives them on request (ORCA): two gauges, whole responses only."""

import json
from typing import Final

from recursant.sim.engine import Engine

REQUEST_HEADER: Final = "endpoint-load-metrics-format"
RESPONSE_HEADER: Final = "endpoint-load-metrics"


def load_report(wanted: str, engine: Engine) -> dict[str, str]:
    """The headers that answer a request's `endpoint-load-metrics-format`; none for a format that vLLM ignores."""
    metrics = {"num_requests_waiting": float(engine.waiting), "kv_cache_usage_perc": engine.stats().kv_usage}
    match wanted.upper():
        case "TEXT":
            pairs = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
            return {RESPONSE_HEADER: f"TEXT {pairs}"}
        case "JSON":
            return {RESPONSE_HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
        case _:
            return {}
