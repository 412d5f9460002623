"""The KV cache of one worker between two beats: its last report, and what we know to have come and gone since."""

from dataclasses import dataclass

from recursant.admission.memory import CacheReport


@dataclass(slots=True)
class Cache:
    """What a worker's last beat said of its KV cache, and what was in flight there then.

    Attributes:
        report: the beat's figures.
        here, elsewhere: of this process and of the others on this host, as `Slots.tokens`.
    """

    report: CacheReport
    here: tuple[int, int]
    elsewhere: tuple[int, int]

    def room(self, water_mark: float, prompts: int, tokens: int) -> float:
        """Tokens that it takes now below the water-mark.

        Args:
            water_mark: how full it may be, as a share.
            prompts: prompt tokens that this process has in flight there.
            tokens: those, and what must be free for the answers.
        """
        # Net of what has ended: it holds nothing any more, or its blocks are there for whoever came after it.
        sent_prompts = max(prompts - self.here[0], 0)
        sent_answers = max(tokens - self.here[1] - sent_prompts, 0)
        prompts += self.elsewhere[0]
        answers = tokens + self.elsewhere[1] - prompts
        return self.report.room(water_mark, prompts, answers, (sent_prompts, sent_answers))
