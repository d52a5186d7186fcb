"""Django's settings, from environment variables. README lists the variables."""

import os
from pathlib import Path

from api import request_id
from inference.broker import address, queue_declaration
from inference.catalog import reader, specs
from inference.telemetry import tracing
from project import environment as env

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("DATA_DIR", BASE_DIR / "var"))

RELEASE = env.read_release("RELEASE", BASE_DIR)  # the charts mark a change of it as a deployment

DEBUG = env.read_flag("DEBUG")  # Django's: error pages with tracebacks, for which every statement is kept
DEVELOPMENT = env.read_flag("DEVELOPMENT", DEBUG)  # plain HTTP, and no API keys needed
SECRET_KEY = env.read_or_make_secret("SECRET_KEY", DATA_DIR / "secret_key")
ALLOWED_ORIGINS = env.read_origins("ALLOWED_ORIGINS")
ALLOWED_HOSTS = env.read_texts("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")

INSTALLED_APPS = [
    "inference",  # before the admin, some of whose templates it replaces
    "django.contrib.admin.apps.SimpleAdminConfig",  # project/urls.py loads its pages: only web processes show them
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "api",
    "tools",
]
MIDDLEWARE = [
    *(["api.server.tracing.Traces"] if tracing.on else []),
    "api.server.middleware.RequestIds",
    "api.server.middleware.Api",
    # For pages: those of the admin with their files, and those of an app that was added.
    "django.middleware.security.SecurityMiddleware",
    "inference.admin.content_security_policy.ContentSecurityPolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
if ALLOWED_ORIGINS:  # sites whose pages may call the API from a browser
    INSTALLED_APPS.append("corsheaders")
    MIDDLEWARE.insert(MIDDLEWARE.index("api.server.middleware.Api"), "corsheaders.middleware.CorsMiddleware")
CORS_ALLOWED_ORIGINS = ALLOWED_ORIGINS
CORS_URLS_REGEX = r"^/(?!admin(?:/|$))"
CORS_ALLOW_HEADERS = (
    "accept", "authorization", "content-type", "idempotency-key", "if-none-match", "last-event-id", "prefer",
    "traceparent", "tracestate", "user-agent", "x-request-id",
    # sent by the npm packages openai and cohere-ai
    *(f"x-stainless-{name}" for name in (
        "arch", "helper-method", "lang", "os", "package-version", "poll-helper", "retry-count", "runtime",
        "runtime-version", "timeout",
    )),
    *(f"x-fern-{name}" for name in ("language", "runtime", "runtime-version", "sdk-name", "sdk-version")),
    "openai-organization", "openai-project", "x-client-name",
)  # fmt: skip
CORS_EXPOSE_HEADERS = (
    "content-location", "etag", "location", "preference-applied", "retry-after", "x-request-id", "x-should-retry"
)  # fmt: skip
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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
# For HTTPS, which a proxy in front ends. The proxy also redirects to it: a redirect here would turn a POST into a GET.
SECURE_HSTS_SECONDS = env.read_integer("HSTS_SECONDS", 0 if DEVELOPMENT else 86_400)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.read_flag("SECURE_COOKIES", not DEVELOPMENT)
if env.read_flag("TRUST_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W008", "security.W021"]  # subdomains, redirect, preloading

APPEND_SLASH = False  # a redirect turns a POST into a GET; paths work with and without the slash
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True  # files are served from the packages: there is nothing to collect
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
DATA_UPLOAD_MAX_MEMORY_SIZE = env.read_integer("MAX_BODY_BYTES", 10 * 1024 * 1024)
MAX_FILE_BYTES = env.read_integer("MAX_FILE_BYTES", 200 * 1024 * 1024)  # of one file at /v1/files
API_KEY_MAX_FILE_BYTES = env.read_integer("API_KEY_MAX_FILE_BYTES", 10 * 1024**3)  # of one owner's files; 0: no limit
FILES_DIR = DATA_DIR / "files"  # also for uploads while they last: a folder for temporary files may be in memory
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "files": {  # of clients, and of the answers of their batches
        "BACKEND": os.environ.get("FILE_STORAGE", "django.core.files.storage.FileSystemStorage"),
        "OPTIONS": env.read_json_object(
            "FILE_STORAGE_OPTIONS", {"location": str(FILES_DIR), "file_permissions_mode": 0o600}
        ),
    },
}
TEST_RUNNER = "tests.runner.Runner"

answer_s = env.read_number("DATABASE_ANSWER_S", 0)  # read anew where it is used: programs set other defaults
DATABASES = {"default": env.read_database("DATABASE_URL", f"sqlite:///{DATA_DIR}/db.sqlite3")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["ENGINE"] = "inference.store.sqlite"
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",  # a transaction waits at its start instead of failing in its middle
        "timeout": 4,  # seconds, after which a request answers 503 and a worker tries again
        # Each of hundreds of threads has a connection, and each connection a cache: 256 KiB instead of 2 MiB.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-256;",
    }
    # A file, as in production: a connection to memory cannot be closed, nor shared between processes.
    DATABASES["default"]["TEST"] = {"NAME": DATA_DIR / "test.sqlite3"}
else:
    DATABASES["default"]["ENGINE"] = "inference.store.postgresql"
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    # No statement may need the session of the one before: a transaction pooler gives each transaction another session.
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    DATABASES["default"]["OPTIONS"] = {
        # A host that is lost without closing its connections is noticed within seconds.
        "connect_timeout": 3, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2,
        "tcp_user_timeout": 8000,
        **DATABASES["default"].get("OPTIONS", {}),
    }  # fmt: skip
    if pool_size := env.read_integer("DATABASE_POOL_SIZE", 0):  # 0: each thread has its own connection
        from inference.store.postgresql.driver import Connection

        # The pool gives up reconnecting early, and the next thread that needs a connection begins anew. Otherwise the
        # pauses between tries would grow as long as the outage.
        DATABASES["default"]["OPTIONS"]["pool"] = {
            "connection_class": Connection, "min_size": 1, "max_size": pool_size, "reconnect_timeout": 1,
            "timeout": max(2.5, answer_s / 2),  # seconds that a request waits while all connections are in use
        }  # fmt: skip
        DATABASES["default"]["CONN_MAX_AGE"] = 0  # a thread gives its connection back after each request
        # They would cost a query; the database engine checks without one.
        DATABASES["default"]["CONN_HEALTH_CHECKS"] = False

# The models, the broker and the worker.
MODELS_FILE = Path(os.environ.get("MODELS_FILE", BASE_DIR / "models.toml"))
REDIS_URL = env.read_url("REDIS_URL", ("redis", "rediss", "unix")) or address.make_embedded_url(DATA_DIR)
SERVICE_PREFIX = env.read_broker_prefix("SERVICE_PREFIX")  # before all names in the broker
WORKER_HEARTBEAT_S = env.read_number("WORKER_HEARTBEAT_S", 2)
WORKER_SILENT_S = env.read_number("WORKER_SILENT_S", 15)  # a worker silent for longer is gone
MAX_RECOVERIES = 3  # a job whose worker is lost this often fails with the code `lost`; the last worker runs it alone
REPLICA_MEMORY_MB = env.read_integer("REPLICA_MEMORY_MB", 0)  # for its models; 0: a share of its device's memory
WORK_AHEAD = {"auto": None, "0": False, "1": True}[env.read_choice("WORK_AHEAD", ("auto", "0", "1"), "auto")]
MAX_BULK_INPUTS = env.read_integer("MAX_BULK_INPUTS", 10_000)  # inputs of one request
MAX_LOW_QUEUED = env.read_integer("MAX_LOW_QUEUED", 100_000)  # waiting jobs of one model at low priority, as of bulks
LOAD_LIMIT_S = env.read_number("LOAD_LIMIT_S", 3600)  # for a replica to load its models; its process is then ended
MAX_ESTIMATED_WAIT_S = env.read_number("MAX_ESTIMATED_WAIT_S", 600)  # 503 above it, but at low priority; 0: no limit

CELERY_BROKER_URL = env.read_url("BROKER_URL") or address.make_kombu_url(REDIS_URL)
CELERY_BROKER_TRANSPORT_OPTIONS = address.make_kombu_options(CELERY_BROKER_URL, SERVICE_PREFIX)
CELERY_CONTROL_EXCHANGE = f"{SERVICE_PREFIX}celery"
CELERY_EVENT_EXCHANGE = CELERY_EVENT_QUEUE_PREFIX = f"{SERVICE_PREFIX}celeryev"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # no limit, 30 s at most between tries: models need not be loaded anew
# RabbitMQ gives the messages of a worker to others when it was silent for three times this long, as if it was frozen.
CELERY_BROKER_HEARTBEAT = max(1, round(WORKER_SILENT_S / 3))
CELERY_BROKER_CHANNEL_ERROR_RETRY = True  # a broker without room answers with errors, until it has room again
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_CONSUMER = "inference.worker.celery_worker.consumer:JobConsumer"
CELERY_WORKER_POOL = "inference.worker.celery_worker.task_pool:TaskPool"
CELERY_WORKER_ENABLE_PREFETCH_COUNT_REDUCTION = False
CELERY_WORKER_REDIRECT_STDOUTS = False

# Webhooks: off while WEBHOOK_HOSTS is empty. `manage.py deliver_webhooks` delivers them.
WEBHOOK_HOSTS = env.read_texts("WEBHOOK_HOSTS")
WEBHOOK_SECRET = os.environ.get("WEBHOOK_SECRET", "")  # whsec_ and base64 of 24 to 64 random bytes
WEBHOOK_ALLOW_PRIVATE = env.read_flag("WEBHOOK_ALLOW_PRIVATE")  # allows http, and addresses that are not public

try:
    _models = list(reader.load_catalog(MODELS_FILE))
except specs.CatalogError:
    _models = []  # `manage.py check` reports what is wrong with the file
CELERY_TASK_QUEUES = [
    queue_declaration.make_queue(address.make_queue_name(SERVICE_PREFIX, model), SERVICE_PREFIX, CELERY_BROKER_URL)
    for model in _models
]

# The HTTP interface.
ENGINE_ERRORS = env.read_choice("ENGINE_ERRORS", ("full", "redacted"), "full" if DEVELOPMENT else "redacted")
API_KEY_REQUIRED = env.read_flag("API_KEY_REQUIRED", not DEVELOPMENT)
API_KEY_RATE = env.read_integer("API_KEY_RATE", 0)  # requests a minute of a key without a rate of its own; 0: no limit
API_KEY_MAX_QUEUED = env.read_integer("API_KEY_MAX_QUEUED", 500)  # waiting jobs of one owner; 0: no limit
API_KEY_MAX_LOW_QUEUED = env.read_integer("API_KEY_MAX_LOW_QUEUED", 50_000)  # the same at low priority, as of bulks
JOB_RETENTION_DAYS = env.read_number("JOB_RETENTION_DAYS", 30)  # finished jobs are then removed; 0: kept for ever
MAX_WAITING_REQUESTS = env.read_integer("MAX_WAITING_REQUESTS", 400)  # in one process; each holds one of its threads
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Inference service",
    "DESCRIPTION": "Machine-learning models as a durable, batched HTTP service. Errors are problem documents with a"
    " stable code, and at the addresses of other servers' clients have the form that these read; every answer carries"
    " X-Request-Id; paths work with and without a trailing slash.",
    "TAGS": [
        {"name": name}
        for name in ("jobs", "bulk", "models", "openai", "files", "batches", "rerank", "cohere", "tei", "about")
    ],
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "APPEND_COMPONENTS": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    "SECURITY": [{"key": []}] if API_KEY_REQUIRED else [{}, {"key": []}],
    "ENUM_ADD_EXPLICIT_BLANK_NULL_CHOICE": False,
    "ENUM_NAME_OVERRIDES": {
        "AnchorEnum": ["created_at"],
        "VectorFormatEnum": "api.requests.dialects.embeddings.FORMATS",
        "StatusEnum": "inference.models.Status",
        "BatchStatusEnum": "api.models.BatchStatus",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "api.openapi.operation_decorator.complete_schemas",
    ],
}

LOG_LEVEL = env.read_choice("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "INFO")
env.read_choice("LOG_FORMAT", ("text", "json"), "text")  # checked here, and read by inference.telemetry.logs
LOGGING_CONFIG = "inference.telemetry.logs.configure"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "request_id": {"()": "django.utils.log.CallbackFilter", "callback": request_id.add_to_log_record},
        # Django's own line for each answer of 400 and above says less than the access line.
        "exceptions": {"()": "django.utils.log.CallbackFilter", "callback": lambda record: bool(record.exc_info)},
    },
    "formatters": {"line": {"()": "inference.telemetry.logs.make_formatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]}},
    "loggers": {"django.request": {"filters": ["exceptions"]}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
}
