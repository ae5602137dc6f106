"""All settings. Each comes from the environment (or `.env`); `.env.example` explains them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import dotenv

from gateway.database import parse_url
from gateway.start import ROOT, var_folder
from inference import environ

dotenv.load_dotenv(ROOT / ".env")
VAR = var_folder()
"""Everything that this installation writes: database, adapters, logs, secrets."""
dotenv.load_dotenv(VAR / "secrets.env")  # made by `manage.py up`; the environment wins

# --- Secrets -------------------------------------------------------------------------------------
SECRET_KEY = environ.secret("SECRET_KEY")
KEY_PEPPER = environ.secret("KEY_PEPPER")
"""HMAC key under which API keys are stored. Changing it makes every key invalid."""
ENGINE_TOKEN = environ.secret("ENGINE_TOKEN")
"""What engine agents and workers show to gateways."""
INTERNAL_TOKEN = environ.secret("INTERNAL_TOKEN")
"""What consoles show to gateways, and what tickets of sockets are signed with."""
METRICS_TOKEN = environ.text("METRICS_TOKEN", "")
"""What Prometheus shows to read /metrics; nobody may where it is not set."""
RECEIPT_KEY = environ.secret("RECEIPT_KEY")
"""Seed of the Ed25519 key that signs usage receipts."""

# --- Serving -------------------------------------------------------------------------------------
DEBUG = environ.boolean("DEBUG", False)
ALLOWED_HOSTS = environ.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = environ.words("CSRF_TRUSTED_ORIGINS")
API_URL = environ.base_url("API_URL", "http://127.0.0.1:8000")
"""Under which clients and pages reach the API: the gateways, or what stands before them."""
CONSOLE_URL = environ.base_url("CONSOLE_URL", "http://127.0.0.1:8001")
"""Under which people reach the console; the same as API_URL where an ingress tells them apart."""
CONSOLE_INTERNAL_URL = environ.base_url("CONSOLE_INTERNAL_URL", CONSOLE_URL)
"""Under which gateways reach a console, for what it answers under the API's address."""
GATEWAY_URL = environ.text("GATEWAY_URL", "http://127.0.0.1:8000")
"""The base URL under which agents, workers and consoles reach this gateway process."""
MAX_REQUEST_BYTES = environ.size("MAX_REQUEST_BYTES", 8 << 20)
REQUEST_TIMEOUT_S = environ.integer("REQUEST_TIMEOUT_S", 600, low=1)

# --- Limits and bills ----------------------------------------------------------------------------
REDIS_URL = environ.text("REDIS_URL", "")
LIMITS_WITHOUT_REDIS = environ.choice("LIMITS_WITHOUT_REDIS", ["local", "refuse"], "local")
"""While Redis is away: each gateway process counts for itself, or requests are refused."""
CURRENCY = environ.text("CURRENCY", "usd")

# --- Adapters ------------------------------------------------------------------------------------
MAX_ADAPTER_BYTES = environ.size("MAX_ADAPTER_BYTES", 2 << 30)
MAX_TENANT_UPLOADS = environ.integer("MAX_TENANT_UPLOADS", 16, low=1)
MAX_TENANT_UPLOAD_BYTES = environ.size("MAX_TENANT_UPLOAD_BYTES", 8 << 30)
"""What a tenant may have under way in uploads that are not versions yet."""
UPLOAD_WAIT_S = environ.integer("UPLOAD_WAIT_S", 30)
"""How long a request waits for what a worker says of its upload, before it is answered 202."""
CHECK_CPU_S = environ.integer("CHECK_CPU_S", 20, low=1)
CHECK_TIME_S = environ.integer("CHECK_TIME_S", 120, low=1)
"""What reading an upload, and checking it, may take each, for every GiB that was begun."""
CHECK_MEMORY_BYTES = environ.size("CHECK_MEMORY_BYTES", 1 << 30)
FILE_UPLOAD_TEMP_DIR = environ.text("UPLOAD_DIR", str(VAR / "uploads"))
os.makedirs(FILE_UPLOAD_TEMP_DIR, exist_ok=True)
FILE_UPLOAD_HANDLERS = ["tenants.adapters.uploads.receiving.BoundedUploadHandler"]
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
_S3_BUCKET = environ.text("ADAPTER_S3_BUCKET", "")
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "adapters": {
        "BACKEND": "storages.backends.s3.S3Storage",
        "OPTIONS": {
            "bucket_name": _S3_BUCKET,
            "endpoint_url": environ.text("ADAPTER_S3_ENDPOINT", "") or None,
            "region_name": environ.text("ADAPTER_S3_REGION", "") or None,
            "file_overwrite": False,
            "max_memory_size": 1 << 20,  # larger files are read through a temporary file
        },
    }
    if _S3_BUCKET
    else {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": str(VAR / "adapters")},
    },
    "staticfiles": {"BACKEND": "gateway.storage.HashedStaticFiles"},
}
MEDIA_ROOT = str(VAR / "media")

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
    "gateway.middleware.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gateway.middleware.Audited",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "gateway.middleware.ContentPolicy",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.planes.control.application"
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
DATABASES = {"default": parse_url(environ.text("DATABASE_URL"))}
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
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "console"
ACCOUNT_ADAPTER = "frontend.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # an invitation came by a way that its sender trusts
ACCOUNT_USERNAME_MIN_LENGTH = 2
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Lorikeet"
SOCIALACCOUNT_ADAPTER = "frontend.accounts.SocialAccountAdapter"
SOCIALACCOUNT_EMAIL_AUTHENTICATION = SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_ONLY = False
_OIDC_ISSUER = environ.text("OIDC_ISSUER", "")
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": environ.text("OIDC_NAME", "Single sign-on"),
                "client_id": environ.text("OIDC_CLIENT_ID"),
                "secret": environ.text("OIDC_CLIENT_SECRET"),
                "settings": {"server_url": _OIDC_ISSUER.rstrip("/")},
            }
        ]
        if _OIDC_ISSUER
        else [],
    }
}
# Counts of failed sign-ins, for all gateways where there is a Redis.
CACHES = {
    "default": {"BACKEND": "gateway.cache.FailoverCache", "LOCATION": REDIS_URL}
    if REDIS_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
EMAIL_HOST = environ.text("EMAIL_HOST", "")
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend"
EMAIL_PORT = environ.integer("EMAIL_PORT", 25, low=1, high=65535)
EMAIL_HOST_USER = environ.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = environ.text("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = environ.boolean("EMAIL_USE_TLS", False)
DEFAULT_FROM_EMAIL = environ.text("EMAIL_FROM", "lorikeet@localhost")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = environ.boolean("SECURE_COOKIES", False)
# The redirect URI of single sign-on and links in mails, where a proxy ends TLS.
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if SESSION_COOKIE_SECURE else "http"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = VAR / "static"
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
    "DESCRIPTION": "`/api/v1` manages tenants; `/v1` is OpenAI's API, for programs that generate.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.complete",
    ],
}

# --- Logging -------------------------------------------------------------------------------------
LOG_LEVEL = environ.choice("LOG_LEVEL", ["debug", "info", "warning", "error"], "info")
LOGGING_CONFIG = None  # `inference.logs.configure`, called by each process at its start
