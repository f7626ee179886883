"""List the models that runs may start from."""

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import check_scope, token_of
from rollouts.models import Model, Scope
from rollouts.selectors import models as model_selectors

MOST = 1000


class ModelOut(msgspec.Struct, kw_only=True):
    """A registered model: `model` is what `model.path` of a run config may name."""

    model: str
    project: str
    source: str
    """An absolute directory, or a name of the hub."""
    origin: str
    """`made`, `added`, or `trained`."""
    trained_by: str | None
    """RUN@STEP it is the result of."""
    architecture: str
    parameters: int | None
    tokenizer: str
    vocabulary: int | None
    has_chat_template: bool | None
    size_bytes: int
    sha256: str
    """Over the files that load; empty for a model of the hub that is not cached."""
    created_at: str


class ModelsOut(msgspec.Struct):
    models: list[ModelOut]


class ModelsApi(APIView):
    """`/models`"""

    @extend_schema(operation_id="listModels", responses=wire.answer(ModelsOut))
    def get(self, request: Request) -> Response:
        """Newest first, 1000 at most."""
        check_scope(request, Scope.READ)
        models = model_selectors.for_user(request.user).select_related("project", "run").order_by("-id")
        if (token := token_of(request)) is not None:
            models = models.filter(project=token.project_id)
            if token.run_id is not None:  # it is of one run alone
                models = models.filter(runs=token.run_id)
        return Response(wire.json(ModelsOut(models=[_out(model) for model in models[:MOST]])))


def _out(model: Model) -> ModelOut:
    return ModelOut(
        model=model.name,
        project=model.project.slug,
        source=model.source,
        origin=model.origin,
        trained_by=f"{model.run.key}@{model.step}" if model.run else None,
        architecture=model.architecture,
        parameters=model.parameters,
        tokenizer=model.tokenizer,
        vocabulary=model.vocabulary,
        has_chat_template=model.has_chat_template,
        size_bytes=model.size_bytes,
        sha256=model.sha256,
        created_at=model.created_at.isoformat(),
    )
