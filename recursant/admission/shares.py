"""How much of a worker each priority class may fill (SPEC E3).

Long generations of a low class cannot be taken back once they run. So a class may fill a worker only up to its share
of the worker's slots; beyond that its requests wait here, where a higher class overtakes them. The rest of the slots
stays free for whoever is more urgent.
"""

import math

from recursant.agents.priority import PriorityClass


def aged_class(priority_class: PriorityClass, waited_s: float, ageing_s: float) -> PriorityClass:
    """The class that a request counts as after `waited_s` seconds in the queue, where `ageing_s` are worth a class."""
    if priority_class >= PriorityClass.HIGH:
        return priority_class
    steps = math.floor(max(waited_s, 0.0) / ageing_s)
    return PriorityClass(min(int(priority_class) + steps, int(PriorityClass.HIGH)))
