"""The documentation, for everybody who is signed in."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from frontend import documents
from frontend.pages import signed_in


@require_GET
@signed_in
def document(request: HttpRequest, document: str = documents.INDEX) -> HttpResponse:
    """One document, beside the list of all."""
    try:
        shown = documents.document(document)
    except KeyError as unknown:
        raise Http404 from unknown
    return render(request, "document.html", {"document": shown, "groups": documents.contents()})
