"""Errors raised when a rule of tenants forbids a change. The management API answers 409."""

from __future__ import annotations

from typing import ClassVar


class Refused(Exception):
    """The current state does not allow this."""

    code: ClassVar[str] = "conflict"

    def __init__(self, message: str | None = None) -> None:
        """`message` defaults to the class's docstring."""
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)


class LastOwner(Refused):
    """A tenant must have at least one owner. Make another member an owner first."""

    code = "last_owner"


class LacksSecondFactor(Refused):
    """Set up a second factor for your own account first: you could not open the tenant without."""

    code = "second_factor_required"


class LastOperator(Refused):
    """The installation must have at least one operator who can sign in. Add another one first."""

    code = "last_operator"


class VersionNotReady(Refused):
    """Only a ready version of the same adapter can be promoted."""

    code = "version_not_ready"


class EvalMissed(Refused):
    """The version has not reached what the alias requires in an eval."""

    code = "eval_missed"


class EvalNotStarted(Refused):
    """The eval that the alias requires cannot be run now."""

    code = "eval_not_started"


class VersionInUse(Refused):
    """An alias points at this version, or a running split uses it. Promote another version, delete
    the alias or end the split first."""

    code = "version_in_use"


class AdapterInUse(Refused):
    """An alias of this adapter still points at a version. Delete the alias first."""

    code = "adapter_in_use"


class NothingToRollBackTo(Refused):
    """The alias has no earlier version that is still ready."""

    code = "nothing_to_roll_back_to"


class IllegalTransition(Refused):
    """The version's state does not allow this."""

    code = "illegal_transition"


class SplitRunning(Refused):
    """The alias already has a split. End it first."""

    code = "split_running"


class SplitEnded(Refused):
    """The split has ended."""

    code = "split_ended"


class RouteBeingFitted(Refused):
    """The route is being fitted already. Wait until that has ended."""

    code = "route_being_fitted"


class RouteNotGaining(Refused):
    """The route can't be turned on: its last fit gains nothing, or there is none."""

    code = "route_not_gaining"


class TooManyRoutes(Refused):
    """The tenant has the maximum number of routes. Delete one first."""

    code = "too_many_routes"


class KeyRevoked(Refused):
    """A revoked key cannot be changed."""

    code = "key_revoked"


class CredentialRevoked(Refused):
    """A revoked credential cannot be changed. Create another one."""

    code = "credential_revoked"


class CredentialExists(Refused):
    """Another engine credential already has this name."""

    code = "credential_exists"


class AlreadyDecided(Refused):
    """This entry has already been billed or dismissed."""

    code = "already_decided"


class NotBillable(Refused):
    """The ledger cannot accept this entry. Dismiss it."""

    code = "not_billable"


class PriceInForce(Refused):
    """A price in force cannot be withdrawn, because bills use it. Set a later price instead."""

    code = "price_in_force"


class InvitationOver(Refused):
    """This invitation was accepted or withdrawn, or it has expired. Ask for a new one."""

    code = "invitation_over"


class TooManyInvitations(Refused):
    """The tenant has the maximum number of open invitations. Withdraw some first."""

    code = "too_many_invitations"


class ConversationChanged(Refused):
    """This conversation was changed elsewhere, perhaps in another tab. Reload it."""

    code = "conversation_changed"


class ContentUnavailable(Refused):
    """This installation has no key to encrypt content with: ask its operator to set
    LORIKEET_CONTENT_KEY."""

    code = "content_unavailable"


class NoContentKey(Refused):
    """There is no key to destroy, because nothing is stored."""

    code = "no_content_key"


class ExportUnderWay(Refused):
    """An export of this tenant is already being written. Wait until it is finished."""

    code = "export_under_way"


class TenantBeingDeleted(Refused):
    """This tenant is to be deleted, or was. Take the deletion back first, if that is possible."""

    code = "tenant_being_deleted"


class NotBeingDeleted(Refused):
    """Nobody has asked for the deletion of this tenant."""

    code = "not_being_deleted"


class DeletionBegun(Refused):
    """The deletion has begun and cannot be taken back."""

    code = "deletion_begun"


class NotDeletable(Refused):
    """The installation checks itself as this tenant. It cannot be deleted."""

    code = "not_deletable"


class TooManyRules(Refused):
    """The maximum number of alert rules is reached. Delete one first."""

    code = "too_many_alert_rules"


class TooManyAnnotations(Refused):
    """The request or the tenant has the maximum number of tags or scores. Delete some first."""

    code = "too_many_annotations"


class TooManyTests(Refused):
    """At most 5 test events are sent in a minute. Try again in a minute."""

    code = "too_many_tests"


class WebhookGone(Refused):
    """The webhook answered 410, so nothing is sent to it. Remove it and add it again."""

    code = "webhook_gone"


class TooManyTargets(Refused):
    """The maximum number of webhooks is reached. Delete some first."""

    code = "too_many_webhooks"


class TooManyConversations(Refused):
    """The maximum number of conversations is reached. Delete some first."""

    code = "too_many_conversations"


class TooManySaved(Refused):
    """The maximum number of items of this kind is reached. Delete some first."""

    code = "too_many_saved"


class ConversationTooLarge(Refused):
    """The conversation is too large to be stored. Start a new one."""

    code = "conversation_too_large"


class RevisionInRollout(Refused):
    """A rollout is moving tenants to this revision. Pause or end the rollout instead."""

    code = "revision_in_rollout"


class RolloutUnderWay(Refused):
    """A rollout of this base model is in progress. End it first."""

    code = "rollout_under_way"


class NotRollable(Refused):
    """This revision cannot be rolled out."""

    code = "not_rollable"


class IllegalRolloutStep(Refused):
    """The rollout's state does not allow this."""

    code = "illegal_rollout_step"
