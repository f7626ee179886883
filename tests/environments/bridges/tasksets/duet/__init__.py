"""An environment of verifiers with two seats: one proposes a word, the other repeats it."""

import verifiers.v1 as vf

__all__ = ["Duet", "DuetEnv"]


class DuetTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Duet(vf.Taskset[DuetTask, vf.TasksetConfig]):
    def load(self) -> list[DuetTask]:
        return [DuetTask(vf.TaskData(id="word", prompt="Say any word."), self.config.task)]


class DuetConfig(vf.EnvConfig):
    caller: vf.AgentConfig = vf.AgentConfig()
    echo: vf.AgentConfig = vf.AgentConfig()
    fixed_echo: bool = False
    """Whether the second seat is not to be trained."""


class DuetEnv(vf.Env[DuetConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.echo.trainable = not self.config.fixed_echo

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        called = await agents.caller.run(task)
        await agents.echo.run(DuetTask(vf.TaskData(prompt=f"Repeat: {called.last_reply}"), task.config))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        words = [trace.last_reply for trace in episode.traces]
        for trace, weight in zip(episode.traces, (1.0, 0.5), strict=True):
            trace.record_reward("agrees", float(len(set(words)) == 1), weight)
