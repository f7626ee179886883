"""Every setting of the control plane. Each comes from one environment variable with a default; there is no second file.

With nothing set it describes the embedded servers of `rollyard up` in ROLLYARD_HOME.
"""

import gc
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import environ
from csp.constants import NONE, SELF
from kombu import Exchange, Queue
from whitenoise.compress import Compressor

from controlplane import safety
from controlplane.home import OWNER_ONLY, Home

# A fifth of a start would go into looking for garbage in what is being loaded. `controlplane.apps` ends this.
gc.disable()
# Whatever a process of the control plane writes, and what it starts, is its account's alone.
os.umask(OWNER_ONLY)
env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent

# --- this installation -----------------------------------------------------------------------------------------------
HOME = Home.from_environ()
ROLLYARD_HOME = HOME.path
ROLLYARD_RUNS_DIR = HOME.runs
"""Checkpoints, weights and logs. Trainers and inference replicas of one run must all see it under this path."""
ROLLYARD_MODELS_DIR = ROLLYARD_HOME / "models"
"""Models made here. Trainers and inference replicas must see it under this path too."""
ROLLYARD_URL = env.str("ROLLYARD_URL", default="http://127.0.0.1:8000").rstrip("/")
"""Where people and programs elsewhere reach the control plane; else `rollyard up` sets it to the port it got."""
ROLLYARD_GATEWAY_URL = env.str("ROLLYARD_GATEWAY_URL", default="").rstrip("/")
"""Where programs elsewhere reach the gateway for sessions; else `rollyard up` sets it. Empty: none runs."""
NODES_URL = env.str("ROLLYARD_NODES_URL", default=ROLLYARD_URL).rstrip("/")
"""Where jobs on other machines reach the control plane."""
RUNS_URL = env.str("ROLLYARD_RUNS_URL", default=f"unix://{HOME.runs_socket}")
"""Where trainers reach the control plane. They have no network: another address serves only without sandboxes."""
IDLE_ALARM_S = env.float("ROLLYARD_IDLE_ALARM_S", default=600.0)
"""For how long a replica may be idle before the page of the fleet says so in an alarm."""
SECRET_KEY = env.str("ROLLYARD_SECRET_KEY", default="") or HOME.secret_key()
DEBUG = safety.flag(os.environ, "ROLLYARD_DEBUG")
ALLOWED_HOSTS = safety.hosts_of(os.environ)

# --- applications and requests ---------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "controlplane",
    "frontend",
    "rollouts",
    "workers",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "controlplane.apps.StaticFilesConfig",
    "django.contrib.postgres",
    "axes",
    "channels",
    "csp",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "knox",
    "rest_framework",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "controlplane.web.nul.refuse_nul",
    "controlplane.web.unavailable.UnavailablePages",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "controlplane.web.visible.show_hidden",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Pages are closed unless they say otherwise; DRF views are exempt and have their own default below.
    "controlplane.web.signed_in.SignedIn",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",  # last: it answers instead of the sign-in page
]
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "frontend" / "pages"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATA_UPLOAD_MAX_MEMORY_SIZE = env.int("ROLLYARD_MAX_BODY_BYTES", default=64 * 1024 * 1024)
LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


# --- PostgreSQL: the truth -------------------------------------------------------------------------------------------
_SILENCE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""Over TCP a database whose machine is gone is noticed within half a minute: the kernel would try for a quarter of an
hour."""


def look_again(pool: Any) -> None:
    """Go on for those who wait already when an attempt to connect has been given up: only who asks begins another."""
    if pool.get_stats().get("requests_waiting"):
        pool.check()


def database(url: str, pool_size: int) -> dict[str, Any]:
    """Return Django's settings for a database URL, over a pool of at most `pool_size` connections per process."""
    config = environ.Env.db_url_config(url)
    options = config.setdefault("OPTIONS", {})
    config["HOST"] = options.pop("host", config["HOST"])
    # A transaction that waits on its own process holds back vacuum and locks for everybody. What the URL says is last.
    own = "-c idle_in_transaction_session_timeout=30s -c synchronous_commit=on"
    options["options"] = f"{own} {options.get('options', '')}".strip()
    options["connect_timeout"] = 5
    for name, value in _SILENCE.items():
        options.setdefault(name, value)
    if pool_size:
        # One that tried for longer would look ever less often, and nobody gets a connection as long as it does.
        patience = {"timeout": 10, "reconnect_timeout": 2, "reconnect_failed": look_again}
        options["pool"] = {"min_size": 0, "max_size": pool_size, "max_idle": 300, **patience}
        # The data path's statements are planned once per connection. Django's own are never prepared.
        options["prepare_threshold"] = 5
    return {**config, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}


DATABASE_POOL_SIZE = env.int("ROLLYARD_DATABASE_POOL_SIZE", default=16)
"""Connections per process; 0 opens one per thread instead, which PgBouncer in transaction mode wants."""
_url, _owner_url = env.str("DATABASE_URL", default=""), env.str("DATABASE_OWNER_URL", default="")
DATABASES = {"default": database(_url or HOME.database_url, DATABASE_POOL_SIZE)}
DATABASE_DIRECTORY = None if _url else HOME.postgres_data
"""Whose disk it fills; None: that of a database elsewhere."""
if not _url:
    _owner_url = HOME.owner_database_url
DATABASE_OWNER = database(_owner_url, 0) if _owner_url else None
"""Whoever migrates, and gives the application its rights; None: the application itself, which then may do anything."""

# --- Redis: the doorbell. Nothing in it has to survive ---------------------------------------------------------------
REDIS_URL = env.str("REDIS_URL", default="") or HOME.redis_url
# Subscriptions live in the connections, not in keys: after a FLUSHALL every page and worker still hears the bell.
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL}]},
    }
}


def celery_broker_url(redis_url: str) -> str:
    """Return the URL in Celery's spelling, which has its own name for a socket."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    number = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair).get("db", "0")
    password = f":{parts.password}@" if parts.password else ""
    return f"redis+socket://{password}{unquote(parts.path)}?virtual_host={number}"


CELERY_BROKER_URL = celery_broker_url(REDIS_URL)
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# A lease, not the broker, decides who owns work: a lost connection is no reason to cut an episode short.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5.0
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 900, "socket_keepalive": True, "health_check_interval": 10}
# The nameless exchange routes by queue name alone. A named one keeps its bindings in Redis, and after a FLUSHALL every
# message to it would vanish until the workers are restarted.
CELERY_TASK_DEFAULT_QUEUE = "episodes"
CELERY_TASK_QUEUES = [Queue("episodes", Exchange("", type="direct"), routing_key="episodes")]
CELERY_TIMEZONE = "UTC"

# --- people and tokens -----------------------------------------------------------------------------------------------
REFUSALS_SHARE = env.float("ROLLYARD_REFUSALS_SHARE", default=0.03)
"""Of a core, which a sender's refused requests may take of a web process. Each waits when it is used up; 1: nobody."""
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
PASSWORD_HASHERS = ["controlplane.web.hashing.PatientHasher"]
# Hashing a password is dear, and guessing needs many: after some failures, an address or an account has to wait.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AXES_LOCKOUT_PARAMETERS = ["ip_address", "username"]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(hours=4)
"""How long a failure counts; how long one waits is the handler's to say."""
AXES_HANDLER = "controlplane.web.lockout.Backoff"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # else whoever goes on guessing keeps the owner out
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_CALLABLE = "controlplane.web.lockout.locked_out"
AXES_USERNAME_CALLABLE = "controlplane.web.lockout.counted_name"
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
LOGIN_LINK_TTL = timedelta(minutes=30)
"""Life of the one-time login link that `rollyard up` prints."""
SESSION_COOKIE_NAME = "rollyard_session"
SESSION_COOKIE_AGE = int(timedelta(days=14).total_seconds())
"""Life of a session from the last day on which its owner opened a page or sent a form."""
CSRF_COOKIE_NAME = "rollyard_csrf"
KNOX_TOKEN_MODEL = "rollouts.ApiToken"
# Its migrations would make the table of the model that ours replaces, and Django cannot flush a table it does not know.
MIGRATION_MODULES = {"knox": None}
REST_KNOX = {"TOKEN_TTL": timedelta(days=90), "AUTH_HEADER_PREFIX": "Token", "TOKEN_PREFIX": "ry_"}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rollouts.doors.native.access.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "rollouts.doors.native.problems.handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Rollyard",
    "DESCRIPTION": "Runs, scored groups, batches, policy versions and metrics.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.1",  # whose schemas are JSON schemas, as msgspec writes them
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}

# --- what a browser may do -------------------------------------------------------------------------------------------
HTTPS = env.bool("ROLLYARD_HTTPS", default=ROLLYARD_URL.startswith("https://"))
"""Whether people reach us over HTTPS (through a proxy that sets X-Forwarded-Proto)."""
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_SSL_REDIRECT = False  # the proxy's work: health checks come to us in plain HTTP
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
CSRF_TRUSTED_ORIGINS = env.list("ROLLYARD_TRUSTED_ORIGINS", default=[ROLLYARD_URL] if HTTPS else [])
X_FRAME_OPTIONS = "DENY"
# Model output is hostile text: no inline code, nothing from elsewhere. 'self' covers the websocket of the same origin.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

# --- static files ----------------------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = ROLLYARD_HOME / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = DEBUG
# Source maps are for who looks for a fault in a browser, and a third of what there is to compress.
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = (*Compressor.SKIP_COMPRESS_EXTENSIONS, "map")

# --- logs ------------------------------------------------------------------------------------------------------------
LOG_LEVEL = env.str("ROLLYARD_LOG_LEVEL", default="INFO").upper()
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "controlplane.web.redaction.LineFormatter",
            "format": "{asctime} {levelname:<7} {name}: {message}",
            "style": "{",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    # Django has handlers of its own (one mails admins); a line is logged once.
    # httpx tells of every request it makes, which is every probe and every sample.
    "loggers": {"django": {"handlers": [], "propagate": True}, "httpx": {"level": "WARNING"}},
}
