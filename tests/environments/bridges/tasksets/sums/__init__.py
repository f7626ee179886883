"""A taskset of verifiers with a tool: two numbers that are too long for the head. The tool server counts its calls.

It is started for each episode, or for all of them, which costs an episode seconds less.
"""

import random

import verifiers.v1 as vf

from sums.tools import Calls, SumsTools

__all__ = ["Sums"]


class SumsData(vf.TaskData):
    a: int
    b: int


class SumsTaskConfig(vf.TaskConfig):
    own_server: bool = True


class SumsTask(vf.Task[SumsData, Calls, SumsTaskConfig]):
    @classmethod
    def toolsets(cls, config: SumsTaskConfig) -> list[vf.Toolset]:
        return [SumsTools(vf.ToolsetConfig())] if config.own_server else []

    @vf.reward(weight=0.7)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.a + self.data.b))

    @vf.reward(weight=0.3)
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.count > 0)

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(trace.state.count)


class SumsConfig(vf.TasksetConfig):
    task: SumsTaskConfig = SumsTaskConfig()
    digits: int = 2
    """Of each number, at least one."""


class Sums(vf.Taskset[SumsTask, SumsConfig]):
    """Tasks without end."""

    INFINITE = True

    @classmethod
    def toolsets(cls, config: SumsConfig) -> list[vf.Toolset]:
        return [] if config.task.own_server else [SumsTools(vf.ToolsetConfig())]

    def load(self):
        rng = random.Random(7)
        top = 10**self.config.digits - 1
        while True:
            a, b = rng.randint(1, top), rng.randint(1, top)
            yield SumsTask(SumsData(prompt=f"{a} + {b}", a=a, b=b), self.config.task)
