"""A taskset of verifiers that wants what a room has not. A module in a directory of its name."""

import verifiers.v1 as vf

__all__ = ["Boxed"]


class BoxedTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Search(vf.Toolset[vf.ToolsetConfig, vf.State]):
    pass


class BoxedConfig(vf.TasksetConfig):
    wants: str = "image"


class Boxed(vf.Taskset[BoxedTask, BoxedConfig]):
    def load(self) -> list[BoxedTask]:
        wanted = {"image": {"image": "debian"}, "network": {"network_allow": ["example.org"]}}
        return [BoxedTask(vf.TaskData(prompt="x", **wanted.get(self.config.wants, {})), self.config.task)]

    @classmethod
    def toolsets(cls, config: BoxedConfig) -> list[vf.Toolset]:
        wanted = {"server": {"url": "http://search.example"}, "runtime": {"runtime": {"type": "prime"}}}
        return [Search(vf.ToolsetConfig(**wanted[config.wants]))] if config.wants in wanted else []
