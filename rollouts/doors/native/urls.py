"""The native REST API, version 1."""

from csp.decorators import csp_update
from django.urls import path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView

from rollouts.doors.native import (
    curation,
    datasets,
    description,
    evaluations,
    exports,
    groups,
    models,
    problems,
    queue_items,
    queues,
    replays,
    runs,
    sessions,
    token_values,
    trainer,
)

# Swagger UI has styles inside its page, and fetches nothing from elsewhere (Redoc asks for fonts and a logo).
# Without OPTIONS, to which it would answer with a page that it does not have.
_page = SpectacularSwaggerSplitView.as_view(url_name="api-schema", http_method_names=["get", "head"])
docs = csp_update({"style-src": ["'unsafe-inline'"]})(_page)
run = "runs/<slug:key>"
queue = "queues/<slug:queue_key>"
dataset = "datasets/<slug:dataset_key>"
urlpatterns = [
    path("schema", description.SchemaApi.as_view(), name="api-schema"),
    path("docs", docs, name="api-docs"),
    path("models", models.ModelsApi.as_view(), name="api-models"),
    path("datasets", datasets.DatasetsApi.as_view(), name="api-datasets"),
    path("datasets/import", datasets.ImportApi.as_view(), name="api-dataset-import"),
    path(f"{dataset}", datasets.DatasetApi.as_view(), name="api-dataset"),
    path(f"{dataset}/notes", datasets.NotesApi.as_view(), name="api-dataset-notes"),
    path(f"{dataset}/difference", datasets.DifferenceApi.as_view(), name="api-dataset-difference"),
    path(f"{dataset}/versions/<int:version>", datasets.VersionApi.as_view(), name="api-dataset-version"),
    path(f"{dataset}/versions/<int:version>/members", datasets.MembersApi.as_view(), name="api-dataset-members"),
    path("runs", runs.RunsApi.as_view(), name="api-runs"),
    path(f"{run}", runs.RunApi.as_view(), name="api-run"),
    path(f"{run}/stop", runs.StopApi.as_view(), name="api-run-stop"),
    path(f"{run}/metrics", runs.MetricsApi.as_view(), name="api-run-metrics"),
    path(f"{run}/events", runs.EventsApi.as_view(), name="api-run-events"),
    path(f"{run}/cost", runs.CostApi.as_view(), name="api-run-cost"),
    path(f"{run}/evaluations", evaluations.EvaluationsApi.as_view(), name="api-run-evaluations"),
    path("evaluations/compare", evaluations.ComparisonApi.as_view(), name="api-compare"),
    path("exports", exports.ExportsApi.as_view(), name="api-exports"),
    path("exports/<slug:export_key>", exports.ExportApi.as_view(), name="api-export"),
    path("exports/<slug:export_key>/cancel", exports.CancelExportApi.as_view(), name="api-export-cancel"),
    path("exports/<slug:export_key>/remove", exports.RemoveExportApi.as_view(), name="api-export-remove"),
    path("exports/<slug:export_key>/files/<str:file>", exports.ExportFileApi.as_view(), name="api-export-file"),
    path(f"{run}/labels", curation.LabelsApi.as_view(), name="api-labels"),
    path(f"{run}/acts", curation.ActsApi.as_view(), name="api-acts"),
    path(f"{run}/acts/<slug:act>/undo", curation.UndoApi.as_view(), name="api-act-undo"),
    path("queues", queues.QueuesApi.as_view(), name="api-queues"),
    path(f"{queue}", queues.QueueApi.as_view(), name="api-queue"),
    path(f"{queue}/guideline", queues.GuidelineApi.as_view(), name="api-queue-guideline"),
    path(f"{queue}/people", queues.AssignApi.as_view(), name="api-queue-people"),
    path(f"{queue}/close", queues.CloseApi.as_view(), name="api-queue-close"),
    path(f"{queue}/agreement", queues.AgreementApi.as_view(), name="api-queue-agreement"),
    path(f"{queue}/take", queue_items.TakeApi.as_view(), name="api-queue-take"),
    path(f"{queue}/word", queue_items.WordApi.as_view(), name="api-queue-word"),
    path(f"{queue}/undo", queue_items.TakeBackApi.as_view(), name="api-queue-undo"),
    path(f"{run}/replays", replays.ReplaysApi.as_view(), name="api-run-replays"),
    path(f"{run}/groups", groups.GroupsApi.as_view(), name="api-groups"),
    path(f"{run}/sessions", sessions.SessionsApi.as_view(), name="api-sessions"),
    path(f"{run}/work/claim", groups.ClaimApi.as_view(), name="api-work-claim"),
    path(f"{run}/work/renew", groups.RenewApi.as_view(), name="api-work-renew"),
    path(f"{run}/work/settle", groups.SettleApi.as_view(), name="api-work-settle"),
    path(f"{run}/trainer", trainer.RegisterApi.as_view(), name="api-trainer"),
    path(f"{run}/trainer/finish", trainer.FinishApi.as_view(), name="api-trainer-finish"),
    path(f"{run}/batches/<int:step>", trainer.BatchApi.as_view(), name="api-batch"),
    path(f"{run}/steps/<int:step>", trainer.StepApi.as_view(), name="api-step"),
    path(
        f"{run}/steps/<int:step>/token-values",
        token_values.StepTokenValuesApi.as_view(),
        name="api-step-token-values",
    ),
    path(f"{run}/token-values/<int:number>", token_values.TokenValuesApi.as_view(), name="api-token-values"),
    path(
        f"{run}/policy-versions",
        trainer.PolicyVersionsApi.as_view(),
        name="api-policy-versions",
    ),
    path(f"{run}/checkpoints", trainer.CheckpointsApi.as_view(), name="api-checkpoints"),
    re_path(r"^(?P<path>[\s\S]*)$", problems.no_such_path),  # line breaks too, at which a converter ends
]
