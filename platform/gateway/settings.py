"""All settings. Each comes from the environment (or `.env`); `.env.example` explains them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from gateway import start
from gateway.database import parse_url
from gateway.process_secrets import secrets_of
from inference.link.wire import MAX_BODY_BYTES
from inference.process import environ

start.load_settings(start.settings_file())
VAR = start.var_folder()
"""Everything that this installation writes: database, adapters, logs, secrets."""
start.load_settings(VAR / "secrets.env")  # made by `manage.py up`; the environment has precedence

# --- Secrets: only this process's; settings for the other processes' secrets don't exist ----------
_OWN = secrets_of(start.process)
if "LORIKEET_SECRET_KEY" in _OWN:
    SECRET_KEY = environ.secret("LORIKEET_SECRET_KEY")
if "LORIKEET_KEY_PEPPER" in _OWN:
    KEY_PEPPER = environ.secret("LORIKEET_KEY_PEPPER")
    """HMAC key under which API keys are stored. Changing it makes every key invalid."""
if "LORIKEET_DISPATCH_KEY" in _OWN:
    DISPATCH_KEY = environ.secret("LORIKEET_DISPATCH_KEY")
    """Key with which gateways sign dispatches, to verify what engines report."""
if "LORIKEET_WORKER_TOKEN" in _OWN:
    WORKER_TOKEN = environ.secret("LORIKEET_WORKER_TOKEN")
    """Authenticates workers to gateways, to have an engine try an adapter."""
if "LORIKEET_INTERNAL_TOKEN" in _OWN:
    INTERNAL_TOKEN = environ.secret("LORIKEET_INTERNAL_TOKEN")
    """Authenticates consoles to gateways, and signs the tickets of websockets."""
if "LORIKEET_METRICS_TOKEN" in _OWN:
    METRICS_TOKEN = environ.text("LORIKEET_METRICS_TOKEN", "")
    """Authenticates Prometheus for /metrics; without it there is no access."""
if "LORIKEET_CONTENT_KEY" in _OWN:
    CONTENT_KEY = (
        environ.secret("LORIKEET_CONTENT_KEY") if environ.text("LORIKEET_CONTENT_KEY", "") else ""
    )
    """Master key that encrypts the tenants' keys of stored prompts and answers; without it none can
    be stored."""
if "LORIKEET_CONTENT_KEY_PREVIOUS" in _OWN:
    CONTENT_KEY_PREVIOUS = (
        environ.secret("LORIKEET_CONTENT_KEY_PREVIOUS")
        if environ.text("LORIKEET_CONTENT_KEY_PREVIOUS", "")
        else ""
    )
    """The previous CONTENT_KEY during a change, so that what it encrypted can still be read."""
if "LORIKEET_RECEIPT_KEY" in _OWN:
    RECEIPT_KEY = environ.secret("LORIKEET_RECEIPT_KEY")
    """Seed of the Ed25519 key that signs usage receipts."""

# --- Serving -------------------------------------------------------------------------------------
DEBUG = environ.boolean("LORIKEET_DEBUG", False)
ALLOWED_HOSTS = environ.words("LORIKEET_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = environ.words("LORIKEET_CSRF_TRUSTED_ORIGINS")
API_URL = environ.base_url("LORIKEET_API_URL", "http://127.0.0.1:8000")
"""Base URL at which clients and pages reach the API: a gateway, or a proxy in front of them."""
CONSOLE_URL = environ.base_url("LORIKEET_CONSOLE_URL", "http://127.0.0.1:8001")
"""Base URL at which people reach the console; the same as API_URL if an ingress routes by path."""
CONSOLE_INTERNAL_URL = environ.base_url("LORIKEET_CONSOLE_INTERNAL_URL", CONSOLE_URL)
"""Base URL at which gateways reach a console, to forward the requests that it answers."""
GATEWAY_URL = environ.text("LORIKEET_GATEWAY_URL", "http://127.0.0.1:8000")
"""The base URL at which agents, workers and consoles reach this gateway process."""
CORS_ORIGINS = environ.words("LORIKEET_CORS_ORIGINS")
"""Origins, besides the console's, whose pages may read the API's answers."""
MAX_REQUEST_BYTES = environ.size(
    "LORIKEET_MAX_REQUEST_BYTES",
    8 << 20,
    high=MAX_BODY_BYTES,
    why="the largest body that fits a frame to an engine",
)
REQUEST_TIMEOUT_S = environ.integer("LORIKEET_REQUEST_TIMEOUT_S", 600, low=1)
"""From a request's arrival to its last token, over all engines that it moves to."""
QUEUE_WITHOUT_ENGINE_S = environ.integer("LORIKEET_QUEUE_WITHOUT_ENGINE_S", 30)
"""How long a gateway holds a request while no engine is available, also after its engine was lost;
0: such requests end at once."""
HELD_REQUESTS = environ.integer("LORIKEET_HELD_REQUESTS", 1024, low=4)
HELD_BYTES = environ.size("LORIKEET_HELD_BYTES", 64 << 20)
"""Maximum number and total size of the requests that each gateway process holds; each tenant gets
at most a quarter of both."""
MOVABLE_BYTES = environ.size("LORIKEET_MOVABLE_BYTES", 256 << 20)
"""Bodies of running requests that each gateway process keeps, so that they can move to another
engine; at most a quarter per tenant. A request that does not fit ends with its engine."""
OVERFLOW_WAIT_S = environ.integer("LORIKEET_OVERFLOW_WAIT_S", 10, low=1)
"""How long a request has to wait for the installation's own engines, or is expected to, before an
overflow engine may have it."""
OVERFLOW_TOKENS_A_DAY = environ.integer("LORIKEET_OVERFLOW_TOKENS_A_DAY", 1_000_000, low=1)
"""Most tokens, prompts and answers together, that all overflow engines get in a day (UTC)."""
PREFILL_TOKENS = environ.integer("LORIKEET_PREFILL_TOKENS", 2048, low=1)
"""Tokens of a prompt that a decode engine would have to compute, from which on a prefill engine of
its pool computes it first."""
PREFILL_WAIT_S = environ.integer("LORIKEET_PREFILL_WAIT_S", 20, low=1, high=40)
"""How long that may take before the decode engine computes the prompt itself. A prefill engine
keeps a prompt for a minute from when it was computed, and gateways count from when it was sent."""
CONVERSATION_BYTES = environ.size("LORIKEET_CONVERSATION_BYTES", 64 << 20)
"""Conversations on open sockets of `/v1/responses` that each gateway process keeps between two
turns; at most a quarter per tenant."""
WITHOUT_GATEWAY_S = environ.integer("LORIKEET_WITHOUT_GATEWAY_S", 30, high=600)
"""After a gateway is lost, its engines continue its requests that have an idempotency key, and the
playground's, for this long, so that another gateway can take them over; 0: they end with it."""
KEYS_WITHOUT_DATABASE_S = environ.integer("LORIKEET_KEYS_WITHOUT_DATABASE_S", 300)
"""While PostgreSQL is away a gateway keeps using the keys and models that it knows, for this long
after the last contact. A key whose revocation the gateway can't receive works that long."""

# --- Connections ---------------------------------------------------------------------------------
TRUSTED_PROXIES = environ.words("LORIKEET_TRUSTED_PROXIES")
"""Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted."""
MAX_CONNECTIONS = environ.integer("LORIKEET_MAX_CONNECTIONS", 8192, low=16)
MAX_CONNECTIONS_PER_ADDRESS = environ.integer("LORIKEET_MAX_CONNECTIONS_PER_ADDRESS", 2048, low=1)
"""Both per process."""
MAX_HEADER_BYTES = environ.size("LORIKEET_MAX_HEADER_BYTES", 32 << 10)
HEADER_TIMEOUT_S = environ.integer("LORIKEET_HEADER_TIMEOUT_S", 20, low=1)
"""For all headers of a request, from their first byte or the opening of the connection."""
KEEP_ALIVE_S = environ.integer("LORIKEET_KEEP_ALIVE_S", 75, low=1)
"""Longest pause between two requests."""
BODY_IDLE_S = environ.integer("LORIKEET_BODY_IDLE_S", 30, low=1)
"""Longest pause between two parts of a body."""
WRITE_IDLE_S = environ.integer("LORIKEET_WRITE_IDLE_S", 60, low=1)
"""How long a client may read nothing although data is waiting for it."""

# --- Limits and bills ----------------------------------------------------------------------------
REDIS_URL = environ.text("LORIKEET_REDIS_URL", "")
LIMITS_WITHOUT_REDIS = environ.choice("LORIKEET_LIMITS_WITHOUT_REDIS", ["local", "refuse"], "local")
"""While Redis is away: each gateway process counts for itself, or requests are refused."""
CURRENCY = environ.text("LORIKEET_CURRENCY", "usd")
ENGINE_HOUR_PRICE = environ.amount("LORIKEET_ENGINE_HOUR_PRICE")
"""Cost of an engine per hour, in micro-units of the currency; 0: not set."""

# --- Adapters ------------------------------------------------------------------------------------
MAX_ADAPTER_BYTES = environ.size("LORIKEET_MAX_ADAPTER_BYTES", 2 << 30)
MAX_TENANT_UPLOADS = environ.integer("LORIKEET_MAX_TENANT_UPLOADS", 16, low=1)
MAX_TENANT_UPLOAD_BYTES = environ.size("LORIKEET_MAX_TENANT_UPLOAD_BYTES", 8 << 30)
"""Number and total bytes of a tenant's uploads that are not versions yet."""
TENANT_STORED_BYTES = environ.size("LORIKEET_TENANT_STORED_BYTES", 50 << 30)
TENANT_VERSIONS = environ.integer("LORIKEET_TENANT_VERSIONS", 5000, low=1)
"""A tenant's storage quota, unless the operator sets another for it."""
HUB_COMMIT_BYTES = environ.size("LORIKEET_HUB_COMMIT_BYTES", 512 << 20)
"""Weights up to this size are part of a push's commit. Larger ones are sent before it by Git LFS,
which clients with Xet use only if told to (HF_HUB_DISABLE_XET)."""
OTHER_BASE_MODEL = environ.choice("LORIKEET_OTHER_BASE_MODEL", ["confirm", "refuse"], "confirm")
"""Whether an adapter that names another base model is accepted after confirmation, or refused."""
UPLOAD_WAIT_S = environ.integer("LORIKEET_UPLOAD_WAIT_S", 30)
"""How long a request waits for the worker's verdict on its upload before it is answered 202."""
LOADED_ADAPTER_S = environ.integer("LORIKEET_LOADED_ADAPTER_S", 3600, low=60)
"""How long a version that a training loop loads is kept (`/v1/load_lora_adapter`)."""
TENANT_LOADED_ADAPTERS = environ.integer("LORIKEET_TENANT_LOADED_ADAPTERS", 16, low=1)
TENANT_LOADS_PER_MINUTE = environ.integer("LORIKEET_TENANT_LOADS_PER_MINUTE", 30, low=1)
"""Names under which a tenant has such versions, and how many it loads in a minute."""
CHECK_CPU_S = environ.integer("LORIKEET_CHECK_CPU_S", 20, low=1)
CHECK_TIME_S = environ.integer("LORIKEET_CHECK_TIME_S", 120, low=1)
"""Limits for reading an upload, and likewise for checking it, per started GiB."""
CHECK_MEMORY_BYTES = environ.size("LORIKEET_CHECK_MEMORY_BYTES", 1 << 30)
BASE_MODELS = environ.mapping("LORIKEET_BASE_MODELS")
"""Where workers find base models, to compare engines with PEFT: a folder or a name in the Hugging
Face cache for each."""
PARITY_BYTES = environ.size("LORIKEET_PARITY_BYTES", 2 << 30)
"""The weights of a base model that is compared may take so much of a worker's memory."""
FILE_UPLOAD_TEMP_DIR = environ.text("LORIKEET_UPLOAD_DIR", str(VAR / "uploads"))
"""Temporary files of this machine."""
os.makedirs(FILE_UPLOAD_TEMP_DIR, mode=0o700, exist_ok=True)
FILE_UPLOAD_PERMISSIONS, FILE_UPLOAD_DIRECTORY_PERMISSIONS = 0o600, 0o700
FILE_UPLOAD_HANDLERS = ["tenants.adapters.uploads.receiving.BoundedUploadHandler"]
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

# --- Files and batches ---------------------------------------------------------------------------
MAX_FILE_BYTES = environ.size("LORIKEET_MAX_FILE_BYTES", 512 << 20)
TENANT_FILES = environ.integer("LORIKEET_TENANT_FILES", 1000, low=1)
"""Their bytes count together with adapters towards TENANT_STORED_BYTES."""
TENANT_BATCHES = environ.integer("LORIKEET_TENANT_BATCHES", 50, low=1)
"""Unfinished batches of one tenant."""
TENANT_BACKGROUND_RESPONSES = environ.integer("LORIKEET_TENANT_BACKGROUND_RESPONSES", 1000, low=1)
"""Unfinished background responses of one tenant."""
FORWARDED_BYTES_PER_S = environ.size("LORIKEET_FORWARDED_BYTES_PER_S", 32 << 20)
"""Total rate at which each gateway process forwards files to consoles."""
_STORAGE_DIR = environ.text("LORIKEET_STORAGE_DIR", str(VAR))
_S3_BUCKET = environ.text("LORIKEET_S3_BUCKET", "")
_S3 = {
    "bucket_name": _S3_BUCKET,
    "endpoint_url": environ.text("LORIKEET_S3_ENDPOINT", "") or None,
    "region_name": environ.text("LORIKEET_S3_REGION", "") or None,
    "file_overwrite": True,  # names are unique
    "max_memory_size": 1 << 20,  # larger files are read through a temporary file
}


def _place(name: str, folder: str) -> dict[str, Any]:
    """A storage that all processes share: a prefix of the bucket, or a folder."""
    if _S3_BUCKET:
        return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": _S3 | {"location": name}}
    options = {"location": os.path.join(_STORAGE_DIR, folder), "allow_overwrite": True}
    return {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}


STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "adapters": _place("adapters", "adapters"),
    "files": _place("files", "uploads/files"),
    "uploads": _place("uploads", "uploads/parts"),
    "staticfiles": {"BACKEND": "gateway.storage.HashedStaticFiles"},
}
MEDIA_ROOT = str(VAR / "media")

# --- Evals ---------------------------------------------------------------------------------------
EVAL_ROWS = environ.integer("LORIKEET_EVAL_ROWS", 10_000, low=1)
"""Rows of a run of an eval."""

# --- Fine-tuning ---------------------------------------------------------------------------------
TENANT_TUNING_JOBS = environ.integer("LORIKEET_TENANT_TUNING_JOBS", 10, low=1)
"""Unfinished fine-tuning jobs of one tenant."""
TUNING_ROWS = environ.integer("LORIKEET_TUNING_ROWS", 50_000, low=1)
"""Rows of a file for fine-tuning."""
TUNING_ROW_TOKENS = environ.integer("LORIKEET_TUNING_ROW_TOKENS", 4096, low=16)
"""Tokens of a row, which decide over the memory that training takes; never more than the base
model's context."""
TUNING_TOKENS = environ.integer("LORIKEET_TUNING_TOKENS", 50_000_000, low=1)
"""Tokens of all epochs of a job."""
TUNING_RANK = environ.integer("LORIKEET_TUNING_RANK", 16, low=1)
"""Of adapters that are trained here; never more than the base model's engines allow."""
TUNING_ALPHA = environ.integer("LORIKEET_TUNING_ALPHA", 32, low=1)
TUNING_TOGETHER = environ.integer("LORIKEET_TUNING_TOGETHER", 8, low=1)
"""Jobs on one base model that are trained at once in a process."""
TUNING_RATE = environ.number("LORIKEET_TUNING_RATE", 2e-4)
"""The peak of the learning rate, which a job multiplies."""
TUNING_THREADS = environ.integer("LORIKEET_TUNING_THREADS", os.cpu_count() or 1, low=1)
"""Of a trainer without a GPU. With another number results differ in their last digits."""
TUNING_MEMORY_BYTES = environ.size("LORIKEET_TUNING_MEMORY_BYTES", 16 << 30)
"""Of a training process, without a GPU's."""
TUNING_TIME_S = environ.integer("LORIKEET_TUNING_TIME_S", 86_400, low=1)
"""A training process is ended after so long, and its job with it."""
TUNING_SAVE_S = environ.integer("LORIKEET_TUNING_SAVE_S", 120, high=3600)
"""How often a training process saves its state: what is lost at most if it is killed."""

# --- Django --------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "frontend",  # before the apps whose templates it replaces
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "channels",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "procrastinate.contrib.django",
    "tenants",
    "gateway",
    *(["demo"] if find_spec("demo") else []),  # not in the wheel
]
MIDDLEWARE = [
    "gateway.middleware.PreallocatedFrames",
    "gateway.middleware.ConnectionReturned",
    "gateway.middleware.RequestId",
    "gateway.middleware.CompressedPages",
    "gateway.middleware.ExtraSlash",
    # Outside everything that may refuse a request, so that those pages have the policy too.
    "gateway.middleware.ContentPolicy",
    "gateway.middleware.StrictTransport",
    "gateway.middleware.NotStored",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gateway.middleware.Audited",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "frontend.sign_in.devices.SessionNoted",
    "frontend.sign_in.second_factor.SecondFactorRequired",
    "frontend.times.LocalTime",
]
ROOT_URLCONF = "gateway.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "frontend.navigation.navigation",
            ]
        },
    }
]
DATABASES = {"default": parse_url(environ.text("LORIKEET_DATABASE_URL"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
AUTHENTICATION_BACKENDS = ["frontend.sign_in.backends.SessionUserBackend"]
SESSION_ENGINE = "frontend.sign_in.sessions"
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"  # never the database
CSRF_FAILURE_VIEW = "gateway.failures.csrf_failure"
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "console"
ACCOUNT_ADAPTER = "frontend.sign_in.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # the sender chose a trusted channel for the invitation
ACCOUNT_USERNAME_MIN_LENGTH = 2
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False  # no mail to addresses without an account
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""  # the mail ends with its sender
ACCOUNT_FORMS = {
    "login": "frontend.sign_in.accounts.LoginForm",
    "reset_password": "frontend.sign_in.accounts.ResetPasswordForm",
}
# Not counted again: `frontend.sign_in.throttling` limits these. The rest has allauth's limits.
ACCOUNT_RATE_LIMITS = {"login_failed": None, "reset_password": None}
MFA_FORMS = {
    "authenticate": "frontend.sign_in.accounts.AuthenticateForm",
    "reauthenticate": "frontend.sign_in.accounts.ReauthenticateForm",
    "add_webauthn": "frontend.sign_in.passkeys.AddPasskeyForm",
    "edit_webauthn": "frontend.sign_in.passkeys.RenamePasskeyForm",
    "authenticate_webauthn": "frontend.sign_in.passkeys.AuthenticatePasskeyForm",
    "login_webauthn": "frontend.sign_in.passkeys.SignInPasskeyForm",
    "reauthenticate_webauthn": "frontend.sign_in.passkeys.ReauthenticatePasskeyForm",
}
MFA_ADAPTER = "frontend.sign_in.passkeys.PasskeyAdapter"
MFA_ALLOW_UNVERIFIED_EMAIL = True  # accounts are made by invitation, not by mail address
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_TOTP_ISSUER = "Lorikeet"
SOCIALACCOUNT_ADAPTER = "frontend.sign_in.accounts.SocialAccountAdapter"
SOCIALACCOUNT_EMAIL_AUTHENTICATION = SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_ONLY = False
_OIDC_ISSUER = environ.text("LORIKEET_OIDC_ISSUER", "")
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": environ.text("LORIKEET_OIDC_NAME", "Single sign-on"),
                "client_id": environ.text("LORIKEET_OIDC_CLIENT_ID"),
                "secret": environ.text("LORIKEET_OIDC_CLIENT_SECRET"),
                "settings": {"server_url": _OIDC_ISSUER.rstrip("/")},
            }
        ]
        if _OIDC_ISSUER and "LORIKEET_OIDC_CLIENT_SECRET" in _OWN
        else [],
    }
}
# Counts of failed sign-ins, shared by all consoles if there is a Redis. Django keeps 300 entries in
# memory by default: a few hundred failures of other accounts would evict an account's count.
CACHES = {
    "default": {
        **(
            {"BACKEND": "gateway.cache.FailoverCache", "LOCATION": REDIS_URL}
            if REDIS_URL
            else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        ),
        "OPTIONS": {"MAX_ENTRIES": 50_000},
    }
}
EMAIL_HOST = environ.text("LORIKEET_EMAIL_HOST", "")
# Mails contain links that set passwords: without a mail server they are written to private files,
# never to a log.
EMAIL_BACKEND = (
    "django.core.mail.backends.smtp.EmailBackend" if EMAIL_HOST else "gateway.mail.PrivateFiles"
)
EMAIL_FILE_PATH = str(VAR / "mail")
EMAIL_TIMEOUT = 10
"""For each step of sending a mail, in seconds."""
EMAIL_PORT = environ.integer("LORIKEET_EMAIL_PORT", 25, low=1, high=65535)
EMAIL_HOST_USER = environ.text("LORIKEET_EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = environ.text("LORIKEET_EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = environ.boolean("LORIKEET_EMAIL_USE_TLS", False)
DEFAULT_FROM_EMAIL = environ.text("LORIKEET_EMAIL_FROM", "lorikeet@localhost")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = environ.boolean("LORIKEET_SECURE_COOKIES", False)
OPERATOR_SECOND_FACTOR = environ.choice(
    "LORIKEET_OPERATOR_SECOND_FACTOR",
    ["ask", "require"],
    "require" if SESSION_COOKIE_SECURE else "ask",
)
"""Whether operators with only a password are asked to set up a second factor, or required to."""
# For the redirect URI of single sign-on and links in mails, if a proxy terminates TLS.
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if SESSION_COOKIE_SECURE else "http"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
LANGUAGE_CODE = "en-us"
USE_I18N = False  # otherwise a translation is looked up for every value of a page
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = environ.text("LORIKEET_STATIC_ROOT", str(VAR / "static"))
STATICFILES_FINDERS = [
    "gateway.storage.ServedFiles",
    "django.contrib.staticfiles.finders.FileSystemFinder",
]
DOCUMENTS = start.documents_folder()
STATICFILES_DIRS = [("documents", DOCUMENTS / "images")]
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL]},
    }
    if REDIS_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

# --- Management API ------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PAGINATION_CLASS": "tenants.api.pagination.Pages",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "tenants.api.schema.Schema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["tenants.api.parsing.StrictJSONParser"],
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "tenants.api.problems.handle",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Lorikeet",
    "DESCRIPTION": (
        "`/api/v1` is the management API of tenants; `/v1` is the OpenAI-compatible inference API."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},  # nothing from elsewhere
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TenantStatusEnum": "tenants.models.accounts.Tenant.Status",
        "TenantEventEnum": "tenants.api.serializers.webhooks.TENANT_EVENTS",
        "InstallationEventEnum": "tenants.api.serializers.webhooks.INSTALLATION_EVENTS",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.complete",
    ],
}

# --- Metrics -------------------------------------------------------------------------------------
METRICS_TENANTS = environ.integer("LORIKEET_METRICS_TENANTS", 0, high=1000)
"""Number of busiest tenants named in metrics; the others are summed as `other`. 0: no tenant is
named. Traces have OpenTelemetry's own settings (`inference.tracing`)."""

HISTORY_DAYS = environ.integer("LORIKEET_HISTORY_DAYS", 90, low=1, high=3660)
"""How long hourly figures of requests are kept."""
REFUSED_REQUESTS_DAYS = environ.integer("LORIKEET_REFUSED_REQUESTS_DAYS", 30, low=1, high=3660)
"""How long refused and failed requests are kept, with their messages."""
DELETION_GRACE_DAYS = environ.integer("LORIKEET_DELETION_GRACE_DAYS", 30, high=3660)
"""How long the deletion of a tenant can be taken back."""

WEBHOOK_TEST_WAIT_S = environ.integer("LORIKEET_WEBHOOK_TEST_WAIT_S", 15, high=60)
"""How long a request waits for a worker to send a webhook's test event before it is answered."""
WEBHOOKS_PRIVATE = environ.boolean("LORIKEET_WEBHOOKS_PRIVATE", False)
"""Whether webhooks may go to private networks and this machine, also without TLS."""

# --- Logging -------------------------------------------------------------------------------------
LOG_LEVEL = environ.choice("LORIKEET_LOG_LEVEL", ["debug", "info", "warning", "error"], "info")
LOGGING_CONFIG = None  # `inference.process.logs.configure`, called by each process at its start
