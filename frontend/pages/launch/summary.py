"""What a config comes to, in counts a person can check, and hints that do not forbid anything."""

from dataclasses import dataclass

from frontend import numbers
from trainers.config import RunConfig

SMALL_BATCH = 64
SMALL_GROUP = 8


@dataclass(frozen=True)
class LaunchSummary:
    """Labelled figures, and hints."""

    figures: list[tuple[str, str]]
    hints: list[str]


def summarise(config: RunConfig) -> LaunchSummary:
    """Counts that follow from the config alone; how long it takes depends on the machine."""
    if config.kind == "sft":
        return _sft(config)
    if config.kind == "eval":
        return LaunchSummary(_evaluation(config), [])
    tokens = config.batch.token_batch_size
    if config.kind == "external":
        size = f"{numbers.count(config.batch.batch_size)} rollouts" if tokens is None else _at_most(tokens)
        per_step = f"{size}, unless the trainer registers for another number"
        return LaunchSummary([("Per step", per_step), ("Processes started here", "none")], [])
    lag = config.algorithm.steps_ahead
    figures = [
        *(_by_rollouts(config) if tokens is None else _by_tokens(config, tokens)),
        ("Lag at most", f"{lag} step{'' if lag == 1 else 's'} when nothing is late"),
        *_evaluation(config),
    ]
    hints = []
    if tokens is None and config.batch.batch_size < SMALL_BATCH:
        hints.append(f"A batch under {SMALL_BATCH} rollouts makes a noisy gradient.")
    if min(_group_sizes(config)) < SMALL_GROUP:
        hints.append(f"In groups under {SMALL_GROUP} all rewards are often equal, and such a group teaches nothing.")
    if not config.has_players:
        hints.append("No inference server is started: groups must be submitted from outside.")
    return LaunchSummary(figures, hints)


def _by_rollouts(config: RunConfig) -> list[tuple[str, str]]:
    rollouts = config.batch.batch_size * config.max_steps
    return [
        ("Per step", _groups(config)),
        ("Training rollouts", numbers.count(rollouts)),
        ("Most tokens generated", numbers.count(rollouts * config.episode_tokens)),
    ]


def _groups(config: RunConfig) -> str:
    most = numbers.count(config.batch.batch_size // config.smallest_group)
    is_exact = len(set(config.group_rollouts.values())) <= 1
    return f"{'' if is_exact else 'at most '}{most} groups of {_rollouts(config)}"


def _rollouts(config: RunConfig) -> str:
    """Of a group: one number, or those of the smallest and the largest."""
    largest = max(config.group_rollouts.values(), default=config.smallest_group)
    same = largest == config.smallest_group
    return str(largest) if same else f"{config.smallest_group} to {largest}"


def _group_sizes(config: RunConfig) -> list[int]:
    return [config.sampling_of(ref.run_name).group_size for ref in config.environments] or [config.sampling.group_size]


def _by_tokens(config: RunConfig, tokens: int) -> list[tuple[str, str]]:
    """How many rollouts that is depends on their lengths."""
    return [
        ("Per step", f"{_at_most(tokens)}, in groups of {_rollouts(config)}"),
        ("Most tokens in all", numbers.count(tokens * config.max_steps)),
    ]


def _at_most(tokens: int) -> str:
    return f"at most {numbers.count(tokens)} tokens"


def _sft(config: RunConfig) -> LaunchSummary:
    size = config.data.batch_size if config.data else 0
    figures = [
        ("Per step", f"{numbers.count(size)} conversations"),
        ("Conversations in all", numbers.count(size * config.max_steps)),
        *_evaluation(config),
    ]
    return LaunchSummary(figures, [])


def _evaluation(config: RunConfig) -> list[tuple[str, str]]:
    if config.evaluation is None:
        return [("Evaluations", "none")]
    every = config.evaluation.every
    versions = {0, config.max_steps, *(range(0, config.max_steps + 1, every) if every else ())}
    rollouts = config.evaluation.problems * config.evaluation.rollouts_per_problem
    size = rollouts * sum(len(environment.own_seats) for environment in config.environments)
    return [("Evaluations", f"{len(versions)} of {numbers.count(size)} rollouts")]
