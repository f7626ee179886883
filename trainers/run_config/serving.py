"""What plays the policy, and how it is evaluated and started."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.run_config import server_arguments
from trainers.run_config.section import Section, is_stored


class InferenceConfig(Section):
    """The vLLM servers that play the policy."""

    replicas: int = Field(default=1, ge=0)
    """Servers to start. 0: rollouts come from outside only."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Number format of inference. The closer to the trainer's, the smaller the mismatch."""
    max_model_len: int = Field(default=2048, ge=16)
    """Longest context in tokens, prompt included."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of GPU memory a server may take. Has no meaning on CPU."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for the key-value cache of a server on CPU, in GiB."""
    tensor_parallel: int = Field(default=1, ge=1, le=1024)
    """Processes of a server among which every layer is split, each on a GPU of its own. They are on one node."""
    pipeline_parallel: int = Field(default=1, ge=1, le=1024)
    """Groups of such processes, each with a part of the layers."""
    data_parallel: int = Field(default=1, ge=1, le=1024)
    """Engines of a server, each with all layers. For experts, which are then split among them; else use `replicas`."""
    max_num_seqs: int = Field(default=0, ge=0)
    """Rollouts that an engine samples side by side. 0: as many as vLLM chooses."""
    quantization: str = Field(default="", pattern=r"^[a-z0-9_-]{0,64}$")
    """What vLLM does to weights that it loads, such as `fp8`. The mismatch to the trainer grows with it."""
    prefix_caching: bool = True
    """Whether the keys and values of a prompt are kept for those that begin like it."""
    arguments: dict[str, server_arguments.Value] = {}
    """Further arguments of vLLM, without dashes before them, such as `{ block-size = 32, async-scheduling = false }`.
    Those that may do more than tune have to be allowed by an administrator, one by one."""

    @field_validator("arguments")
    @classmethod
    def _known(
        cls, arguments: dict[str, server_arguments.Value], info: ValidationInfo
    ) -> dict[str, server_arguments.Value]:
        for name, value in arguments.items():
            if not is_stored(info) and (wrong := server_arguments.complaint(name, value)):
                raise ValueError(wrong)
        return arguments

    @property
    def devices(self) -> int:
        """Processes of one server that compute, each on a GPU of its own where there are any."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


class EvaluationConfig(Section):
    """Greedy (or sampled) play on held-out problems. Leave the section out for no evaluation."""

    every: int = Field(default=0, ge=0)
    """Policy versions between evaluations. 0: only the first and the last version."""
    problems: int = Field(default=64, ge=0)
    """Held-out problems per environment. 0: an eval run that is there for what somebody tries, and ends with it."""
    rollouts_per_problem: int = Field(default=1, ge=1)
    """Rollouts of each problem."""
    temperature: float = Field(default=0.0, ge=0, le=10)
    """Sampling temperature; 0 is greedy."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds after which an evaluation is closed with what it has."""
    threshold: float = 1.0
    """Reward from which a rollout counts as right, for pass@k and pass^k."""
    split: Literal["eval", "train"] = "eval"
    """Which problems are played. `train` is for synthesis: whatever learned from them is not measured by them."""

    @property
    def measures(self) -> bool:
        """Whether it says how good a policy is: not where nothing is played, nor where the best of several is looked
        for, which is synthesis."""
        return self.problems > 0 and (self.split == "eval" or self.rollouts_per_problem == 1)

    def is_due(self, version: int, last: int) -> bool:
        """Whether this policy version is evaluated in a run that ends with version `last`."""
        return version in {0, last} or (self.every > 0 and version % self.every == 0)


class WorkersConfig(Section):
    """The episode drivers."""

    concurrency: int = Field(default=16, ge=1)
    """Groups one driver plays at a time; of evaluated problems as many as have the rollouts of so many groups."""
    max_tokens_in_flight: int = Field(default=2_000_000, ge=1)
    """Tokens of all requests that a driver has at the policy at a time: prompts, and what may be sampled to them.
    Further requests wait in order, and their sessions stay open."""
    lease_s: float = Field(default=30.0, gt=0)
    """Seconds after which the groups of a silent driver are given to another."""


class JobNeed(Section):
    """What a process asks for; GPUs follow from the number of those that compute on one."""

    cores: int = Field(default=0, ge=0)
    """0: of a job what the template says. A process of this machine is then bound to none; else it has these cores, and
    no other run that asks for any does."""
    memory_gib: float = Field(default=0.0, ge=0)
    """Of each node of a job; 0: what the template says. Of this machine so much is promised to the run, and to no other
    that asks for any; nothing ends a process that takes more."""
    hours: float = Field(default=0.0, ge=0)
    """After these a job is ended, and another goes on from the last checkpoint. 0: what the template says."""


class LauncherConfig(Section):
    """What starts trainer and inference processes."""

    type: Literal["local", "slurm"] = "local"
    """`local` starts them on this machine, `slurm` as jobs."""
    template: str = Field(default="default", max_length=100)
    """Which template of `cluster.toml` jobs are given to SLURM by."""
    trainer: JobNeed = JobNeed()
    """What the trainer asks for."""
    inference: JobNeed = JobNeed()
    """What each inference server asks for."""
    idle_limit_s: float = Field(default=0.0, ge=0)
    """Seconds for which every job of the run may have nothing to do: then it is stopped, and its nodes are others'.
    0: the page Fleet has an alarm, and that is all."""
