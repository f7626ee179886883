"""Environments as users of Atropos write them, for `.venv-atropos`: they know nothing of Rollyard."""

import asyncio
from typing import Any

import openai
from atroposlib.envs.base import BaseEnv, BaseEnvConfig, ScoredDataGroup, ScoredDataItem
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer

WORDS = ["one", "three", "seven"]


class WordsConfig(BaseEnvConfig):
    """One setting more than others have."""

    worth: float = 1.0


class WordsEnv(BaseEnv):
    """Asks for a word; the score is the share of its letters in the answer, times what a letter is worth."""

    name = "words"
    env_config_cls = WordsConfig

    @classmethod
    def config_init(cls) -> tuple[WordsConfig, list[APIServerConfig]]:
        return WordsConfig(group_size=8, wandb_name="words"), [APIServerConfig(model_name="policy")]

    async def setup(self) -> None:
        self.at = 0
        self.asked_at: list[int] = []

    async def get_next_item(self) -> Any:
        word = WORDS[self.at % len(WORDS)]
        self.at += 1
        return ((frozenset({"role": "user", "content": word}.items()),), word)

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        messages, word = [dict(each) for each in item[0]], item[1]
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            answer = await managed.chat_completion(
                messages=messages, n=self.config.group_size, max_tokens=50, temperature=1.0
            )
            nodes = managed.get_state()["nodes"]
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
        for choice, node in zip(answer.choices, nodes, strict=True):
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
            group["scores"].append(self.score(word, choice.message.content))
        self.asked_at.append(self.config.group_size)
        return group, []

    def score(self, word: str, said: str) -> float:
        return self.config.worth * sum(letter in said for letter in word) / len(word)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = wandb_metrics or {}
        metrics["train/groups"] = len(self.asked_at)
        metrics["train/names"] = ["not a figure"]
        await super().wandb_log(metrics)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to hold out."""


class TwiceEnv(WordsEnv):
    """Plays each rollout by itself, in two turns; better ones are known by their last answer."""

    async def collect_trajectory(self, item: Any) -> tuple[ScoredDataItem, list[Any]]:
        messages, word = [dict(each) for each in item[0]], item[1]
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            for _ in range(2):
                answer = await managed.chat_completion(messages=messages, n=1, max_tokens=50)
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                messages.append({"role": "user", "content": "again"})
            [node] = managed.get_state()["nodes"]
        scored = ScoredDataItem(tokens=node.tokens, masks=node.masked_tokens)
        scored["scores"] = self.score(word, messages[-2]["content"])
        return scored, []

    async def collect_trajectories(self, item: Any) -> Any:
        return await BaseEnv.collect_trajectories(self, item)


class ForgetfulEnv(TwiceEnv):
    """Asks the second time without what was said the first time, and scores the last answer only."""

    async def collect_trajectory(self, item: Any) -> tuple[ScoredDataItem, list[Any]]:
        messages = [dict(each) for each in item[0]]
        first = await self.server.chat_completion(messages=messages, max_tokens=50)
        told = [{"role": "user", "content": f"was it {len(first.choices[0].message.content)} letters?"}]
        second = await self.server.chat_completion(messages=told, max_tokens=50)
        told.append({"role": "assistant", "content": second.choices[0].message.content})
        out = tokenize_for_trainer(self.tokenizer, told)
        score = self.score(item[1], told[-1]["content"])
        return ScoredDataItem(tokens=out["tokens"], masks=out["masks"], scores=score), []


class RetokenizedEnv(WordsEnv):
    """Makes tokens of the text again, as environments did before there were managed servers."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        messages = [dict(each) for each in item[0]]
        answer = await self.server.chat_completion(messages=messages, n=self.config.group_size, max_tokens=50)
        group = ScoredDataGroup(tokens=[], masks=[], scores=[])
        for choice in reversed(answer.choices):
            said = choice.message.content
            out = tokenize_for_trainer(self.tokenizer, [*messages, {"role": "assistant", "content": said}])
            group["tokens"].append(out["tokens"])
            group["masks"].append(out["masks"])
            group["scores"].append(self.score(item[1], said))
        return group, []


class PartlyEnv(WordsEnv):
    """Leaves the first rollout out, and makes up tokens for the second."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        group, again = await super().collect_trajectories(item)
        for column in group.values():
            del column[0]
        group["tokens"][0] = [*group["tokens"][0][:-2], 7, 7]
        return group, again


class AdvantagesEnv(WordsEnv):
    """Knows its advantages itself."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        group, again = await super().collect_trajectories(item)
        group["advantages"] = [[1.0] * len(tokens) for tokens in group["tokens"]]
        return group, again


class DecliningEnv(WordsEnv):
    """Likes no group."""

    async def collect_trajectories(self, item: Any) -> tuple[None, list[Any]]:
        await super().collect_trajectories(item)
        return None, []


class JudgedEnv(WordsEnv):
    """Has the policy judge what it said."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        group, again = await super().collect_trajectories(item)
        await self.server.tokens_and_logprobs_completion(prompt="Was it good?", n=1, max_tokens=50)
        return group, again


class OfferedEnv(WordsEnv):
    """Plays two items at once as well as one."""

    meeting: asyncio.Event

    async def setup(self) -> None:
        await super().setup()
        self.here = 0
        self.meeting = asyncio.Event()

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        self.here += 1
        if self.here == 2:
            self.meeting.set()
        await self.meeting.wait()
        return await super().collect_trajectories(item)


class ThreadsEnv(WordsEnv):
    """Asks with clients of its own, in threads: one that knows its task's context, and one that knows nothing."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        def ask() -> list[str]:
            config = self.server.servers[0].config
            client = openai.OpenAI(base_url=config.base_url, api_key=config.api_key)
            said = client.completions.create(model="policy", prompt=f"say {item[1]}: ", max_tokens=50)
            return [f"say {item[1]}: ", said.choices[0].text]

        loop = asyncio.get_running_loop()
        group = ScoredDataGroup(tokens=[], masks=[], scores=[])
        for prompt, said in [await asyncio.to_thread(ask), await loop.run_in_executor(None, ask)]:
            group["tokens"].append(self.tokenizer.encode(prompt + said + "<end>"))
            group["masks"].append([0] * len(prompt) + [1] * (len(said) + 1))
            group["scores"].append(self.score(item[1], said))
        return group, []


class ReadingEnv(WordsEnv):
    """Has a thread of the loop's read its items."""

    async def get_next_item(self) -> Any:
        return await asyncio.to_thread(asyncio.run, super().get_next_item())


class RaisingEnv(WordsEnv):
    """Breaks, or hangs."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup, list[Any]]:
        if self.config.worth:
            raise LookupError("no such word")
        await asyncio.Event().wait()
        raise AssertionError


class BrokenEnv(WordsEnv):
    """Cannot be set up."""

    async def setup(self) -> None:
        raise FileNotFoundError("words.parquet")
