"""A run of kind eval: measures what it names, version by version, every problem once, and then is finished."""

import random
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from environments.figures import COMPLETION_TOKENS, sampled_tokens
from environments.types import StopReason
from rollouts.errors import Invalid, Untrusted
from rollouts.models import Evaluation, Lease, PolicyVersion, Run, ScoredGroup
from rollouts.selectors import evaluations as selected
from rollouts.services import endpoints
from rollouts.services.groups import evaluations, leases, settling
from rollouts.services.runs import checkpoints, evaluating, forks, launches, life, policies
from rollouts.services.runs.evaluating import EnvironmentIn, EvaluationIn
from rollouts.states import EvaluationState, GroupState, PolicyVersionState, RunState
from tests import store
from tests.factories import make_project
from tests.model_files import whole_model
from tests.rollouts import story
from tests.rollouts.runs.test_runs import checkpoint
from tests.workers.making import expire
from trainers.config import ConfigError, resolve
from trainers.origins import COMMAND_LINE

pytestmark = pytest.mark.django_db


def launch(target: str, **asked: Any) -> Run:
    environments = asked.pop("environments", [EnvironmentIn(name="reverse_text")])
    wanted = EvaluationIn(target=target, environments=environments, **asked)
    return evaluating.launch(
        wanted,
        project=make_project(),
        user=None,
        actor="user:ada",
        forkable=Run.objects.all(),
        origin=COMMAND_LINE,
    )


@pytest.fixture
def model() -> str:
    return str(whole_model())


def begun(run: Run) -> Run:
    """Its first version is live."""
    life.start(run)
    version = policies.find_publishable(run) or policies.register_initial(run, path=run.parsed.model.path)
    policies.published(version)
    return story.fresh(run)


def play_all(run: Run, rewards: list[float]) -> int:
    played = 0
    while claims := story.claim(run, 7):
        for claim in claims:
            assert story.settle(claim, rewards) == GroupState.EVALUATED
        played += len(claims)
    evaluations.conclude(run)
    evaluations.advance(run)
    return played


def test_an_evaluation_of_nothing_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        launch(model, problems=0)


def test_a_judge_that_compares_replies_of_one_policy_measures_nothing(model: str) -> None:
    endpoints.add(name="j", base_url="https://a.example/v1", model="m", is_for_all=True, actor="user:root")
    asked = {"samples": 4, "overrides": {"policies": [{"name": "judge", "endpoint": "j"}]}}
    with pytest.raises(ConfigError, match=r"environments\.0\.args\.against: 'group' compares replies of one policy"):
        launch(model, environments=[EnvironmentIn(name="judge")], **asked)
    by_answer = EnvironmentIn(name="judge", args={"against": "answer"})
    assert launch(model, environments=[by_answer], **asked).parsed.kind == "eval"


def test_a_model_is_measured_on_every_problem_and_its_run_goes_on_to_its_end(model: str) -> None:
    run = begun(launch(model, problems=20, samples=2))
    assert run.state == RunState.RUNNING
    assert play_all(run, [1.0, 0.0]) == 20
    [found] = selected.of_runs([run])[run.pk]
    assert found.state == EvaluationState.DONE
    assert found.figures["avg@2"]["value"] == 0.5
    assert found.figures["pass@2"]["value"] == 1.0
    assert found.figures["pass^2"]["value"] == 0.0
    assert story.fresh(run).next_step == 1
    assert not ScoredGroup.objects.filter(run=run, purpose="train").exists()


def test_a_model_may_take_the_turns_that_tools_need_and_what_needed_more_is_counted(model: str) -> None:
    run = begun(launch(model, problems=1, samples=2, environments=[EnvironmentIn(name="calculator")]))
    assert run.parsed.sampling_of("calculator").max_turns == evaluating.TURNS
    assert str(run.origins["sampling.max_turns"]) == "default"
    [claim] = story.claim(run)
    rollouts = [story.rollout(0.3, stop_reason=StopReason.TURNS), story.rollout(1.0)]
    settling.settle(token=claim.token, problem_key="p", rollouts=rollouts, worker="w")
    evaluations.conclude(run)
    [found] = selected.of_runs([run])[run.pk]
    assert (found.figures["out_of_turns"], found.figures["truncated"]) == (1, 0)


@pytest.mark.parametrize("fork", [False, True])
def test_an_eval_run_that_was_launched_as_any_run_measures_what_it_starts_from_and_ends(model: str, fork: bool) -> None:
    config = resolve("reverse-text-rl", overrides={"kind": "eval", "model.path": model, "evaluation.problems": 4})
    source = fork_of_a_run() if fork else None
    everything = Run.objects.all()
    run = begun(
        launches.launch(
            project=make_project(), user=None, resolved=config, actor="user:ada", forkable=everything, fork=source
        )
    )
    assert (run.max_steps, run.parsed.max_steps) == (1, 1)
    assert play_all(run, [1.0]) == 4
    assert story.fresh(run).state == RunState.FINISHING


def fork_of_a_run() -> forks.Fork:
    source, epoch = story.train(max_steps=9)
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=checkpoint(source, 1))
    return forks.plan(source, step=1)


def test_no_more_problems_are_asked_for_than_there_are(model: str) -> None:
    run = launch(model, problems=500, environments=[EnvironmentIn(name="reverse_text", args={"eval_count": 5})])
    evaluations.note_count(run, "reverse_text", 5)
    run = begun(run)
    assert play_all(run, [1.0]) == 5


@pytest.mark.parametrize("seed", range(5))
def test_holders_that_die_at_any_moment_leave_every_problem_played_once(model: str, seed: int) -> None:
    run = begun(launch(model, problems=40, samples=1))
    chance = random.Random(seed)
    while ScoredGroup.objects.filter(run=run).exclude(state=GroupState.PLAYING).count() < 40:
        for claim in story.claim(run, 9):
            if chance.random() < 0.7:
                story.settle(claim, [1.0])
        playing = ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING)
        playing.update(lease_count=0)  # none of the deaths is held against a problem
        expire(run)
    evaluations.conclude(run)
    groups = ScoredGroup.objects.filter(run=run, state=GroupState.EVALUATED)
    assert sorted(groups.values_list("problem_index", flat=True)) == list(range(40))
    assert not Lease.objects.filter(run=run).exists()
    assert Evaluation.objects.get(run=run).figures["rollouts"] == 40


def test_the_database_refuses_a_problem_a_second_time(model: str) -> None:
    run = begun(launch(model, problems=3))
    [claim, *_] = story.claim(run, 1)
    row = ScoredGroup.objects.get(key=claim.group)
    row.pk, row.key = None, "again"
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_a_series_of_checkpoints_is_measured_one_after_the_other() -> None:
    source, epoch = story.train(max_steps=9, evaluation={"problems": 2})
    for step in (0, 1, 2):
        checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=checkpoint(source, step))
    run = launch(f"{source.key}@*", problems=2, environments=[])
    steps = list(PolicyVersion.objects.filter(run=run).order_by("version").values_list("version", flat=True))
    assert len(steps) == run.max_steps > 1
    run = begun(run)
    for step in steps:
        run = story.fresh(run)
        assert run.live_version == step
        waiting = policies.find_publishable(run)
        assert waiting is None, "the next version waits until this one is measured"
        assert play_all(run, [1.0]) == 2
        if (following := policies.find_publishable(story.fresh(run))) is not None:
            policies.published(following)
    assert set(Evaluation.objects.filter(run=run).values_list("version", "state")) == {
        (step, EvaluationState.DONE) for step in steps
    }
    assert PolicyVersion.objects.get(run=run, state=PolicyVersionState.LIVE).version == steps[-1]


@pytest.fixture
def source(model: str) -> Run:
    """A run of jobs with a checkpoint, a judge, an opponent, and turns of its environment's own."""
    endpoints.add(name="j", base_url="https://a.example/v1", model="m", is_for_all=True, actor="user:root")
    own = {
        "environments": [{"name": "reverse_text", "max_tokens": 60, "max_turns": 2}],
        "policies": [{"name": "judge", "endpoint": "j"}, {"name": "rival", "model": "start"}],
        "launcher": {"type": "slurm", "template": "large"},
        "inference.max_model_len": 300,
    }
    run, epoch = story.train(model__path=model, **{key.replace(".", "__"): value for key, value in own.items()})
    checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, 1))
    return run


def test_checkpoints_are_measured_as_their_run_plays_and_every_value_says_whose_it_is(source: Run, model: str) -> None:
    run = launch(f"{source.key}@1", environments=[], max_turns=6)
    config, origins = run.parsed, {key: str(origin) for key, origin in run.origins.items()}
    sampling = config.sampling_of("reverse_text")
    assert (sampling.max_tokens, sampling.max_turns) == (60, 6), "what was asked for is stronger than the run's"
    rivals = [(policy.name, policy.endpoint, policy.model) for policy in config.policies]
    assert rivals == [("judge", "j", ""), ("rival", "", model)], "the opponent stays what the run started from"
    assert (config.launcher.type, config.launcher.template) == ("slurm", "large")
    assert config.inference.max_model_len == 300
    of_run = ("environments.0.name", "policies.0.name", "launcher.type", "inference.max_model_len")
    assert {origins[key] for key in of_run} == {f"run {source.key}"}
    assert {origins[key] for key in ("evaluation.problems", "sampling.max_turns")} == {"command line"}


def test_an_opponent_that_is_the_adapter_a_run_started_from_is_refused_until_a_model_is_named(
    source: Run, model: str, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    lora = source.config["model"]["lora"] | {"rank": 8, "path": str(tmp_path)}
    with store.beyond_rights():
        Run.objects.filter(pk=source.pk).update(
            config=source.config | {"model": source.config["model"] | {"lora": lora}}
        )
    with pytest.raises(Invalid) as refusal:
        launch(f"{source.key}@1", environments=[])
    assert "holds an adapter" in refusal.value.fields["policies.1.model"]
    run = launch(f"{source.key}@1", environments=[], overrides={"policies.1.model": model})
    assert run.parsed.policies[1].model == model


def test_code_of_a_run_whose_checkpoints_are_measured_has_to_be_allowed_again(source: Run) -> None:
    config = source.config | {"model": source.config["model"] | {"trust_remote_code": True}}
    with store.beyond_rights():
        Run.objects.filter(pk=source.pk).update(config=config)
    assert evaluating.config_of(
        EvaluationIn(target=f"{source.key}@1"), Run.objects.all()
    ).config.model.trust_remote_code
    with pytest.raises(Untrusted) as refusal:
        launch(f"{source.key}@1", environments=[])
    assert "model.trust_remote_code" in refusal.value.fields


def test_a_checkpoint_is_kept_until_it_was_measured_and_no_longer() -> None:
    source, epoch = story.train(max_steps=9, evaluation={"problems": 2}, trainer__keep_checkpoints=1)
    for step in (1, 2):
        checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=checkpoint(source, step))
    run = launch(f"{source.key}@1", problems=2, environments=[])
    assert checkpoints.delete_checkpoints(source) == []
    life.end(run, to=RunState.FAILED)
    assert [each.step for each in checkpoints.delete_checkpoints(source)] == [1]


def test_what_cannot_be_measured_is_refused_with_its_reason(model: str) -> None:
    with pytest.raises(ConfigError, match="at least one environment"):
        launch(model, environments=[])
    with pytest.raises(ConfigError, match="is not an environment"):
        launch(model, environments=[EnvironmentIn(name="no_such")])
    for target in ("nosuchrun@*", "no-such-model", "nosuchrun@1,2"):
        with pytest.raises((Invalid, ConfigError)):
            launch(target)
    assert not Run.objects.filter(kind="eval").exists()


def test_nothing_is_trained_by_an_eval_run(model: str) -> None:
    run = begun(launch(model, problems=2))
    answer = leases.claim(run, holder="driver", limit=9, lease_s=30)
    assert len(answer.claims) == 2
    assert leases.claim(run, holder="driver", limit=9, lease_s=30).claims == []


@pytest.mark.parametrize("told", [1e30, -1e30])
def test_what_an_environment_says_that_an_endpoint_sampled_keeps_no_evaluation_open(model: str, told: float) -> None:
    run = begun(launch(model, problems=2))
    for claim in story.claim(run, 9):
        forged = story.rollout(1.0, metrics={COMPLETION_TOKENS: told})
        settling.settle(token=claim.token, problem_key="p", rollouts=[forged], worker="w")
    evaluations.conclude(run)
    found = Evaluation.objects.get(run=run)
    assert found.state == EvaluationState.DONE
    assert found.figures["tokens"] <= 2 * (2**31 + 4)
    assert sampled_tokens(forged) <= 2**31 + 4
