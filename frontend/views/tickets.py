"""`POST /tickets`: issues the tickets with which pages open websockets on the gateways."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from frontend.live.tail import audience
from frontend.sockets import tickets
from frontend.sockets.tickets import Ticket, TicketSigner, session_digest
from tenants.api import second_factor
from tenants.models import ApiKey, AuditEntry, User
from tenants.models.audit import acting, actor_of
from tenants.permissions import Caller, Permission

MAX_OWN = 200
"""Maximum number of own keys, the newest, whose requests a user is told of; kept in the ticket."""


class TicketRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The socket that a page wants to open; without a `tenant`, for the whole installation."""

    purpose: str
    tenant: str = ""


_requests = msgspec.json.Decoder(TicketRequest)


@require_POST
def ticket(request: HttpRequest) -> JsonResponse:
    """Issue a ticket to open or renew one socket; on 401 the page must sign in, on 403 give up."""
    if not isinstance(request.user, User):
        return JsonResponse({"detail": "You are not signed in."}, status=401)
    try:
        asked = _requests.decode(request.body)
        granted = GRANTS[asked.purpose](request, request.user, asked.tenant)
    except (msgspec.DecodeError, RecursionError, KeyError):
        return JsonResponse({"detail": "There is no such socket."}, status=400)
    except PermissionDenied as denied:
        return JsonResponse({"detail": str(denied)}, status=403)
    session = session_digest(request.session.session_key or "")
    granted = msgspec.structs.replace(
        granted,
        session=session,
        staff=request.user.is_staff,
        second_factor=not second_factor.is_missing(request),
    )
    signer = TicketSigner(settings.INTERNAL_TOKEN)
    return JsonResponse({"ticket": signer.issue(granted, time.time())})


def playground(request: HttpRequest, user: User, slug: str) -> Ticket:
    """A ticket to use the playground. Creates the key to which this person's use is billed if there
    is none, and logs an operator's visit."""
    caller = _caller(request, user, slug)
    caller.require(Permission.USE_PLAYGROUND)
    actor = actor_of(request)
    assert actor is not None
    with acting(actor):
        ApiKey.objects.playground_of(user, caller.tenant)
    if caller.role is None:
        AuditEntry.objects.note(actor, caller.tenant, "used playground", slug)
    return _of_tenant(tickets.PLAYGROUND, caller)


def live(request: HttpRequest, user: User, slug: str) -> Ticket:
    """A ticket for live updates, of a tenant or of the whole installation."""
    if slug:
        caller = _caller(request, user, slug)
        return _of_tenant(tickets.LIVE, caller, audience_of(caller))
    if not user.is_staff:
        raise PermissionDenied("Only operators see the whole installation.")
    return Ticket(purpose=tickets.LIVE, user_id=user.pk)


GRANTS: Mapping[str, Callable[[HttpRequest, User, str], Ticket]] = {
    tickets.PLAYGROUND: playground,
    tickets.LIVE: live,
}


def audience_of(caller: Caller) -> str:
    """Whose requests the caller is told of: everybody's, or only those made with their own keys."""
    if caller.may(Permission.READ_USAGE):
        return audience(None)
    own = caller.tenant.keys.filter(created_by=caller.user, revoked_at=None).order_by("-pk")
    return audience(own.values_list("pk", flat=True)[:MAX_OWN])


def _caller(request: HttpRequest, user: User, slug: str) -> Caller:
    caller = Caller.of_user(user, slug)
    if caller is None:
        raise PermissionDenied("There is no such tenant.")
    if second_factor.closes(request, caller.tenant):
        raise PermissionDenied(second_factor.refusal(caller.tenant))
    return caller


def _of_tenant(purpose: str, caller: Caller, audience: str = "") -> Ticket:
    assert caller.user is not None
    return Ticket(
        purpose=purpose,
        user_id=caller.user.pk,
        tenant_id=caller.tenant.pk,
        slug=caller.tenant.slug,
        audience=audience,
        claims={"may": sorted(one.name for one in Permission if caller.may(one))},
        role=caller.role or "",
    )
