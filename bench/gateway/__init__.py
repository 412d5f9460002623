"""What the gateway costs: CPU per request and latency, of ours, of the yardsticks, and of nothing at all.

    python -m bench.gateway [--quick]

Every server stands behind the same Envoy, with the product's own resources, before the same backend. Runs are short
and interleaved, so that a busy machine is busy for all of them, and every figure is a median over the rounds.
Writes bench/out/gateway.json. See docs/performance.md for what the rows mean.
"""
