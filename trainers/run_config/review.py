"""People in the loop of a run: which groups wait for somebody's word before they may be trained."""

from typing import Literal

from pydantic import Field

from trainers.run_config.section import Section


class ReviewConfig(Section):
    """Hold scored groups until a person has scored all of their rollouts, or accepted the group as it is. Generation
    goes on meanwhile, as far as batches may run ahead: of what is held the `share` counts."""

    share: float = Field(default=1.0, gt=0, le=1)
    """Of the environment's groups that are held, drawn at random; the others wait for nobody."""
    deadline_s: float = Field(default=3600.0, gt=0)
    """Seconds that a group is held at most."""
    on_deadline: Literal["reward", "drop"] = "reward"
    """What becomes of a group that nobody looked at in time: trained on the environment's rewards, or dropped."""
    rewards: Literal["scores", "verdicts"] = "scores"
    """What of a person's words on a rollout takes the place of its reward: their score, or 1 for *accept* and 0 for
    *reject*. Of several people it is the mean. What the environment gave is kept beside it."""
