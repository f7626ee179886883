"""Every field that a request may have: of which it is said here whether it names what could be another project's.

What is in neither table fails `test_fields.py`, so whoever adds a field says which it is.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.contrib import admin
from django.forms import ModelChoiceField
from django.http import HttpRequest, QueryDict

from rollouts.doors.atropos.description import OPERATIONS
from trainers.run_config import RunConfig
from trainers.run_config.keys import all_keys

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "openapi.json"
"""The description of the API, which `test_openapi.py` holds to what there is."""

NAMING: dict[str, tuple[str, ...]] = {
    "launchRun project": ("project of a launch",),
    "launchRun fork_from": ("run that is forked",),
    "launchRun config": ("model by the config of a launch", "run that is forked by its name in the config"),
    "launchRun overrides": ("model by an override of a launch", "run that is forked by its name as a model"),
    "orderReplay source": ("run whose batches are trained again",),
    "settleWork token": ("lease that is settled",),
    "renewWork tokens": ("test_a_foreign_lease_is_not_held",),
    "ackStep token_values.group": ("test_no_values_of_another_projects_tokens_are_stored",),
    "announcePolicyVersion path": ("test_nothing_of_another_run_is_announced",),
    "addCheckpoint path": ("test_nothing_of_another_run_is_announced",),
    "compareEvaluations first": ("evaluation that is compared",),
    "compareEvaluations second": ("evaluation that another is compared with",),
    "evaluations/compare/ first": ("evaluation that is compared on the page",),
    "evaluations/compare/ second": ("evaluation that another is compared with on the page",),
    "config model.path": (
        *("model by an override of a launch", "model in the form", "model in the check of the form"),
        *("run that is forked in the form", "run that is forked in the check of the form"),
        "test_a_command_finds_no_model_of_another_project",
    ),
    "config model.lora.path": ("adapter of another run",),
    "config policies.0.endpoint": ("endpoint of another project",),
    "config policies.0.model": (
        *("model of another project beside the policy", "weights of another run beside the policy"),
        "model beside the policy of a fork",
    ),
    "config model.endpoint": ("endpoint that is measured",),
    "config data.path": ("data of another run",),
    "config data.validation.path": ("validation data of another run",),
    "config launcher.template": ("test_template_of_other_projects_is_refused",),
    "environments/<str:name>/try/ run": ("run whose policy plays a trial",),
    "environments/<str:name>/try/ endpoint": ("endpoint that plays a trial",),
    "environments/<str:name>/try/ project": ("project of a trial",),
    "exports/new/ version": ("version that is exported",),
    "createExport version": ("version that is exported over the API",),
    "createExport project": ("version that is exported over the API",),
    "queues/new/ project": ("project of a queue",),
    "queues/new/ run": ("run of a queue",),
    "queues/new/ source": ("queue whose disagreements one holds",),
    "queues/new/ people": ("person who is given a queue",),
    "queues/<str:queue_key>/assign/ people": ("person who is assigned",),
    "makeQueue project": ("project of a queue over the API",),
    "makeQueue filter.run": ("run of a queue over the API",),
    "makeQueue source": ("queue whose disagreements one holds over the API",),
    "makeQueue people": ("person who is given a queue over the API",),
    "assignQueue people": ("person who is assigned over the API",),
    "sayWord turn": ("test_a_turn_of_somebody_else_is_not_answered",),
    "datasets/new/ project": ("project of a dataset",),
    "datasets/new/ runs": ("run of a dataset",),
    "datasets/new/ queue": ("queue of a dataset",),
    "datasets/new/ version": ("version of another dataset",),
    "makeDatasetVersion project": ("project of a dataset over the API",),
    "makeDatasetVersion recipe.runs": ("run of a dataset over the API",),
    "makeDatasetVersion recipe.queue": ("queue of a dataset over the API",),
    "makeDatasetVersion recipe.version": ("version of another dataset over the API",),
    "importDatasetVersion project": ("project of rows over the API",),
    "queues/<str:queue_key>/say/ turn": ("test_a_turn_of_somebody_else_is_not_answered",),
    "runs/new/ version": ("version that is learned from", "version that is learned from in the form"),
    "runs/new/check/ version": ("version in the check of the form",),
    "runs/new/make-model/ version": ("version where a model is made",),
    "evaluations/new/ project": ("project of an evaluation",),
    "evaluations/new/ target": ("model that is measured", "run that is measured", "endpoint that is measured by name"),
    "runs/new/ clone": ("run that is cloned", "run that is cloned in the form"),
    "runs/new/ model": ("model that the form begins with",),
    "runs/new/ policies": ("endpoint in the form", "model beside the policy in the form"),
    "runs/new/check/ policies": (
        "endpoint in the check of the form",
        "model beside the policy in the check of the form",
    ),
    "runs/new/make-model/ policies": ("endpoint where a model is made",),
    "runs/new/ project": ("project of a launch in the form",),
    "runs/new/ toml": ("run that is forked in the TOML of the form", "model in the TOML of the form"),
    "runs/new/check/ clone": ("run that is cloned in the check of the form",),
    "runs/new/check/ model": ("model that the check of the form begins with",),
    "runs/new/check/ project": ("project of the check of the form",),
    "runs/new/check/ toml": ("model in the TOML of the check", "run that is forked in the TOML of the check"),
    "runs/new/make-model/ clone": ("run that is cloned where a model is made",),
    "runs/new/make-model/ model": ("model that is made begins with",),
    "runs/new/make-model/ project": ("project in which a model is made",),
    "runs/new/make-model/ toml": ("model in the TOML where one is made",),
    "admin/rollouts/membership project": ("test_no_membership_of_another_project_is_made_by_its_name_in_a_form",),
    "admin/rollouts/membership user": ("test_no_membership_of_another_project_is_made_by_its_name_in_a_form",),
    "admin/rollouts/project memberships user": (
        "test_no_membership_of_another_project_is_changed_on_the_page_of_ours",
    ),
    "admin/rollouts/project memberships project": (
        "test_no_membership_of_another_project_is_changed_on_the_page_of_ours",
    ),
}
"""Field -> what of `test_bodies.py` names something of another project there."""

_ROLLOUTS = (
    " rollouts.token_ids rollouts.loss_mask rollouts.inference_logprobs rollouts.reward rollouts.metrics"
    " rollouts.branch_lengths rollouts.earlier_branches.content rollouts.earlier_branches.content.text"
    " rollouts.earlier_branches.content.type rollouts.earlier_branches.name rollouts.earlier_branches.role"
    " rollouts.earlier_branches.reasoning_content rollouts.earlier_branches.tool_call_id"
    " rollouts.earlier_branches.tool_calls.function.arguments rollouts.earlier_branches.tool_calls.function.name"
    " rollouts.earlier_branches.tool_calls.id rollouts.earlier_branches.tool_calls.type"
    " rollouts.messages.content rollouts.messages.content.text rollouts.messages.content.type"
    " rollouts.messages.name rollouts.messages.role rollouts.messages.reasoning_content rollouts.messages.tool_call_id"
    " rollouts.messages.tool_calls.function.arguments rollouts.messages.tool_calls.function.name"
    " rollouts.messages.tool_calls.id rollouts.messages.tool_calls.type rollouts.tools"
    " rollouts.stop_reason rollouts.error"
    " rollouts.error.kind rollouts.error.message rollouts.error.traceback rollouts.error.type rollouts.replica"
    " rollouts.generation_s rollouts.first_policy_version rollouts.last_policy_version"
    " rollouts.dispatch_policy_version rollouts.error.stderr rollouts.spans rollouts.seat"
)
_ITEM = (
    "tokens masks scores advantages ref_logprobs inference_logprobs distill_token_ids distill_logprobs messages"
    " overrides group_overrides generation_params images env_id"
)
_RECIPE = (
    "groups environment states best min_reward max_reward min_gap truncated accepted rejected unwanted_below tags"
    " has_correction validation_share limit"
)
_MEASURED = "environments split name samples problems max_tokens max_turns temperature threshold"
HARMLESS: dict[str, str] = {
    "listRuns": "before",
    "listExports": "before",
    "createExport": "form file_format",
    "exports/": "version form file_format",
    "exports/new/": "form file_format",
    "launchRun": "preset fork_optimizer",
    "fetchBatch": "Rollyard-Epoch wait_s",
    "addCheckpoint": "Rollyard-Epoch step manifest_sha256 size_bytes",
    "readEvents": "after_seq",
    "readMetrics": "after_step keys points",
    "announcePolicyVersion": "Rollyard-Epoch version manifest_sha256 size_bytes",
    "orderReplay": "first_step last_step reason",
    "ackStep": "Rollyard-Epoch batch_sha256 metrics token_values.advantages token_values.entropies token_values.index"
    " token_values.mask_reasons token_values.ratios token_values.texts token_values.trainer_logprobs",
    "stopRun": "reason",
    # Keys of groups are a run's own, and so are acts.
    "readLabels": "group before",
    "addLabel": "group verdict rollout other preference tags score note seconds edited",
    "listQueues": "before",
    "makeQueue": "name unit guideline tags words_per_item is_blind on_reject lease_s filter.environment filter.state"
    " filter.min_version filter.max_version filter.min_reward filter.max_reward filter.min_gap filter.max_gap"
    " filter.equal_rewards filter.min_deviation filter.error filter.truncated filter.text filter.min_tokens"
    " filter.max_tokens filter.share filter.groups",
    "guideQueue": "text",
    "sayWord": "verdict preference tags score note seconds edited",
    "readActs": "before",
    "actOnGroups": "verb groups note",
    "undoAct": "note",
    "runs/<str:key>/label/": "group verdict rollout tags score note",
    "runs/<str:key>/act/": "group verb note",
    # Fills the form in.
    "queues/": "groups name project unit tags words_per_item is_blind on_reject guideline run environment state error"
    " min_reward max_reward min_deviation min_tokens max_tokens share equal_rewards truncated source people text"
    " min_gap max_gap min_version max_version",
    "queues/new/": "name unit tags words_per_item is_blind on_reject guideline environment state error min_reward"
    " max_reward min_deviation min_tokens max_tokens share equal_rewards truncated text min_gap max_gap min_version"
    " max_version groups",
    "runs/<str:key>/people/": "min_reward max_reward min_version max_version environment",
    "queues/<str:queue_key>/guide/": "guideline",
    "queues/<str:queue_key>/bulk/": "verb",
    # Fills the form in.
    "datasets/": f"name project form note licence runs queue version {_RECIPE}",
    "datasets/new/": f"name form note licence {_RECIPE}",
    "datasets/<str:dataset_key>/describe/": "notes licence",
    # Numbers of versions and positions are a dataset's own.
    "datasets/<str:dataset_key>/<int:version>/": "after",
    "datasets/<str:dataset_key>/difference/": "before after",
    "readDatasetMembers": "after",
    "compareDatasetVersions": "before after",
    "describeDataset": "notes licence",
    "makeDatasetVersion": "name form note licence " + " ".join(f"recipe.{name}" for name in _RECIPE.split()),
    "importDatasetVersion": "name form note licence source validation_share rows",
    "registerTrainer": "hostname pid world_size",
    "finishTraining": "Rollyard-Epoch",
    "claimWork": "holder limit",
    # The run's own, like the groups it will have.
    "openSession": "deadline_s environment environment_version group group_size index problem problem.key problem.data"
    " problem.tools problem.messages.content problem.messages.content.text problem.messages.content.type"
    " problem.messages.name problem.messages.role problem.messages.reasoning_content problem.messages.tool_call_id"
    " problem.messages.tool_calls.function.arguments problem.messages.tool_calls.function.name"
    " problem.messages.tool_calls.id problem.messages.tool_calls.type",
    # Keys and environments are a run's own, and replicas are named for people.
    "submitGroups": "Idempotency-Key key environment environment_version problem_key rollouts.advantages"
    " rollouts.ref_logprobs" + _ROLLOUTS,
    "settleWork": "environment_version problem_key" + _ROLLOUTS,
    # Their address is of one run, and environments are counted in it.
    "/register": "wandb_group wandb_project batch_size max_token_len checkpoint_dir save_checkpoint_interval"
    " starting_step num_steps",
    "/register-env": "max_token_length desired_name weight group_size min_batch_allocation",
    "/disconnect-env": "env_id",
    "/status-env": "env_id",
    "/scored_data": _ITEM,
    "/scored_data_list": _ITEM,
    # What is the whole installation's: code that is trusted, and places outside of it.
    "config": "algorithm.loss.path environments.0.name environments.0.label environments.0.python name register_as"
    " policies.0.name"
    " data.roles.0 data.split data.validation.split inference.quantization"
    " model.lora.target_modules.0 tracking.wandb_entity tracking.wandb_project",
    # A row of the runs that one sees, or the first of these.
    "environments/<str:name>/": "row",
    # Fills the form in.
    "evaluations/": "target project " + _MEASURED,
    "evaluations/new/": _MEASURED,
    "environments/<str:name>/try/": "args max_turns problem_index python row split temperature",
    "trust/": "kind name",
    "trust/allow/": "kind name",
    "trust/withdraw/": "kind name",
    "login/": "username password next ended",
    "": "state q before",
    "logout/": "next",
    "runs/new/": "preset fork_optimizer",
    "runs/new/check/": "preset fork_optimizer",
    "runs/new/make-model/": "preset fork_optimizer",
    "runs/<str:key>/live/": "view",
    "runs/<str:key>/connect/renew/": "days",
    "runs/<str:key>/connect/rotate/": "days resets_on_get",
    "runs/<str:key>/rollouts/": "before purpose state",
    "runs/<str:key>/events/": "before",
    "runs/<str:key>/tokens/<int:number>/": "by from",
    "runs/<str:key>/raw-tokens/<int:rollout>/": "from",
    "admin/auth/group": "permissions",
    "admin/auth/user": "groups user_permissions",
}
"""Operation or page -> fields that name nothing of a project, or only what is of the run in the path."""


def fields_of_api() -> Iterator[str]:
    """Queries, headers and bodies; what stands in a path is the business of the matrix."""
    described = json.loads(SNAPSHOT.read_text())
    for operations in described["paths"].values():
        for operation in operations.values():
            name = operation["operationId"]
            yield from (f"{name} {each['name']}" for each in operation.get("parameters", ()) if each["in"] != "path")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield from (f"{name} {key}" for key in _leaves(content["schema"], {}))


def fields_of_atropos() -> Iterator[str]:
    for _, path, _, body in OPERATIONS:
        for model in getattr(body, "__args__", (body,)) if body else ():
            yield from (f"{path} {name}" for name in model.model_fields)


def fields_of_config() -> Iterator[str]:
    """Those that hold text: numbers and choices name nothing."""
    schema = RunConfig.model_json_schema()
    texts = _leaves(schema, schema["$defs"], only="string")
    yield from (f"config {key}" for key in texts if not all_keys().get(key))


def fields_of_admin(request: HttpRequest) -> Iterator[str]:
    """Those by which rows are chosen in forms of the administration site, and in forms within them."""
    for model, each in admin.site._registry.items():
        if each.has_add_permission(request) or each.has_change_permission(request):
            at = f"admin/{model._meta.label_lower.replace('.', '/')}"
            yield from (f"{at} {name}" for name in _choices(each.get_form(request, model())))
            for formset, inline in each.get_formsets_with_inlines(request, model()):
                name = inline.model._meta.verbose_name_plural
                yield from (f"{at} {name} {field}" for field in _choices(formset.form))


@contextmanager
def read_of_forms() -> Iterator[set[str]]:
    """Names that pages look for in queries and forms while this is open."""
    names: set[str] = set()
    found = QueryDict.__getitem__

    def read(self: QueryDict, key: str) -> Any:
        names.add(re.sub(r"\.\d+\.", ".0.", key))
        return found(self, key)

    with patch.object(QueryDict, "__getitem__", read):
        yield names


def _choices(form: Any) -> list[str]:
    return [name for name, field in form.base_fields.items() if isinstance(field, ModelChoiceField)]


def _leaves(schema: dict[str, Any], definitions: dict[str, Any], at: str = "", only: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _leaves(part, definitions, at, only)
    for name, part in schema.get("properties", {}).items():
        yield from _leaves(part, definitions, f"{at}.{name}" if at else name, only)
    if "items" in schema:
        yield from _leaves(schema["items"], definitions, f"{at}.0" if only else at, only)
    elif at and "properties" not in schema and schema.get("type") in ({only} if only else {schema.get("type"), "null"}):
        yield at
