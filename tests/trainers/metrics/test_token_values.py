"""What a step reports of each token: against a plain forward pass, and the same however the step is spread."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.crew import Crew
from tests.trainers.objective.objectives import configured
from tests.trainers.support import random_batch, rl_config
from trainers.distributed.mesh import World
from trainers.metrics import token_values
from trainers.metrics.token_values import TokenWatch
from trainers.model.policy import load_policy, load_tokenizer, score_tokens
from trainers.objective.step import Objective
from trainers.packing import batch_sequences, pack
from trainers.run_config import ModelConfig
from trainers.wire import MaskReason, TokenValuesIn, TrainingBatch

SEQ_LEN = 128
FLOATS = ("trainer_logprobs", "entropies", "ratios", "advantages")


def two_turns(step: int = 0) -> TrainingBatch:
    """Eight rollouts in which the environment speaks once more; the second has its own advantages per token."""
    batch = random_batch(step)
    rollouts = []
    for rollout in batch.rollouts:
        mask = np.frombuffer(rollout.loss_mask, np.uint8).copy()
        mask[14:17] = 0
        rollouts.append(msgspec.structs.replace(rollout, loss_mask=mask.tobytes()))
    size = len(rollouts[1].loss_mask)
    rollouts[1] = msgspec.structs.replace(rollouts[1], advantages=np.linspace(-1, 1, size, dtype="<f4").tobytes())
    return msgspec.structs.replace(batch, rollouts=rollouts, temperature=0.8)


def watched(
    model_dir: Path,
    world: World,
    batch: TrainingBatch,
    objective: Objective,
    *,
    share: float = 1.0,
    seq_len: int = SEQ_LEN,
    echo: bool = False,
) -> list[TokenValuesIn]:
    config = ModelConfig(path=str(model_dir))
    model = load_policy(config, world)
    sequences = batch_sequences(batch, seq_len, echo=echo)
    watch = TokenWatch(batch, sequences, share, world)
    for micro_batch in pack(objective.prepare(sequences), seq_len, 0, 1):
        scores = score_tokens(model, micro_batch, batch.temperature)
        watch.record(micro_batch, scores, objective(micro_batch, scores.logprobs_K))
    return watch.collect(load_tokenizer(config))


def arrays(values: TokenValuesIn) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(getattr(values, name), "<f4") for name in FLOATS}


def reasons(values: TokenValuesIn) -> list[MaskReason]:
    return [MaskReason(number) for number in values.mask_reasons]


def plain_scores(model_dir: Path, token_ids: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Logprob and entropy of each token after the first, by a model that knows nothing of ours."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = model(torch.from_numpy(token_ids.astype(np.int64))[None]).logits[0, :-1].double() / temperature
    logprobs_TV = logits_TV.log_softmax(dim=-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(dim=-1)
    targets_T = torch.from_numpy(token_ids[1:].astype(np.int64))
    return logprobs_TV.gather(1, targets_T[:, None])[:, 0].numpy(), entropy_T.numpy()


def test_values_are_those_of_a_plain_forward_pass(model_dir: Path, world: World) -> None:
    batch = two_turns()
    found = watched(model_dir, world, batch, configured({"type": "aipo"}))
    rollouts = {(rollout.group, rollout.index): rollout for rollout in batch.rollouts}
    assert {(values.group, values.index) for values in found} == rollouts.keys()
    for values in found:
        rollout = rollouts[values.group, values.index]
        token_ids = np.frombuffer(rollout.token_ids, "<u4")
        sampled = np.frombuffer(rollout.loss_mask, np.uint8).astype(bool)
        engine = np.frombuffer(rollout.inference_logprobs, "<f4")
        logprobs, entropies = plain_scores(model_dir, token_ids, batch.temperature)
        seen = arrays(values)
        at = np.flatnonzero(sampled)
        np.testing.assert_allclose(seen["trainer_logprobs"][at], logprobs[at - 1], atol=1e-4)
        np.testing.assert_allclose(seen["entropies"][at], entropies[at - 1], atol=1e-4)
        np.testing.assert_allclose(seen["ratios"][at], np.exp(logprobs[at - 1] - engine[at]), rtol=1e-3)
        own = rollout.advantages
        expected = np.full(len(token_ids), rollout.advantage) if own is None else np.frombuffer(own, "<f4")
        np.testing.assert_allclose(seen["advantages"][at], expected[at].astype("<f4"))
        assert all(not array[~sampled].any() for array in seen.values())
        trained = [MaskReason.TRAINED if each else MaskReason.NOT_SAMPLED for each in sampled]
        assert reasons(values) == trained


def test_a_ratio_of_whole_rollouts_is_shown_as_the_loss_took_it(model_dir: Path, world: World) -> None:
    (batch, by_token) = two_turns(), {}
    for values in watched(model_dir, world, batch, configured({"type": "aipo"})):
        by_token[values.group, values.index] = arrays(values)["ratios"]
    for values in watched(model_dir, world, batch, configured({"type": "gspo_token"})):
        ratios, own = arrays(values)["ratios"], by_token[values.group, values.index]
        geometric = np.exp(np.log(own[own > 0]).mean())
        np.testing.assert_allclose(ratios[own > 0], geometric, rtol=1e-5)


def test_every_token_that_is_not_simply_trained_says_why(model_dir: Path, world: World) -> None:
    batch = two_turns()
    long = max(batch.rollouts, key=lambda rollout: len(rollout.loss_mask))
    batch = msgspec.structs.replace(batch, rollouts=[long])
    size = len(long.loss_mask)
    sampled = np.frombuffer(long.loss_mask, np.uint8).astype(bool)

    def told(objective: Objective, **options: Any) -> list[MaskReason]:
        (values,) = watched(model_dir, world, batch, objective, **options)
        return reasons(values)

    ratios = arrays(watched(model_dir, world, batch, configured({"type": "aipo"}))[0])["ratios"][sampled]
    bound = float(np.median(ratios))
    bounded = {"type": "masked_is", "ratio_low": bound}
    clipped = np.array(told(configured(bounded)))
    assert (clipped[sampled] == MaskReason.CLIPPED).tolist() == (ratios < bound).tolist()
    capped = np.array(told(configured({"type": "aipo"}, ratio_against="old", corrections__token_cap=bound)))
    assert (capped[sampled] == MaskReason.CAPPED).tolist() == (ratios > bound).tolist()
    mean = float(np.exp(np.log(ratios).mean()))
    assert mean < 0.98, "the bound below must be less than 1"
    dropped = told(configured(bounded, corrections__geometric_low=mean * 1.01))
    assert {dropped[at] for at in np.flatnonzero(sampled)} == {MaskReason.MEAN_OUT_OF_BOUNDS}
    diverged = told(configured(bounded, corrections__max_divergence=1e-6))
    assert {diverged[at] for at in np.flatnonzero(sampled)} == {MaskReason.DIVERGED}
    echo = told(configured({"type": "aipo"}, terms__echo=0.1), echo=True)
    assert [at for at in range(size) if echo[at] is MaskReason.ECHO] == [14, 15, 16]
    short = told(configured({"type": "aipo"}), seq_len=size - 2)
    assert short[-3:] == [MaskReason.TRAINED, MaskReason.NOT_SCORED, MaskReason.NOT_SCORED]


def test_texts_are_what_the_tokens_say(model_dir: Path, world: World) -> None:
    batch = two_turns()
    said = load_tokenizer(ModelConfig(path=str(model_dir))).encode("hello, cät! \0", add_special_tokens=False)
    tokens = np.array(said, "<u4")
    rollout = msgspec.structs.replace(
        batch.rollouts[0],
        token_ids=tokens.tobytes(),
        loss_mask=np.r_[0, np.ones(len(tokens) - 1)].astype(np.uint8).tobytes(),
        inference_logprobs=np.zeros(len(tokens), "<f4").tobytes(),
    )
    batch = msgspec.structs.replace(batch, rollouts=[rollout])
    (values,) = watched(model_dir, world, batch, configured({"type": "aipo"}))
    assert values.texts == [*"hello, c", "\ufffd", "\ufffd", *"t! ", "\ufffd"]


def test_a_step_chooses_the_same_rollouts_whenever_it_is_asked_and_another_step_others() -> None:
    batch = random_batch(0, rollouts=400)
    sequences = batch_sequences(batch, SEQ_LEN)

    def chosen(step: int, share: float) -> list[tuple[str, int]]:
        of_step = msgspec.structs.replace(batch, step=step)
        return list(token_values.choose_watched(of_step, sequences, share))

    assert chosen(0, 0.1) == chosen(0, 0.1)
    assert chosen(0, 0.1) != chosen(1, 0.1)
    assert set(chosen(0, 0.05)) <= set(chosen(0, 0.1))
    assert 20 <= len(chosen(0, 0.1)) <= 60
    assert len(chosen(0, 1.0)) == 400
    assert len(chosen(0, 1e-12)) == 1
    assert chosen(0, 0.0) == []


def test_no_more_is_chosen_than_an_acknowledgement_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(0, rollouts=40)
    monkeypatch.setattr(token_values, "MAX_VALUE_TOKENS", 200)
    lengths = {(rollout.group, rollout.index): len(rollout.loss_mask) for rollout in batch.rollouts}
    chosen = token_values.choose_watched(batch, batch_sequences(batch, SEQ_LEN), 1.0)
    assert 100 < sum(lengths[each] for each in chosen) <= 200


def test_branches_are_scored_each_on_its_own_and_told_in_one_piece(model_dir: Path, world: World) -> None:
    """The same sequences as two rollouts and as two branches of one."""
    one, other = random_batch(0).rollouts[:2]
    names = ("token_ids", "loss_mask", "inference_logprobs")
    lengths = [len(one.loss_mask), len(other.loss_mask)]
    joined = {name: getattr(one, name) + getattr(other, name) for name in names}
    parted = msgspec.structs.replace(one, **joined, branch_lengths=lengths)
    apart = msgspec.structs.replace(other, advantage=one.advantage)
    objective = configured({"type": "aipo"})
    batch = msgspec.structs.replace(random_batch(0), rollouts=[one, apart])
    by_index = {each.index: each for each in watched(model_dir, world, batch, objective)}
    (found,) = watched(model_dir, world, msgspec.structs.replace(batch, rollouts=[parted]), objective)
    for name, values in arrays(found).items():
        expected = np.concatenate([arrays(by_index[index])[name] for index in (0, 1)])
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    assert found.mask_reasons == by_index[0].mask_reasons + by_index[1].mask_reasons


def test_nothing_is_kept_when_the_share_is_zero(model_dir: Path, world: World) -> None:
    assert watched(model_dir, world, two_turns(), configured({"type": "aipo"}), share=0.0) == []


SPREAD: dict[str, tuple[int, dict[str, Any]]] = {
    "two data ranks": (2, {}),
    "two tensor ranks": (2, {"trainer__tensor_parallel": 2}),
    "two context ranks": (2, {"trainer__context_parallel": 2}),
    "two stages": (2, {"trainer__pipeline_parallel": 2}),
}
OPTIONS: dict[str, Any] = {
    "max_steps": 2,
    "tracking__token_values_share": 1.0,
    "optimizer__eps": 1e-3,  # above the noise of a gradient, which Adam would make a whole step of
    "algorithm__loss": {"type": "grpo"},
    "algorithm__terms": {"echo": 0.1},
    "algorithm__corrections": {"max_divergence": 1.0},
}


def acknowledged(
    crew: Crew, directory: Path, model: Path, world_size: int, options: dict[str, Any]
) -> list[list[TokenValuesIn]]:
    plane = FakeControlPlane(rl_config(model, **OPTIONS, **options, trainer__world_size=world_size), directory)
    plane.make_batch = two_turns
    with serving(plane) as url:
        crew.train("rl", url, world_size)
    return [plane.acks[step].token_values for step in range(OPTIONS["max_steps"])]


@pytest.mark.slow
def test_ranks_however_they_share_the_work_report_the_same_values(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    alone = acknowledged(crew, tmp_path / "one", model_dir, 1, {})
    assert [len(step) for step in alone] == [8, 8]
    assert {MaskReason.TRAINED, MaskReason.NOT_SAMPLED, MaskReason.ECHO} <= set(reasons(alone[0][0]))
    for name, (world_size, options) in SPREAD.items():
        for ours, theirs in zip(
            alone, acknowledged(crew, tmp_path / name, model_dir, world_size, options), strict=True
        ):
            for one, two in zip(ours, theirs, strict=True):
                assert (one.group, one.index, one.texts) == (two.group, two.index, two.texts)
                assert one.mask_reasons == two.mask_reasons, name
                for field, array in arrays(one).items():
                    np.testing.assert_allclose(arrays(two)[field], array, rtol=1e-3, atol=1e-4, err_msg=name)
