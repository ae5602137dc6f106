"""Saved conversations: the list, saving from the playground, reading shared ones.

The page's script saves with JSON requests; everything else is pages and forms.
"""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from frontend import bulk
from frontend.lists import id_in_url, older_than, page_of, words_of
from frontend.pages import member_to_save, refusals_as_messages, tenant_page
from frontend.playground import saved
from frontend.playground.saved import Draft
from frontend.views.playground.playground import show
from inference.errors import InferenceError, PayloadTooLarge
from tenants.errors import Refused
from tenants.models import AuditEntry, Conversation
from tenants.models.audit import actor_of
from tenants.models.saved.conversations import MAX_BYTES, MAX_CONVERSATIONS, MAX_TITLE
from tenants.permissions import Caller, Permission

TITLE_CHARS = 60
"""Length of a title taken from the first message."""

DELETE = bulk.Action(
    "Delete",
    "Delete the selected conversations?",
    "This cannot be undone. Links of shared ones stop working.",
)

playground_page = tenant_page(Permission.USE_PLAYGROUND)


class TitleForm(forms.Form):
    """A new title."""

    title = forms.CharField(max_length=MAX_TITLE)


@playground_page
def conversations(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    """The caller's own conversations, last used first; POST saves a new one."""
    if request.method == "POST":
        return _keep(request, caller)
    found = Conversation.objects.of(caller.tenant, caller.user).defer("panes")
    count = found.count()
    if words := words_of(request):
        found = found.filter(title__icontains=words)
    if (before := id_in_url(request, "before")) is not None:
        found = older_than(found, get_object_or_404(found, pk=before), "updated_at")
    rows, last = page_of(found)
    context = {
        "conversations": rows,
        "last": last,
        "words": words,
        "count": count,
        "most": MAX_CONVERSATIONS,
        "bulk": [DELETE.of("playground-delete-some", caller.tenant.slug)],
    }
    return render(request, "playground/conversations.html", context)


@require_GET
@playground_page
def conversation(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Open one of the caller's own in the playground."""
    return show(request, caller, _own(caller, pk))


@require_POST
@playground_page
def save(request: HttpRequest, caller: Caller, pk: int) -> HttpResponseBase:
    """Replace the saved conversation with the page's."""
    kept = _own(caller, pk)
    try:
        draft = _draft(request)
        kept.update(draft.encoded(), draft.revision)
    except (InferenceError, Refused) as error:
        return _refusal(error)
    return JsonResponse({"revision": kept.revision})


@require_POST
@playground_page
def rename(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Change the title."""
    kept, form = _own(caller, pk), TitleForm(request.POST)
    if form.is_valid():
        kept.rename(form.cleaned_data["title"])
        messages.success(request, "Conversation renamed.")
    else:
        messages.error(request, f"A title has 1 to {MAX_TITLE} characters.")
    return _back(request, caller, kept)


@require_POST
@playground_page
def delete(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete it, together with its shared link."""
    _own(caller, pk).delete()
    messages.success(request, "Conversation deleted.")
    return redirect("playground-conversations", caller.tenant.slug)


@require_POST
@playground_page
def delete_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Delete the chosen ones of the caller's own."""

    def one(id: str) -> None:
        _own(caller, bulk.number(id)).delete()

    bulk.act(request, one, "conversation,conversations", "deleted")
    return redirect("playground-conversations", caller.tenant.slug)


@require_POST
@playground_page
def share(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Share it with the other members of the tenant."""
    kept = _own(caller, pk)
    kept.share()
    return redirect(reverse("playground-conversation", args=[caller.tenant.slug, pk]) + "?shared")


@require_POST
@playground_page
def unshare(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Stop sharing it: its link no longer works."""
    kept = _own(caller, pk)
    kept.unshare()
    messages.success(request, "The conversation is private again. Its link no longer works.")
    return _back(request, caller, kept)


@require_GET
@playground_page
def shared(request: HttpRequest, caller: Caller, link: UUID) -> HttpResponse:
    """Read a shared conversation of this tenant; visits of operators are logged."""
    kept = _shared(caller, link)
    if caller.role is None and (actor := actor_of(request)) is not None:
        AuditEntry.objects.note(actor, caller.tenant, "read conversation", str(kept.pk))
    return show(request, caller, kept, read_only=True)


@require_POST
@playground_page
def copy(request: HttpRequest, caller: Caller, link: UUID) -> HttpResponse:
    """Copy a shared conversation into a new one of the caller's own."""
    kept = _shared(caller, link)
    member = member_to_save(caller, "conversations")
    with refusals_as_messages(request):
        own = Conversation.objects.keep(member, kept.title, kept.panes)
        messages.success(request, "This is your copy. The original is unchanged.")
        return redirect("playground-conversation", caller.tenant.slug, own.pk)
    return redirect("playground-shared", caller.tenant.slug, link)


def _keep(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    member = member_to_save(caller, "conversations")
    try:
        draft = _draft(request)
        kept = Conversation.objects.keep(member, _title(draft), draft.encoded())
    except (InferenceError, Refused) as error:
        return _refusal(error)
    url = reverse("playground-conversation", args=[caller.tenant.slug, kept.pk])
    made = {"url": url, "revision": kept.revision, "title": kept.title}
    return JsonResponse(made, status=201)


def _draft(request: HttpRequest) -> Draft:
    try:
        body = request.body
    except RequestDataTooBig:
        raise PayloadTooLarge(f"A conversation can have at most {MAX_BYTES // 1024} KiB.") from None
    return saved.decode(body)


def _title(draft: Draft) -> str:
    """The given title, else the beginning of the conversation."""
    contents = (node.content for pane in draft.panes for node in pane.nodes)
    if title := " ".join(draft.title.replace("\0", "").split()):
        return title[:MAX_TITLE]
    words = " ".join(next(contents, "").replace("\0", "").split())
    cut = words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…"
    return cut or "Conversation"


def _refusal(error: InferenceError | Refused) -> JsonResponse:
    status = error.http_status if isinstance(error, InferenceError) else 409
    return JsonResponse({"code": error.code, "message": error.message}, status=status)


def _own(caller: Caller, pk: int) -> Conversation:
    found = Conversation.objects.of(caller.tenant, caller.user).select_related("member__user")
    return get_object_or_404(found, pk=pk)


def _shared(caller: Caller, link: UUID) -> Conversation:
    if (kept := Conversation.objects.shared_in(caller.tenant, link)) is None:
        raise Http404
    return kept


def _back(request: HttpRequest, caller: Caller, kept: Conversation) -> HttpResponse:
    """Redirect to the list if the form was there, else to the conversation."""
    if "list" in request.POST:
        return redirect("playground-conversations", caller.tenant.slug)
    return redirect("playground-conversation", caller.tenant.slug, kept.pk)
