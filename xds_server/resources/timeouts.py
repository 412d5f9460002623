"""How long a request may take to arrive (DESIGN §4.6)."""

from recursant.config.model import Config


def request_timeout_ms(config: Config) -> int:
    """Envoy's `request_timeout`: the upload's bound, and what a hold by extproc may add to it.

    The timer runs from the first byte until the last one went upstream, so a hold counts, too.
    """
    return config.limits.body_timeout_ms + config.extproc.max_message_timeout_ms
