"""What submitters send: groups that name their sender in their first two tokens, each the same whenever it is made."""

import random

import msgspec
import numpy as np

from environments.types import PackedRollout, PackedScoredGroup, PlayedGroup, PlayedRollout
from tests.chaos.history import Sent, digest_of

ENVIRONMENT = "outside"
_PROMPT_TOKENS = 4


def make_group(
    client: int, number: int, *, rollouts: int = 4, version: int | None = None, longest: int = 40
) -> PlayedGroup:
    """The group `number` of a client, with its key. Tokens, rewards and lengths depend on nothing but the arguments."""
    dice = random.Random(f"{client}/{number}")
    made = []
    for index in range(rollouts):
        sampled = dice.randint(longest // 10, longest)
        tokens = [client, number] + [dice.randrange(32_000) for _ in range(_PROMPT_TOKENS - 2 + sampled)]
        made.append(
            PlayedRollout(
                token_ids=tokens,
                loss_mask=[0] * _PROMPT_TOKENS + [1] * sampled,
                inference_logprobs=[0.0] * _PROMPT_TOKENS + [-dice.randrange(1, 4096) / 1024 for _ in range(sampled)],
                # Never all alike: a group without a signal may be dropped, and would test less.
                reward=float(index % 2) if index < 2 else float(dice.random() < 0.5),
                dispatch_policy_version=version,
                first_policy_version=version,
                last_policy_version=version,
            )
        )
    return PlayedGroup(
        environment=ENVIRONMENT, problem_key=f"problem-{number % 97}", rollouts=made, key=f"c{client}-{number}"
    )


def sent(group: PlayedGroup, *, keyed: bool = True) -> Sent:
    """The group as its submitter writes it down."""
    client, number = group.rollouts[0].token_ids[:2]
    digest = digest_of([(each.token_ids, each.loss_mask, each.inference_logprobs) for each in group.rollouts])
    return Sent(marker=(client, number), digest=digest, key=group.key if keyed else None)


def packed(group: PlayedGroup) -> PackedScoredGroup:
    """The same group with its arrays as little-endian bytes."""
    rollouts = []
    for rollout in group.rollouts:
        facts = msgspec.structs.asdict(rollout)
        for name, dtype in (("token_ids", "<u4"), ("loss_mask", "u1"), ("inference_logprobs", "<f4")):
            facts[name] = np.asarray(facts[name], dtype).tobytes()
        rollouts.append(PackedRollout(**facts))
    return PackedScoredGroup(
        environment=group.environment, problem_key=group.problem_key, rollouts=rollouts, key=group.key
    )
