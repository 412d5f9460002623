"""Runs the engine in real time: lets each step take its time, hands the tokens to those who wait for them."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from recursant.sim import text
from recursant.sim.engine import Engine, StepResult
from recursant.sim.faults import FaultKind, Faults
from recursant.sim.generation import Choice, Generation
from recursant.sim.sequence import EngineRequest
from recursant.sim.stats import ServingStats

# Shorter sleeps are left out and made up for by the next one: timers are no finer.
SHORTEST_SLEEP_S: Final = 0.001
# A loop that was held up does not try to catch up more than this.
MOST_LAG_S: Final = 0.1
# How often a frozen engine looks whether it may go on.
FREEZE_POLL_S: Final = 0.02


class EngineRunner:
    """One engine in real time. All of it belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        faults: Faults,
        stats: ServingStats,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        is_asleep: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = engine
        self.stats = stats
        self._faults = faults
        self._speed = speed
        self._clock = clock
        self._is_asleep = is_asleep
        self._work = asyncio.Event()

    def queue(self, generation: Generation) -> None:
        """Queues what a request asks for."""
        spec = generation.spec
        now = self._clock()
        profile = self.engine.profile
        for number, prompt in enumerate(spec.prompts):
            hashes: list[int] = []
            if self.engine.prefix_caching:
                hashes = text.block_hashes(prompt.data, profile.block_tokens, (spec.model, spec.salt))
            self.stats.params_n.observe(spec.n)
            self.stats.params_max_tokens.observe(prompt.rule.max_tokens)
            for choice in generation.choices[number * spec.n : (number + 1) * spec.n]:
                self.stats.max_generation_tokens.observe(prompt.rule.max_tokens)
                self.engine.add(
                    EngineRequest(
                        request_id=choice.sequence_id,
                        prompt_tokens=prompt.tokens,
                        output_tokens=choice.reply.tokens,
                        priority=spec.priority,
                        block_hashes=hashes,
                        tag=choice,
                    ),
                    now,
                )
        self._work.set()

    def abort(self, generation: Generation) -> None:
        """Ends what is left of a request."""
        for choice in generation.choices:
            if not choice.done:
                self.engine.abort(choice.sequence_id)

    async def run(self) -> None:
        """Steps until cancelled."""
        engine = self.engine
        due = self._clock()
        while True:
            if not engine.has_work:
                self._work.clear()
                await self._work.wait()
                due = self._clock()
            await self._thaw()
            now = self._clock()
            duration = engine.begin_step(now)
            if duration is None:
                continue
            slow = self._faults.state(FaultKind.SLOW, now)
            duration *= (slow.factor if slow else 1.0) / self._speed
            due = max(due, now - MOST_LAG_S) + duration
            delay = due - now
            await asyncio.sleep(delay if delay >= SHORTEST_SLEEP_S else 0)
            await self._thaw()
            self._publish(engine.end_step(self._clock()), duration)

    async def _thaw(self) -> None:
        # Polled: a fault is lifted by a command or by time, whichever is first.
        while self._is_asleep() or self._faults.state(FaultKind.FREEZE, self._clock()) is not None:  # noqa: ASYNC110
            await asyncio.sleep(FREEZE_POLL_S)

    def _publish(self, result: StepResult, busy_s: float) -> None:
        now = self._clock()
        stats = self.stats
        profile = self.engine.profile
        stats.step_ended(result, now, busy_s, profile.kv_bytes_per_token, profile.weights_bytes)
        finished = set(result.finished)
        for sequence, tokens in result.outputs:
            choice: Choice = sequence.tag
            if sequence.generated == tokens:
                stats.first_token.observe(now - sequence.arrived)
            else:
                stats.inter_token.observe(now - choice.last_token_at)
            choice.last_token_at = now
            done = sequence in finished
            if done:
                stats.request_finished(sequence, choice.finish_reason)
            choice.add(tokens, done=done)
