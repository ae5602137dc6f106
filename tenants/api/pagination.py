from __future__ import annotations

from rest_framework.pagination import PageNumberPagination


class Pages(PageNumberPagination):
    """`?page=2&limit=50`: a list comes in pages of at most 200."""

    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
