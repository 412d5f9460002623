"""Who stands at the desk in the unit tests."""

from extproc.decision import Decision
from recursant.problems import ApiProblem


class Client:
    """Somebody at the desk."""

    def __init__(self) -> None:
        self.outcome: Decision | ApiProblem | None = None

    def resume(self, outcome: Decision | ApiProblem) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome
