"""Which problems of an environment are handed out: by how well the policy solves them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainers.run_config.section import ConfigProblem, CrossFieldError, Section


class PoolsConfig(Section):
    """Difficulty pools: problems come again, chosen by how well the policy solved them. A problem is *new* until it is
    scored, then *easy*, *hard* or, between them, *normal*, and moves as its solve rate does. Every pool has a share of
    what is handed out; normal ones have the rest. A pool that has none to give leaves its turn to another."""

    by: Literal["solved", "reward"] = "solved"
    """What a group says of its problem: the share of its rollouts that solved it, or their mean reward (as 0 below 0,
    as 1 above 1). A problem that nobody solves and that earns something is hard by the one and normal by the other."""
    easy_from: float = Field(default=0.9, gt=0, le=1)
    """Solve rate from which a problem is easy."""
    hard_to: float = Field(default=0.1, ge=0, lt=1)
    """Solve rate up to which a problem is hard."""
    new_share: float = Field(default=0.4, gt=0, le=1)
    """Share of problems that have not been played, as long as there are any."""
    easy_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of easy problems."""
    hard_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of hard problems."""
    memory: float = Field(default=0.5, ge=0, lt=1)
    """How much of a problem's solve rate is what it was before it was last played. 0: the last group alone counts."""
    rest: int | None = Field(default=None, ge=0)
    """Problems that are handed out before the same one comes again. Without a number as many as are in the batches that
    generation may run ahead, so that no batch holds a problem twice."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        problems = []
        if self.hard_to >= self.easy_from:
            reason = f"{self.hard_to:g} is not below easy_from ({self.easy_from:g}), so that no problem would be normal"
            problems.append(ConfigProblem("hard_to", f"{reason}. Lower it or raise easy_from."))
        if (total := self.new_share + self.easy_share + self.hard_share) > 1 + 1e-9:
            reason = f"the shares of new, easy and hard problems are {total:g} together"
            problems.append(ConfigProblem("new_share", f"{reason}. Lower them: normal problems have the rest of 1."))
        if problems:
            raise CrossFieldError(problems)
        return self
