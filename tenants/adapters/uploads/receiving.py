"""Writes the files of a request to disk without parsing them, and bounds their size meanwhile."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import TemporaryFileUploadHandler

from tenants.adapters.uploads.refusals import too_large


class BoundedUploadHandler(TemporaryFileUploadHandler):
    """Streams each file of a request to a temporary file; one over the limit ends the request.

    Raises:
        UploadRefused: the files together are larger than MAX_ADAPTER_BYTES.
    """

    chunk_size = 256 << 10

    def __init__(self, request: Any = None) -> None:
        super().__init__(request)
        self.received_bytes = 0

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        os.makedirs(settings.FILE_UPLOAD_TEMP_DIR, exist_ok=True)
        super().new_file(*args, **kwargs)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.received_bytes += len(raw_data)
        if self.received_bytes > settings.MAX_ADAPTER_BYTES:
            self.file.close()
            raise too_large(settings.MAX_ADAPTER_BYTES)
        super().receive_data_chunk(raw_data, start)
