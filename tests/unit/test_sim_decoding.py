"""The group of sequences that decode counts for each of them what it would count for itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from recursant.sim.decoding import DecodeGroup
from recursant.sim.sequence import EngineRequest, Sequence

BLOCK = 4


def decoding(place: int, prompt: int, output: int) -> Sequence:
    """A sequence that has just got its first token."""
    sequence = Sequence(EngineRequest(str(place), prompt, output), place, 0.0, ())
    sequence.place = place
    sequence.computed = prompt
    sequence.generated = 1
    sequence.blocks = -(-prompt // BLOCK)
    return sequence


def test_who_has_no_first_token_or_lacks_more_than_one_does_not_join() -> None:
    group = DecodeGroup(BLOCK)
    assert group.takes(decoding(0, 10, 5))
    chunk = decoding(1, 10, 5)
    chunk.generated, chunk.computed, chunk.blocks = 0, 9, 3
    assert not group.takes(chunk)
    again = decoding(2, 10, 5)
    again.computed, again.blocks = 8, 2
    assert not group.takes(again)


@given(
    arrivals=st.lists(st.tuples(st.integers(1, 20), st.integers(2, 12), st.integers(0, 6)), min_size=1, max_size=8),
    leaving=st.sets(st.integers(0, 7)),
    runs=st.lists(st.integers(1, 5), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=200)
def test_the_group_counts_as_each_would_by_itself(
    arrivals: list[tuple[int, int, int]], leaving: set[int], runs: list[int]
) -> None:
    group = DecodeGroup(BLOCK)
    inside: dict[int, tuple[Sequence, int, int]] = {}  # with (computed, generated) counted by hand
    for turn, run in enumerate(runs):
        for place, (prompt, output, when) in enumerate(arrivals):
            if when == turn:
                sequence = decoding(place, prompt, output)
                group.join(sequence)
                inside[place] = (sequence, prompt, 1)
        if not inside:
            continue
        assert group.count == len(inside)
        assert group.context == sum(computed for _, computed, _ in inside.values())
        first_end = min(each.output_tokens - generated for each, _, generated in inside.values())
        assert group.steps_to_next_end() == first_end
        steps = min(run, first_end)
        grown = [-(-(computed + steps) // BLOCK) - -(-computed // BLOCK) for _, computed, _ in inside.values()]
        assert group.blocks_to_grow(steps) == sum(grown)
        group.ahead = steps
        for place in sorted(leaving & inside.keys()):
            if place % 3 == turn % 3:
                sequence, computed, generated = inside.pop(place)
                assert sequence.scheduled == 1
                group.leave(sequence)
                # The steps in progress do not count for it, but it holds their blocks.
                blocks = -(-(computed + steps) // BLOCK)
                assert (sequence.computed, sequence.generated, sequence.blocks) == (computed, generated, blocks)
        done = group.advance(steps)
        for place, (sequence, computed, generated) in list(inside.items()):
            inside[place] = (sequence, computed + steps, generated + steps)
            assert (sequence.computed, sequence.generated) == (computed + steps, generated + steps)
            assert sequence.blocks == -(-sequence.computed // BLOCK)
            if sequence.generated == sequence.output_tokens:
                assert sequence in done
                del inside[place]
        assert [sequence.place for sequence in done] == sorted(sequence.place for sequence in done)
        assert group.count == len(inside)
