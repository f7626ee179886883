"""Why something happened, as a code with parameters. Programs decide on the code; the sentence is made for readers.

    service ─► Reason(LAGGED, limit=2, step=7) ─► columns reason_code, reason_params ─► "lag over 2 steps at step 7"

A part of a sentence in [brackets] tells one case from another: it is left out where cases are counted (`heading`), and
where one of its parameters is None or empty. A parameter may itself be a reason, or words that a person or another
program wrote. Codes are stored, so one that was ever used is never given another meaning.
"""

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import Any

from django.db.models import TextChoices

_DETAIL = re.compile(r"\[(.*?)\]")


class ReasonCode(TextChoices):
    """Every reason there is: its code, and the template of its sentence."""

    TEXT = "text", "{text}"
    """In somebody's own words; and every reason from before there were codes."""

    # Runs
    STOP_ASKED = "stop_asked", "stopped by {actor}"
    ATROPOS_KEY_ROTATED = "atropos_key_rotated", "another Atropos key"
    ADDRESS_RENEWED = "address_renewed", "the Atropos address was renewed for {days} days"
    RECONCILER_BROKEN = "reconciler_broken", "the reconciler cannot go on with it: {error}"
    UNEVALUATED = "unevaluated", "without its last evaluation: {why}"
    ENVIRONMENT_REFUSED = "environment_refused", "{error}"
    ENVIRONMENT_BROKEN = "environment_broken", "environment '{environment}' cannot be made: {error}"
    FORK_FAILED = "fork_failed", "{error}"
    MODEL_NOT_MADE = "model_not_made", "{error}"
    FETCHING = "fetching", "its {kind} {name} is being fetched from the hub, for at most {hours:g} hours"
    FETCH_WAITS = "fetch_waits", "{others} other runs are being fetched or exported, and it has its turn after them"
    GPUS_TAKEN = (
        "gpus_taken",
        "it wants {wanted} GPUs of {host}, of which {free} are free[; others belong to {holders}][; {before} was "
        "launched before it and has its turn first]",
    )
    CORES_TAKEN = (
        "cores_taken",
        "it wants {wanted} cores of {host}, of which {free} are promised to nobody[; others belong to {holders}]"
        "[; {before} was launched before it and has its turn first]",
    )
    CORES_TOO_FEW = (
        "cores_too_few",
        "it asks for {wanted} cores (launcher.trainer.cores, and launcher.inference.cores for each server), and {host} "
        "has {there}",
    )
    MEMORY_TAKEN = (
        "memory_taken",
        "it wants {wanted} GiB of memory of {host}, of which {free} are promised to nobody[; others belong to "
        "{holders}][; {before} was launched before it and has its turn first]",
    )
    MEMORY_TOO_LITTLE = (
        "memory_too_little",
        "it asks for {wanted} GiB of memory (launcher.trainer.memory_gib, and launcher.inference.memory_gib for each "
        "server), and {host} has {there}",
    )
    GPUS_TOO_FEW = (
        "gpus_too_few",
        "each of its servers computes on {wanted} GPUs (inference.tensor_parallel and its like), and {host} has "
        "{there}",
    )
    PROMISE_GONE = (
        "promise_gone",
        "it was promised {units} of {host}, which may not be used there any more: a fork of its newest checkpoint goes "
        "on with others",
    )
    NODES_GIVEN_BACK = (
        "nodes_given_back",
        "its jobs ({jobs}) had nothing to do for {idle_s:.0f} s, and launcher.idle_limit_s is {limit_s:.0f}: their "
        "nodes were given back",
    )
    SLURM_AWAY = "slurm_away", "it has its turn once SLURM answers and takes its jobs: {error}"
    SLURM_REFUSED = "slurm_refused", "SLURM does not take its jobs: {error}"
    NOT_FETCHED = (
        "not_fetched",
        "the {kind} {name} could not be fetched from the hub: {error}. Check its name and the network, or fetch it by "
        "hand: hf download --repo-type {kind} {name}",
    )
    NOT_TRUSTED = "not_trusted", "{error}"
    LAUNCHER_LEFT = (
        "launcher_left",
        "{user}, who launched it, may not operate this project any more: a fork of its newest checkpoint goes on",
    )
    NO_SANDBOX = "no_sandbox", "{error}"
    RESULT_REGISTERED = "result_registered", "registered as the model {model}"
    RESULT_REFUSED = "result_refused", "without the model {model}: {error}[; {why}]"
    TRAINER_INPUT = "trainer_input", "the trainer cannot train this: {fault}"
    SERVER_INPUT = "server_input", "vLLM cannot serve this model: {fault}"
    TRAINER_HOPELESS = "trainer_hopeless", "the trainer died {times} times without a step of progress[; last: {last}]"
    SERVER_HOPELESS = (
        "server_hopeless",
        "inference server {slot} ended {times} times before its first answer[; {last}]",
    )
    VERSION_HOPELESS = (
        "version_hopeless",
        "no inference server could load version {version}, {times} times[; the last: {complaint}]",
    )

    FRUITLESS = (
        "fruitless",
        "{groups} groups in a row were of no use (batch.max_fruitless_groups); the last: {last}",
    )

    # Groups and batches
    ALL_FAILED = "all_failed", "every rollout failed[, the first with {error}]"
    NOTHING_SAMPLED = "nothing_sampled", "no token was sampled by the policy: every loss mask is 0"
    ZERO_ADVANTAGE = "zero_advantage", "zero advantage: all rewards are equal"
    NO_ADVANTAGE = "no_advantage", "zero advantage: every rollout has 0, or is left out of training"
    ZERO_TOKEN_ADVANTAGES = "zero_token_advantages", "zero advantage: every advantage per token is 0"
    ALL_SOLVED = "all_solved", "every rollout solved the problem: a reward of {solved_at:g} or more"
    NONE_SOLVED = "none_solved", "no rollout solved the problem: every reward below {solved_at:g}"
    NARROW_REWARDS = "narrow_rewards", "rewards differ by less than {least:g}[: by {range:g}]"
    LEASES_LOST = (
        "leases_lost",
        "quarantined: {leases} leases were lost while it was played[, the last by {holder}]",
    )
    LEASE_TAKEN_OVER = "lease_taken_over", "taken over: the lease of {holder} ended"
    LAGGED = "lagged", "lag over {limit} steps[ at step {step}]"
    LAGGED_IN_PLAY = (
        "lagged_in_play",
        "stale before it was played to its end[: begun on version {version}, too far from step {step}]",
    )
    OVERSAMPLED = "oversampled", "the batch was full without it (batch.oversampling)[: step {step}]"
    REJECTED = "rejected", "rejected by {actor}[: {note}]"
    REJECTED_LATE = "rejected_late", "rejected by {actor}, too late for a batch that has it[: {note}]"
    REVIEWED = "reviewed", "reviewed by {actor}[: people gave the rewards of {given} rollouts]"
    UNREVIEWED = "unreviewed", "nobody looked at it within {deadline_s:g} s"
    EXCLUDED = "excluded", "excluded from exports by {actor}[: {note}]"
    RESTORED = "restored", "restored by {actor}[: {note}]"
    STEP = "step", "step {step}"
    REPLAYED = "replayed", "replays step {step} of run {run}"
    RUN_ENDED = "run_ended", "the run was {state}"
    STEPS_COVERED = "steps_covered", "every step has its batch"
    EVALUATION_ENDED = "evaluation_ended", "its evaluation ended"
    NO_SUCH_PROBLEM = "no_such_problem", "the environment has only {count} problems"
    EVALUATION_LATE = "evaluation_late", "only {settled} of {problems} problems were played in time"
    VERSION_SUPERSEDED = "version_superseded", "version {version} is live"
    NOT_KEPT = "not_kept", "only the newest {kept} are kept"

    TRIAL_LATE = "trial_late", "it was not over within {seconds:g} s"
    TRIAL_DROPPED = "trial_dropped", "its driver ended"

    # Trainers and environments from outside
    ATTEMPT_OPENED = "attempt_opened", "attempt {number}: {steps} steps of {batch_size} sequences"
    BATCH_ASKED_FOR = "batch_asked_for", "the trainer asked for a batch: environments may register"
    ATTEMPT_RESET = "attempt_reset", "reset"
    RESET = "reset", "archived by a reset of attempt {number}"
    RESET_BEFORE = "reset_before", "archived by a reset before attempt {number}"
    ARRIVED_BEFORE_RESET = "arrived_before_reset", "it had arrived when attempt {number} was reset"
    ARRIVED_BEFORE_END = "arrived_before_end", "it had arrived when the run was {state}"
    LEFT_BEHIND = "left_behind", "its trainer had not acknowledged it when attempt {number} went on"
    MORE_ASKED_FOR = "more_asked_for", "the trainer asked for more, which is how it acknowledges"
    LAST_BATCH_SENT = "last_batch_sent", "the last batch was sent"
    CLIENT_REGISTERED = "client_registered", "registered"
    CLIENT_TAKEN_OVER = "client_taken_over", "taken over: it did not hear of the reset before attempt {number}"
    CLIENT_SILENT = (
        "client_silent",
        "{client} was silent for {silent_s} s: batches no longer wait for its minimum share of {share}",
    )
    CLIENT_HEARD = "client_heard", "{client} is heard again: its minimum share counts"
    CLIENT_LEFT = "client_left", "{client} said that it leaves"

    # Replicas
    TRAINER_REGISTERED = "trainer_registered", "epoch {epoch}: {world_size} processes, {hostname} pid {pid}"
    START_FAILED = "start_failed", "{error}"
    LAUNCHER_AWAY = "launcher_away", "{error}"
    DIED = "died", "died[: exit code {exit_code}][: {last_words}]"
    ASKED_TO_END = "asked_to_end", "asked to end[: exit code {exit_code}][: {last_words}]"
    SUPERVISOR_GONE = "supervisor_gone", "its supervisor is gone[: exit code {exit_code}][: {last_words}]"
    SHEPHERD_DIED = "shepherd_died", "its shepherd died without a word[: exit code {exit_code}][: {last_words}]"
    NEVER_STARTED = "never_started", "it was never started[: exit code {exit_code}][: {last_words}]"
    LIMIT_EXCEEDED = (
        "limit_exceeded",
        "it used {used:,} {what}, of {allowed:,} that {setting} allows[: exit code {exit_code}]",
    )
    QUEUED = "queued", "{why}"
    TIME_LIMIT = "time_limit", "the time of its job was over[: exit code {exit_code}][: {last_words}]"
    PREEMPTED = "preempted", "SLURM gave its node to another job[: exit code {exit_code}][: {last_words}]"
    CANCELLED_OUTSIDE = (
        "cancelled_outside",
        "its job was cancelled by somebody else[: exit code {exit_code}][: {last_words}]",
    )
    NODE_FAILED = "node_failed", "its node failed[: exit code {exit_code}][: {last_words}]"
    OUT_OF_MEMORY = (
        "out_of_memory",
        "it used more memory than its job may: ask for more by launcher.{kind}.memory_gib[: exit code {exit_code}]",
    )
    JOB_VANISHED = (
        "job_vanished",
        "SLURM has known of no such job for five minutes[: exit code {exit_code}][: {last_words}]",
    )
    NO_HEARTBEAT = "no_heartbeat", "no heartbeat for {age_s:.0f} s[: exit code {exit_code}][: {last_words}]"
    TRAINER_FINISHED = "trainer_finished", "finished"
    EXIT_OVERDUE = "exit_overdue", "it had finished but did not exit"
    RUN_ENDING = "run_ending", "the run is to be {state}"
    RUN_OVER = "run_over", "its run is over"
    PROBE_FAILED = "probe_failed", "{complaint}"
    VERSION_NOT_LOADED = "version_not_loaded", "version {version} was not loaded: {complaint}"
    VERSION_NOT_BROUGHT = "version_not_brought", "version {version} was not loaded: {complaint}"
    EJECTED_UNREADY = "ejected_unready", "ejected: not ready {age_s:.0f} s after its start: {complaint}"
    EJECTED_SILENT = (
        "ejected_silent",
        "ejected: {failures} failed probes, no answer for {silent_s:.0f} s: {complaint}",
    )
    EJECTED_UNREGISTERED = "ejected_unregistered", "ejected: it did not register within {deadline_s:.0f} s"
    EJECTED_STUCK = "ejected_stuck", "ejected: step {step} was not done within {deadline_s:.0f} s"

    @property
    def parameters(self) -> frozenset[str]:
        """Names of what its sentence is made with."""
        return _names(self.label)


WAITS = (
    ReasonCode.FETCHING,
    ReasonCode.FETCH_WAITS,
    ReasonCode.GPUS_TAKEN,
    ReasonCode.CORES_TAKEN,
    ReasonCode.MEMORY_TAKEN,
    ReasonCode.SLURM_AWAY,
)
"""What a run that has not begun may wait for."""


class Reason:
    """A code and its parameters: text, numbers, None, or another reason. ``str`` makes the sentence."""

    __slots__ = ("code", "params")

    def __init__(self, code: ReasonCode, /, **params: Any) -> None:
        if params.keys() != code.parameters:
            raise TypeError(f"{code!r} takes {sorted(code.parameters)}, not {sorted(params)}")
        self.code = code
        self.params = params

    @classmethod
    def read(cls, code: str, params: Mapping[str, Any]) -> "Reason":
        """What was stored. One that this version does not know, or not so, is shown as it is."""
        try:
            return cls(ReasonCode(code), **{name: _read_value(value) for name, value in params.items()})
        except (TypeError, ValueError):
            return cls(ReasonCode.TEXT, text=" ".join([code, *(f"{name}={value}" for name, value in params.items())]))

    @property
    def heading(self) -> str:
        """The sentence without what differs from case to case."""
        return _DETAIL.sub("", self.code.label).format_map(self.params)

    def __str__(self) -> str:
        def detail(found: re.Match[str]) -> str:
            is_known = all(self.params[name] not in (None, "") for name in _names(found[1]))
            return found[1] if is_known else ""

        return _DETAIL.sub(detail, self.code.label).format_map(self.params)

    def __repr__(self) -> str:
        return f"Reason({self.code.name}, {', '.join(f'{name}={value!r}' for name, value in self.params.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reason) and (self.code, self.params) == (other.code, other.params)

    def __hash__(self) -> int:
        return hash((self.code, str(self)))


@cache
def _names(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(_DETAIL.sub(r"\1", template)) if name)


def _read_value(value: Any) -> Any:
    return Reason.read(value["code"], value["params"]) if isinstance(value, dict) else value
