"""How much of a worker each priority class may fill (SPEC E3).

Long generations of a low class cannot be taken back once they run. So a class may fill a worker only up to its share
of the worker's slots; beyond that its requests wait here, where a higher class overtakes them. The rest of the slots
stays free for whoever is more urgent.
"""

import math
from typing import Final

from recursant.agents.priority import PriorityClass

# Share of a worker's slots (max_num_seqs) up to which each class may fill it.
SLOT_SHARE: Final = {
    PriorityClass.CRITICAL: 1.0,
    PriorityClass.HIGH: 1.0,
    PriorityClass.NORMAL: 0.9,
    PriorityClass.LOW: 0.7,
}
# A request that has waited this long counts as one class higher, and so on; never as Critical. Low is therefore
# never starved: after twice this time it waits among the High ones, and the oldest goes first.
AGEING_S: Final = 4.0


def aged_class(priority_class: PriorityClass, waited_s: float) -> PriorityClass:
    """The class that a request counts as after `waited_s` seconds in the queue."""
    if priority_class >= PriorityClass.HIGH:
        return priority_class
    steps = math.floor(max(waited_s, 0.0) / AGEING_S)
    return PriorityClass(min(int(priority_class) + steps, int(PriorityClass.HIGH)))
