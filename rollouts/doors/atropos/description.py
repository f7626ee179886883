"""What the API says about itself: /openapi.json, and a page that shows it and asks no other host for anything."""

from typing import Any

from django.templatetags.static import static
from pydantic.json_schema import models_json_schema

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.call import Call
from rollouts.doors.atropos.words import ok
from rollouts.doors.messages import Answer
from rollouts.formats.atropos.bodies import EnvIdentifier, RegisterEnv, Registration
from rollouts.formats.atropos.items import LaxScoredData

HTML = "text/html; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
ASSETS = "drf_spectacular_sidecar/swagger-ui-dist/"
# Swagger UI has styles inside its page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OPERATIONS: tuple[tuple[str, str, str, Any], ...] = (
    ("get", "/", "Whether somebody is there", None),
    ("post", "/register", "A trainer registers", Registration),
    ("post", "/register-env", "An environment registers", RegisterEnv),
    ("post", "/disconnect-env", "An environment leaves", EnvIdentifier),
    ("get", "/wandb_info", "W&B group and project of the trainer", None),
    ("get", "/info", "Batch size and token limit of the trainer", None),
    ("get", "/batch", "The next batch; to ask is to acknowledge the one before", None),
    ("get", "/latest_example", "The newest group", None),
    ("post", "/scored_data", "Store a group", LaxScoredData),
    ("post", "/scored_data_list", "Store groups, all or none", list[LaxScoredData]),
    ("get", "/status", "Step and length of the queue", None),
    ("get", "/status-env", "The same as one environment sees it; env_id as JSON body or query", EnvIdentifier),
    ("post", "/reset_data", "Close the attempt and archive what waits; as GET at addresses for old clients only", None),
)
"""Method, path, summary, body."""


def openapi(call: Call) -> Answer:
    """`GET /openapi.json`"""
    lookup.find(call.key)
    models = (Registration, RegisterEnv, EnvIdentifier, LaxScoredData)
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, body in OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": path.strip("/").replace("-", "_") or "root",
            "responses": {"200": {"description": "Done"}, "422": {"description": "The body is not valid"}},
        }
        if body is not None:
            is_list = body == list[LaxScoredData]
            schema = references[LaxScoredData if is_list else body, "validation"]
            schema = {"type": "array", "items": schema} if is_list else schema
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[method] = operation
    return ok(
        {
            "openapi": "3.1.0",
            "info": {"title": "AtroposLib API", "version": "0.1.0"},
            "servers": [{"url": "."}],
            "paths": paths,
            "components": {"schemas": definitions["$defs"]},
        }
    )


def docs(call: Call) -> Answer:
    """`GET /docs`, `GET /redoc`"""
    lookup.find(call.key)
    if call.query == "script":
        return Answer(_SCRIPT.encode(), content_type=SCRIPT)
    page = _PAGE.format(style=static(f"{ASSETS}swagger-ui.css"), bundle=static(f"{ASSETS}swagger-ui-bundle.js"))
    return Answer(page.encode(), content_type=HTML, headers={"Content-Security-Policy": POLICY})


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>AtroposLib API</title>
<link rel="stylesheet" href="{style}">
</head>
<body>
<div id="page"></div>
<script src="{bundle}"></script>
<script src="docs?script"></script>
</body>
</html>
"""
_SCRIPT = """SwaggerUIBundle({ url: "openapi.json", dom_id: "#page", validatorUrl: null });
"""
