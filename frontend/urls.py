"""The pages. Paths end in a slash; `live/` answers the parts of a page that follow the run."""

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.templatetags.static import static
from django.urls import path, register_converter
from django.urls.converters import StringConverter
from django.utils.functional import lazy
from django.views.generic import RedirectView

from frontend.pages.datasets import versions as dataset_versions
from frontend.pages.datasets import views as datasets
from frontend.pages.environments import difference as environment_difference
from frontend.pages.environments import trials as environment_trials
from frontend.pages.environments import views as environments
from frontend.pages.evaluations import views as evaluations
from frontend.pages.exports import views as exports
from frontend.pages.fleet import views as fleet
from frontend.pages.group import views as group
from frontend.pages.launch import views as launch
from frontend.pages.models import views as models
from frontend.pages.people import views as people
from frontend.pages.queues import annotate, bulk
from frontend.pages.queues import views as queues
from frontend.pages.run import views as run
from frontend.pages.runs import views as runs
from frontend.pages.step import views as step
from frontend.pages.tokens import views as tokens
from frontend.pages.trust import views as trust


class KeyConverter(StringConverter):
    """A key that somebody outside chose: any text, with slashes and line breaks."""

    regex = r"[\s\S]+"


register_converter(KeyConverter, "key")
mark = lazy(static, str)("frontend/mark.svg")
urlpatterns = [
    path("", runs.index, name="runs"),
    path("favicon.ico", login_not_required(RedirectView.as_view(url=mark))),  # asked for by pages that name none
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("runs/", RedirectView.as_view(pattern_name="runs", query_string=True)),
    path("runs/new/", launch.new, name="launch"),
    path("fleet/", fleet.index, name="fleet"),
    path("models/", models.index, name="models"),
    path("models/<slug:project>/<str:name>/", models.model, name="model"),
    path("models/<slug:project>/<str:name>/remove/", models.remove, name="model-remove"),
    path("environments/", environments.index, name="environments"),
    path("environments/<str:name>/", environments.environment, name="environment"),
    path(
        "environments/<str:name>/code/<int:before>/<int:after>/",
        environment_difference.difference,
        name="environment-difference",
    ),
    path("environments/<str:name>/try/", environment_trials.attempt, name="environment-try"),
    path("runs/<str:key>/trials/<str:trial>/", environment_trials.trial, name="trial"),
    path("evaluations/", evaluations.index, name="evaluations"),
    path("evaluations/new/", evaluations.make, name="evaluation-make"),
    path("evaluations/compare/", evaluations.compare, name="evaluations-compare"),
    path("evaluations/<str:key>/", evaluations.of_run, name="run-evaluations"),
    path("queues/", queues.index, name="queues"),
    path("queues/new/", queues.make, name="queue-make"),
    path("queues/<str:queue_key>/", queues.queue, name="queue"),
    path("queues/<str:queue_key>/guide/", queues.guide, name="queue-guide"),
    path("queues/<str:queue_key>/assign/", queues.assign, name="queue-assign"),
    path("queues/<str:queue_key>/close/", queues.close, name="queue-close"),
    path("queues/<str:queue_key>/bulk/", bulk.bulk, name="queue-bulk"),
    path("queues/<str:queue_key>/annotate/", annotate.annotate, name="queue-annotate"),
    path("queues/<str:queue_key>/take/", annotate.take, name="queue-take"),
    path("queues/<str:queue_key>/say/", annotate.say, name="queue-say"),
    path("queues/<str:queue_key>/undo/", annotate.undo, name="queue-undo"),
    path("datasets/", datasets.index, name="datasets"),
    path("datasets/new/", datasets.make, name="dataset-make"),
    path("datasets/<str:dataset_key>/", datasets.dataset, name="dataset"),
    path("datasets/<str:dataset_key>/describe/", datasets.describe, name="dataset-describe"),
    path("datasets/<str:dataset_key>/difference/", dataset_versions.difference, name="dataset-difference"),
    path("datasets/<str:dataset_key>/<int:version>/", dataset_versions.version, name="dataset-version"),
    path("exports/", exports.index, name="exports"),
    path("exports/live/", exports.live, name="exports-live"),
    path("exports/new/", exports.make, name="export-make"),
    path("exports/<str:export_key>/cancel/", exports.cancel, name="export-cancel"),
    path("exports/<str:export_key>/remove/", exports.remove, name="export-remove"),
    path("exports/<str:export_key>/files/<str:file>/", exports.download, name="export-file"),
    path("trust/", trust.index, name="trust"),
    path("trust/allow/", trust.allow, name="trust-allow"),
    path("trust/withdraw/", trust.withdraw, name="trust-withdraw"),
    path("runs/new/make-model/", launch.make_model, name="launch-make-model"),
    path("runs/new/check/", launch.check, name="launch-check"),
    path("runs/<str:key>/", run.overview, name="run"),
    path("runs/<str:key>/live/", run.live, name="run-live"),
    path("runs/<str:key>/connect/", run.connect, name="run-connect"),
    path("runs/<str:key>/connect/rotate/", run.rotate_key, name="run-rotate-key"),
    path("runs/<str:key>/connect/renew/", run.renew_address, name="run-renew-address"),
    path("runs/<str:key>/stop/", run.stop, name="run-stop"),
    path("runs/<str:key>/rollouts/", run.rollouts, name="run-rollouts"),
    path(
        "runs/<str:key>/samples/", RedirectView.as_view(pattern_name="run-rollouts", query_string=True)
    ),  # once its name
    path("runs/<str:key>/config/", run.config, name="run-config"),
    path("runs/<str:key>/events/", run.events, name="run-events"),
    path("runs/<str:key>/cost/", run.cost, name="run-cost"),
    path("runs/<str:key>/people/", people.people, name="run-people"),
    path("runs/<str:key>/label/", people.label, name="run-label"),
    path("runs/<str:key>/act/", people.act, name="run-act"),
    path("runs/<str:key>/acts/<str:act>/undo/", people.undo, name="run-act-undo"),
    path("runs/<str:key>/groups/<key:group>/", group.group, name="group"),
    path("runs/<str:key>/steps/<int:step>/", step.step, name="step"),
    path("runs/<str:key>/tokens/<int:number>/", tokens.tokens, name="tokens"),
    path("runs/<str:key>/raw-tokens/<int:rollout>/", tokens.raw, name="raw-tokens"),
]
