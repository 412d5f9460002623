"""`/clients` beside the metrics: where every xDS client stands, for the control API to show.

It is this process's own knowledge, true only while it runs: so whoever asks, asks it, and nothing stale lies in Redis.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication

from xds_server.status import ClientStatus
from xds_server.traits import traits_of

PATH: Final = "/clients"
_MAX_REASON: Final = 500


def clients_document(clients: Iterable[ClientStatus], now: float) -> dict[str, Any]:
    """Every client, by node; times as seconds before `now`."""
    return {
        "clients": [
            {
                "node": client.node_id,
                "protocol": client.protocol,
                "since_s": round(now - client.since, 1),
                "types": [
                    {
                        "type": traits_of(each.type_url).label,
                        "state": each.state.value,
                        "sent": each.sent,
                        "accepted": each.accepted,
                        "reason": each.reason[:_MAX_REASON],
                        "refused": list(each.refused),
                        "last_seen_s": round(now - each.last_seen, 1),
                    }
                    for each in client.types
                ],
            }
            for client in sorted(clients, key=lambda client: client.node_id)
        ]
    }


def with_clients(metrics: WSGIApplication, read: Callable[[], Mapping[str, Any]]) -> WSGIApplication:
    """An application that answers `/clients` with what `read` gives, and the rest as `metrics` does."""

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return metrics(environ, start_response)
        body = json.dumps(read()).encode()
        start_response("200 OK", [("content-type", "application/json"), ("content-length", str(len(body)))])
        return [body]

    return app
