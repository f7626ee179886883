"""A taskset of verifiers whose tasks need a container."""

import verifiers.v1 as vf

__all__ = ["Contained"]


class ContainedTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    NEEDS_CONTAINER = True


class Contained(vf.Taskset[ContainedTask, vf.TasksetConfig]):
    def load(self) -> list[ContainedTask]:
        return [ContainedTask(vf.TaskData(prompt="x"), self.config.task)]
