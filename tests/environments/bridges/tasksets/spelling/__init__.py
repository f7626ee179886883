"""A taskset of verifiers with one turn: spell a word backwards. Its reward has two parts."""

import asyncio

import verifiers.v1 as vf

__all__ = ["Spelling"]

WORDS = ["stone", "river", "cloud", "amber", "piano", "lemon", "tiger", "ocean", "maple", "spark", "drift", "globe"]


class SpellingData(vf.TaskData):
    word: str


class SpellingTaskConfig(vf.TaskConfig):
    fails: str = ""
    """Which step of an episode raises, or takes without end."""


class SpellingTask(vf.Task[SpellingData, vf.State, SpellingTaskConfig]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.config.fails == "setup":
            raise RuntimeError("the dictionary is lost")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.config.fails == "finalize without end":
            await asyncio.Event().wait()

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        if self.config.fails == "scoring":
            raise RuntimeError("nobody can spell that")
        if self.config.fails == "scoring without end":
            await asyncio.Event().wait()
        return float(trace.last_reply == self.data.word[::-1])

    @vf.reward(weight=0.25)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= len(self.data.word))

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SpellingConfig(vf.TasksetConfig):
    task: SpellingTaskConfig = SpellingTaskConfig()
    words: int = len(WORDS)
    """How many of them."""


class Spelling(vf.Taskset[SpellingTask, SpellingConfig]):
    def load(self) -> list[SpellingTask]:
        return [
            SpellingTask(
                SpellingData(id=word, prompt=f"Spell {word} backwards.", system_prompt="Be brief.", word=word),
                self.config.task,
            )
            for word in WORDS[: self.config.words]
        ]
