"""An environment as users of Atropos write it: `python environment.py serve --env.rollout_server_url URL ...`.

Runs in `.venv-atropos` and knows nothing of Rollyard. Its prompt asks for lowercase letters, and a rollout's score is
the share of them in the answer, so that even a model that was never trained gets scores that differ.
"""

from typing import Any

import jsonlines
from atroposlib.envs.base import BaseEnv, BaseEnvConfig, ScoredDataGroup
from atroposlib.envs.server_handling.server_baseline import APIServerConfig

ANSWER_TOKENS = 24
IGNORED = -100
NOT_SAMPLED = 1.0
"""What Atropos writes where the policy sampled nothing: label of a prompt token, and its logprob."""


class LettersEnv(BaseEnv):
    name = "letters"

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        return BaseEnvConfig(group_size=4, max_token_length=128), [APIServerConfig(model_name="policy")]

    async def setup(self) -> None:
        self.asked = 0
        if self.jsonl_writer is not None:
            # What it wrote down has to be on disk when it is sent: on a busy machine it may be killed in the end.
            self.jsonl_writer = jsonlines.open(self.config.data_path_to_save_groups, "w", flush=True)

    async def get_next_item(self) -> dict[str, Any]:
        self.asked += 1
        return {"role": "user", "content": f"Lowercase letters, please: {self.asked}"}

    async def collect_trajectories(self, item: dict[str, Any]) -> tuple[ScoredDataGroup, list[Any]]:
        answer = await self.server.chat_completion(
            messages=[item],
            n=self.config.group_size,
            max_tokens=ANSWER_TOKENS,
            temperature=1.0,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[], messages=[])
        for choice in answer.choices:
            text = choice.message.content or ""
            prompt, completion = answer.prompt_token_ids, choice.token_ids
            group["tokens"].append(prompt + completion)
            group["masks"].append([IGNORED] * len(prompt) + completion)
            group["inference_logprobs"].append(
                [NOT_SAMPLED] * len(prompt) + [each.logprob for each in choice.logprobs.content]
            )
            group["scores"].append(sum("a" <= letter <= "z" for letter in text) / ANSWER_TOKENS)
            group["messages"].append([item, {"role": "assistant", "content": text}])
        return group, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to hold out."""


if __name__ == "__main__":
    LettersEnv.cli()
