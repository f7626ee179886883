"""Launch an evaluation: a run of kind `eval` from what is to be measured, on which problems, and how often.

    target   "warm", "/models/mine", "org/name"    a model, as in `model.path`
             "KEY@40", "KEY@20,40", "KEY@*"        checkpoints of a run, one policy version each, measured in order
             "endpoint:NAME"                       a model of others, which an administrator lets the project ask

A run it is, so everything that is there for runs serves it: leases, drivers, stop, roles, pages, kills at any line.
"""

import json
from collections.abc import Collection
from typing import Any

import msgspec
from django.contrib.auth.models import User
from django.db.models import QuerySet

from rollouts.models import Project, Run
from rollouts.services.runs import launches
from trainers.config import ConfigError, Layer, Resolved, resolve
from trainers.origins import COMMAND_LINE, DEFAULT, Origin, OriginKind
from trainers.run_config import ConfigProblem, RunConfig
from trainers.run_config.policies import START

ENDPOINT = "endpoint:"
DEADLINE_S = 30 * 86_400.0
"""An evaluation is ended by its last problem, or by a person."""
TURNS = 16
"""Of an episode where no run says otherwise: enough for the environments that ship. With one, a run's default, there is
nothing to measure of those with tools or games."""


class EnvironmentIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment by its name, with arguments."""

    name: str
    args: dict[str, Any] = {}
    label: str = ""
    """Its name in the evaluation; by default `name`."""


class EvaluationIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure, and how. None: as the run whose checkpoints it measures, or else the default."""

    target: str
    """A model's name, directory or name on the hub; checkpoints of a run: RUN@STEP, RUN@STEP,STEP or RUN@*; or an
    endpoint: endpoint:NAME."""
    environments: list[EnvironmentIn] = []
    """Empty: those of the run whose checkpoints it measures."""
    samples: int = 1
    """Rollouts of each problem."""
    problems: int = 100
    """Of each environment, and no more than it has."""
    temperature: float = 1.0
    max_tokens: int | None = None
    """Per turn."""
    max_turns: int | None = None
    """Of a model or an endpoint, `TURNS`."""
    threshold: float = 1.0
    """Reward from which a rollout is right."""
    split: str = "eval"
    name: str = ""
    project: str | None = None
    overrides: dict[str, Any] = {}
    """Dotted key of the run's config -> value, such as `inference.max_model_len`."""


def environment_of(text: str) -> EnvironmentIn:
    """An environment as people name it, NAME or NAME:JSON. Raises ValueError, whose message says what is meant."""
    name, separator, args = text.partition(":")
    try:
        values = json.loads(args) if separator else {}
    except (ValueError, RecursionError):
        values = None
    if not name or not isinstance(values, dict):
        raise ValueError(f'{text!r} is not NAME or NAME:JSON, such as calculator:{{"max_digits": 2}}')
    return EnvironmentIn(name=name, args=values)


def launch(
    asked: EvaluationIn, *, project: Project, user: User | None, actor: str, forkable: QuerySet[Run], origin: Origin
) -> Run:
    """Store an eval run; ``forkable`` are the runs whose checkpoints may be measured.

    Raises ConfigError with every value that cannot be, and what `launches.launch` raises.
    """
    if asked.problems < 1:
        raise ConfigError([ConfigProblem("evaluation.problems", "must be at least 1")])
    return launches.launch(
        project=project, user=user, resolved=config_of(asked, forkable, origin), actor=actor, forkable=forkable
    )


def config_of(asked: EvaluationIn, readable: QuerySet[Run], origin: Origin = COMMAND_LINE) -> Resolved:
    """The config of the run. One query where a run is named. Raises ConfigError."""
    given = {"max_tokens": asked.max_tokens, "max_turns": asked.max_turns}
    sampling = {key: each for key, each in given.items() if each is not None}
    values: dict[str, Any] = {
        "kind": "eval",
        "max_steps": 1,
        "name": asked.name,
        **_played_by(asked.target),
        "sampling": sampling,
        "evaluation": {
            "problems": asked.problems,
            "rollouts_per_problem": asked.samples,
            "temperature": asked.temperature,
            "deadline_s": DEADLINE_S,
            "threshold": asked.threshold,
            "split": asked.split,
        },
    }
    if asked.environments:
        values["environments"] = [_reference(each) for each in asked.environments]
    source = _source(asked.target, readable)
    layers = []
    if source is None:
        layers.append(Layer(DEFAULT, {"sampling": {"max_turns": TURNS}}))
    else:
        common = _common(source.parsed, without=sampling, plays=not asked.environments)
        layers.append(Layer(Origin(OriginKind.RUN, source.key), common))
    return resolve(layers=layers, inline=values, inline_from=origin, overrides=asked.overrides, overrides_from=origin)


def _played_by(target: str) -> dict[str, Any]:
    endpoint = target.removeprefix(ENDPOINT)
    if endpoint == target:
        return {"model": {"path": target}}
    return {"model": {"endpoint": endpoint}, "inference": {"replicas": 0}}


def _source(target: str, readable: QuerySet[Run]) -> Run | None:
    """The run whose checkpoints are measured."""
    key = target.partition("@")[0].partition(":")[0]
    is_named = key != target and not target.startswith(ENDPOINT)
    return readable.filter(key=key).first() if is_named else None


def _common(config: RunConfig, *, without: Collection[str], plays: bool) -> dict[str, Any]:
    """What an evaluation of checkpoints has in common with the run that wrote them; if it ``plays`` the run's own
    environments, those too, ``without`` keys that were asked for otherwise, and whoever they ask beside the policy."""
    of_run = config.model_dump(mode="json")
    sampling, inference = of_run["sampling"], of_run["inference"]
    common = {
        "model": {"trust_remote_code": config.model.trust_remote_code},
        "sampling": {key: sampling[key] for key in ("max_tokens", "max_turns")},
        "inference": {key: value for key, value in inference.items() if key != "replicas" or value},
        "trainer": {"device": config.trainer.device},
        "launcher": of_run["launcher"],
    }
    if plays:
        refs = of_run["environments"]
        common["environments"] = [{key: ref[key] for key in ref if key not in without} for ref in refs]
        # What the run started from is not what the evaluation does.
        start = {"model": config.model.lora.path or config.model.path}
        common["policies"] = [policy | start if policy["model"] == START else policy for policy in of_run["policies"]]
    return common


def _reference(environment: EnvironmentIn) -> dict[str, Any]:
    label = {"label": environment.label} if environment.label else {}
    return {"name": environment.name, "args": environment.args, **label}
