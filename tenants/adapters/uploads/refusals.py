"""Why an upload is refused before anything of it is kept: a stable code and an HTTP status.

Free of Django: the child processes that read uploads raise these as well.
"""

from __future__ import annotations

from enum import StrEnum

from tenants.sizes import size


class UploadRefusal(StrEnum):
    """Part of the API: a code is never renamed or reused."""

    NOT_MULTIPART = "not_multipart"
    FILE_MISSING = "file_missing"
    ADAPTERS_SEVERAL = "adapters_several"
    FILE_DUPLICATE = "file_duplicate"
    PICKLE_REFUSED = "pickle_refused"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    ARCHIVE_INVALID = "archive_invalid"
    ARCHIVE_UNSUPPORTED = "archive_unsupported"
    ARCHIVE_ENCRYPTED = "archive_encrypted"
    ARCHIVE_PATH_REFUSED = "archive_path_refused"
    ARCHIVE_MEMBER_REFUSED = "archive_member_refused"
    ARCHIVE_BOMB = "archive_bomb"
    ARCHIVE_CROWDED = "archive_crowded"
    SHARDS_INVALID = "shards_invalid"
    WEIGHTS_NOT_SAFETENSORS = "weights_not_safetensors"
    CONFIG_NOT_JSON = "config_not_json"
    CHECK_LIMIT_EXCEEDED = "check_limit_exceeded"
    CHECKS_FAILED = "checks_failed"
    NAME_INVALID = "name_invalid"
    ADAPTER_DELETED = "adapter_deleted"
    BASE_MODEL_UNKNOWN = "base_model_unknown"
    BASE_MODEL_AMBIGUOUS = "base_model_ambiguous"
    BASE_MODEL_MISMATCH = "base_model_mismatch"
    BASE_MODEL_UNCONFIRMED = "base_model_unconfirmed"
    BASE_MODEL_DIFFERS = "base_model_differs"
    TENANT_SUSPENDED = "tenant_suspended"
    VERSION_UNSUPPORTED = "tus_version_unsupported"
    HEADER_UNUSABLE = "tus_header_invalid"
    FIELD_INVALID = "field_invalid"
    CONTENT_TYPE_UNSUPPORTED = "content_type_unsupported"
    OFFSET_MISMATCH = "offset_mismatch"
    TOO_MANY_UPLOADS = "too_many_uploads"
    TOO_MANY_PIECES = "too_many_pieces"
    STORAGE_FULL = "storage_full"
    STORAGE_AWAY = "storage_unavailable"
    QUOTA_EXCEEDED = "storage_quota_exceeded"
    COMMIT_INVALID = "commit_invalid"
    NOTHING_TO_KEEP = "nothing_to_keep"
    OBJECT_MISSING = "object_missing"
    OBJECT_DIFFERS = "object_differs"


STATUS = {
    UploadRefusal.NOT_MULTIPART: 415,
    UploadRefusal.PAYLOAD_TOO_LARGE: 413,
    UploadRefusal.ADAPTER_DELETED: 409,
    UploadRefusal.TENANT_SUSPENDED: 403,
    UploadRefusal.VERSION_UNSUPPORTED: 412,
    UploadRefusal.CONTENT_TYPE_UNSUPPORTED: 415,
    UploadRefusal.OFFSET_MISMATCH: 409,
    UploadRefusal.TOO_MANY_UPLOADS: 429,
    UploadRefusal.QUOTA_EXCEEDED: 403,
    UploadRefusal.STORAGE_FULL: 507,
    UploadRefusal.STORAGE_AWAY: 503,
}
"""HTTP status by code; 400 for all others."""


class UploadRefused(Exception):
    """The upload is at fault. The message names the value and what is allowed.

    `wait` is the number of seconds after which to try again, sent as Retry-After.
    """

    def __init__(self, code: UploadRefusal, message: str, wait: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.wait = code, message, wait

    @property
    def status_code(self) -> int:
        return STATUS.get(self.code, 400)


def too_large(max_bytes: int) -> UploadRefused:
    return UploadRefused(
        UploadRefusal.PAYLOAD_TOO_LARGE,
        f"The adapter exceeds this server's limit of {size(max_bytes)}.",
    )
