"""Models beside the policy that environments ask: a judge, an opponent, a simulated user."""

from pydantic import Field

from trainers.run_config.section import Section

START = "start"
"""As a `model`: what the run itself starts from."""


class PolicyRef(Section):
    """One of them, under a name by which environments and rewards ask it: an endpoint, or a model that is served beside
    the policy and never changes."""

    name: str = Field(max_length=64, pattern=r"^[a-z0-9][a-z0-9-]*$")
    """What environments call it, such as `judge`."""
    endpoint: str = Field(default="", max_length=64)
    """The endpoint that answers: one that an administrator lets the project ask (`rollyard endpoints list`)."""
    model: str = ""
    """The model that inference servers of the run serve as it is, in place of an endpoint: `start` for policy version 0
    of the run, a model registered in the project, an absolute directory, or a name of the hub."""
    replicas: int = Field(default=1, ge=1)
    """Servers of `model` to start, beside `inference.replicas` and like them."""
    max_asks: int = Field(default=64, ge=1, le=100_000)
    """Times that the episodes of one group may ask it, for each rollout of the group."""
    max_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    """Most tokens of one reply, whatever an environment asks for."""

    @property
    def is_start(self) -> bool:
        """Whether it is what the run starts from."""
        return self.model == START
