"""Which sequences a step computes, with how many tokens, and who holds which KV blocks: vLLM's V1 scheduler.

Running sequences come first, each with as many tokens as it lacks and the step's budget allows (one for decode, a
chunk for prefill). Where the KV cache is full, the last one (priority scheduling: the least important one) loses its
blocks and waits again, its output kept, its KV to be computed anew. Then waiting ones are admitted, unless somebody
was just thrown out, and only where their whole input fits (vLLM's `scheduler_reserve_full_isl`, on by default).
"""

from dataclasses import dataclass, field

from recursant.sim.blocks import BlockPool
from recursant.sim.cost import StepLoad
from recursant.sim.decoding import DecodeGroup
from recursant.sim.profiles import EngineProfile
from recursant.sim.sequence import Sequence, SequenceState
from recursant.sim.waiting import SchedulingPolicy, queue_for


@dataclass(slots=True)
class Schedule:
    """What one step computes.

    Attributes:
        load: what it costs.
        scheduled: its sequences but for the group of those that decode, each with its `scheduled` tokens set.
        started: those of them that run for the first time.
        preempted: those that lost their blocks to others.
    """

    load: StepLoad = field(default_factory=StepLoad)
    scheduled: list[Sequence] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """The waiting and the running sequences, and their blocks."""

    def __init__(self, profile: EngineProfile, policy: SchedulingPolicy, *, chunked_prefill: bool) -> None:
        self.pool = BlockPool(profile.kv_blocks)
        # Those that run, in the order in which they began to; and the ones among them that are not in the group.
        self.running: list[Sequence] = []
        self.alone: list[Sequence] = []
        self.group = DecodeGroup(profile.block_tokens)
        self._places = 0
        self.waiting = queue_for(policy)
        # Input tokens of the waiting sequences.
        self.waiting_tokens = 0
        self._policy = policy
        self._chunked_prefill = chunked_prefill
        self._block_tokens = profile.block_tokens
        self._max_num_seqs = profile.max_num_seqs
        self._max_num_batched_tokens = profile.max_num_batched_tokens

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self.waiting.add(sequence)
        self.waiting_tokens += sequence.length

    def remove(self, sequence: Sequence) -> None:
        """Takes an unfinished sequence out and frees what it holds."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
            self.waiting_tokens -= sequence.length
        else:
            self.running.remove(sequence)
            if sequence.group is None:
                self.alone.remove(sequence)
            else:
                self.group.leave(sequence)
            self._release(sequence)

    def finish(self, finished: list[Sequence]) -> None:
        """Takes sequences out that are done, and frees what they hold."""
        for sequence in finished:
            sequence.state = SequenceState.FINISHED
            self._release(sequence)
        self.running = [sequence for sequence in self.running if sequence.state is SequenceState.RUNNING]
        self.alone = [sequence for sequence in self.alone if sequence.state is SequenceState.RUNNING]

    def schedule(self, now: float) -> Schedule:
        """Plans a step. Whoever has work gets some: at least one sequence is scheduled if there is any."""
        plan = Schedule()
        if not self._group_goes_first():
            self._dissolve()
        group = self.group
        if group.count:
            self.pool.take(group.blocks_to_grow(1))
            group.ahead = 1
            plan.load.add_decoding(group.count, group.context)
        budget = self._schedule_alone(plan, self._max_num_batched_tokens - group.count)
        if not plan.preempted:
            self._admit(plan, budget, now)
        for sequence in plan.scheduled:
            plan.load.add(sequence.scheduled, sequence.computed)
        return plan

    def _group_goes_first(self) -> bool:
        """Whether those that decode may be taken all together, before the others: so it would come about one by one."""
        group = self.group
        if not group.count:
            return True
        wanted = group.blocks_to_grow(1)
        for sequence in self.alone:
            if sequence.place < group.newest:
                return False
            tokens = sequence.length
            wanted += -(-tokens // self._block_tokens) - sequence.blocks
        return wanted <= self.pool.free

    def _dissolve(self) -> None:
        """Lets everybody count for itself again."""
        for sequence in self.running:
            if sequence.group is not None:
                self.group.leave(sequence)
        self.alone = list(self.running)

    def regroup(self) -> None:
        """Between two steps: takes those into the group that decode."""
        group = self.group
        alone = []
        for sequence in self.alone:
            if group.takes(sequence):
                group.join(sequence)
            else:
                alone.append(sequence)
        self.alone = alone

    def extend(self, plan: Schedule, steps: int) -> int:
        """Lets a plan of decode steps stand for up to `steps` of them in a row, and takes the blocks for it.

        Returns how many it stands for: fewer where a sequence finishes before, or blocks end.
        """
        group = self.group
        if group.count:
            steps = min(steps, group.steps_to_next_end())
        for sequence in plan.scheduled:
            steps = min(steps, sequence.output_tokens - sequence.generated)
        while steps > 1 and self._blocks_to_grow(plan.scheduled, steps) > self.pool.free:
            steps //= 2
        if steps > 1:
            self.pool.take(self._blocks_to_grow(plan.scheduled, steps))
            if group.count:
                group.ahead = steps
            for sequence in plan.scheduled:
                tokens = sequence.computed + steps
                sequence.blocks = -(-tokens // self._block_tokens)
                if sequence.visited < len(sequence.hashes):
                    self._share_blocks(sequence, tokens)
        return steps

    def shorten(self, plan: Schedule, steps: int) -> None:
        """Lets an extended plan stand for only `steps` steps, and gives back the blocks of the others.

        What the prefix cache lost to them is lost, as their blocks were taken already.
        """
        group = self.group
        if group.count:
            self.pool.release([], group.blocks_to_grow(group.ahead) - group.blocks_to_grow(steps))
            group.ahead = steps
        for sequence in plan.scheduled:
            if sequence.state is not SequenceState.RUNNING:
                continue  # aborted meanwhile
            needed = max(-(-(sequence.computed + steps) // self._block_tokens), len(sequence.shared))
            if needed < sequence.blocks:
                self.pool.release([], sequence.blocks - needed)
                sequence.blocks = needed

    def is_steady(self, plan: Schedule) -> bool:
        """Whether the next step would be the same again: every running sequence decodes, nobody came or went."""
        load = plan.load
        return (
            load.tokens == load.sequences == len(self.running)
            and not plan.preempted
            and not plan.started
            and all(sequence.length - sequence.computed == 1 for sequence in plan.scheduled)
        )

    def _schedule_alone(self, plan: Schedule, budget: int) -> int:
        """Gives running sequences that are not in the group their tokens; returns what is left of the budget."""
        block_tokens = self._block_tokens
        pool = self.pool
        scheduled = plan.scheduled
        alone = self.alone
        index = 0
        while index < len(alone) and budget > 0:
            sequence = alone[index]
            tokens = sequence.prompt_tokens + sequence.generated - sequence.computed
            if tokens > budget:
                tokens = budget
            wanted = -(-(sequence.computed + tokens) // block_tokens) - sequence.blocks
            if wanted > 0:
                while wanted > pool.free and sequence.state is SequenceState.RUNNING:
                    victim = self._victim()
                    self.running.remove(victim)
                    position = alone.index(victim)
                    del alone[position]
                    if position < index:
                        index -= 1
                    if victim.scheduled:
                        budget += victim.scheduled
                        scheduled.remove(victim)
                    self._preempt(victim)
                    plan.preempted.append(victim)
                if sequence.state is not SequenceState.RUNNING:
                    continue  # it was itself the least important; the next one moved up to its place
                pool.take(wanted)
                sequence.blocks += wanted
            sequence.scheduled = tokens
            if sequence.visited < len(sequence.hashes):
                self._share_blocks(sequence, sequence.computed + tokens)
            scheduled.append(sequence)
            budget -= tokens
            index += 1
        return budget

    def _admit(self, plan: Schedule, budget: int, now: float) -> None:
        """Starts waiting sequences, in their order, as long as slots, budget and blocks last."""
        block_tokens = self._block_tokens
        pool = self.pool
        while budget > 0 and len(self.running) < self._max_num_seqs and len(self.waiting):
            sequence = self.waiting.head()
            length = sequence.length
            # At least one token must be computed, or there is nothing to sample from.
            found, idle = pool.matching(sequence.hashes, (length - 1) // block_tokens)
            missing = length - found * block_tokens
            if missing > budget and not self._chunked_prefill:
                break
            if -(-length // block_tokens) - found > pool.free - idle:
                break
            self.waiting.pop()
            self.waiting_tokens -= length
            tokens = min(missing, budget)
            sequence.computed = found * block_tokens
            sequence.scheduled = tokens
            sequence.shared = list(sequence.hashes[:found])
            sequence.visited = found
            sequence.blocks = -(-(sequence.computed + tokens) // block_tokens)
            sequence.state = SequenceState.RUNNING
            pool.hold(sequence.shared)
            pool.take(sequence.blocks - found)
            self._share_blocks(sequence, sequence.computed + tokens)
            if sequence.started is None:
                sequence.started = now
                sequence.cached_tokens = sequence.computed
                plan.started.append(sequence)
            sequence.place = self._places
            self._places += 1
            self.running.append(sequence)
            self.alone.append(sequence)
            plan.scheduled.append(sequence)
            budget -= tokens

    def _share_blocks(self, sequence: Sequence, tokens: int) -> None:
        """Offers the blocks that its first `tokens` tokens fill to the prefix cache.

        At the start of the step that computes them, as vLLM does: others admitted in the same step find them.
        """
        full = min(len(sequence.hashes), tokens // self._block_tokens)
        if full > sequence.visited:
            sequence.shared += self.pool.share(sequence.hashes[sequence.visited : full])
            sequence.visited = full

    def _victim(self) -> Sequence:
        """The running sequence that loses its blocks."""
        if self._policy is SchedulingPolicy.PRIORITY:
            return max(self.running, key=lambda sequence: (sequence.priority, sequence.order))
        return self.running[-1]

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.preemptions += 1
        self.waiting.put_back(sequence)
        self.waiting_tokens += sequence.length

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.shared, sequence.blocks - len(sequence.shared))
        sequence.blocks = 0
        sequence.shared = []
        sequence.visited = 0
        sequence.computed = 0
        sequence.scheduled = 0

    def _blocks_to_grow(self, sequences: list[Sequence], steps: int) -> int:
        """Blocks beyond those that are held, for so many steps of everybody."""
        block_tokens = self._block_tokens
        group = self.group
        growing = group.blocks_to_grow(steps) - group.blocks_to_grow(group.ahead)
        return growing + sum([-(-(each.computed + steps) // block_tokens) - each.blocks for each in sequences])
