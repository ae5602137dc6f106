"""Errors raised when a rule of tenants forbids a change. The management API answers 409."""

from __future__ import annotations

from typing import ClassVar


class Refused(Exception):
    """The state of things does not allow this."""

    code: ClassVar[str] = "conflict"

    def __init__(self, message: str | None = None) -> None:
        """`message` defaults to the class's docstring."""
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)


class LastOwner(Refused):
    """A tenant keeps at least one owner: make another member owner first."""

    code = "last_owner"


class LastOperator(Refused):
    """The installation keeps at least one operator who can sign in: make another one first."""

    code = "last_operator"


class VersionNotReady(Refused):
    """Only a version that is ready, of the same adapter, can be promoted."""

    code = "version_not_ready"


class VersionInUse(Refused):
    """An alias points at this version: promote another one or delete the alias first."""

    code = "version_in_use"


class AdapterInUse(Refused):
    """An alias of this adapter still points at a version: delete the alias first."""

    code = "adapter_in_use"


class NothingToRollBackTo(Refused):
    """The alias has no earlier version that is still ready."""

    code = "nothing_to_roll_back_to"


class IllegalTransition(Refused):
    """The version's state does not allow this."""

    code = "illegal_transition"


class KeyRevoked(Refused):
    """A revoked key stays as it was."""

    code = "key_revoked"


class CredentialRevoked(Refused):
    """A revoked credential stays as it was: make another one."""

    code = "credential_revoked"


class CredentialExists(Refused):
    """Another engine's credential has this name."""

    code = "credential_exists"


class AlreadyDecided(Refused):
    """This entry was billed or dismissed already."""

    code = "already_decided"


class NotBillable(Refused):
    """The ledger cannot take this entry: dismiss it."""

    code = "not_billable"


class PriceInForce(Refused):
    """A price that has come into force stays, for the bills made with it: set a later one."""

    code = "price_in_force"


class InvitationOver(Refused):
    """This invitation was accepted or withdrawn, or has expired: ask for a new one."""

    code = "invitation_over"


class TooManyInvitations(Refused):
    """There are as many open invitations as a tenant may have: withdraw some first."""

    code = "too_many_invitations"


class ConversationChanged(Refused):
    """This conversation was changed elsewhere, perhaps in another tab: load it again."""

    code = "conversation_changed"


class ContentUnavailable(Refused):
    """This installation has no key (CONTENT_KEY) to encrypt content by: ask its operator."""

    code = "content_unavailable"


class NoContentKey(Refused):
    """There is no key to destroy: nothing is kept."""

    code = "no_content_key"


class TooManyTargets(Refused):
    """There are as many webhooks as there may be: remove some first."""

    code = "too_many_webhooks"


class TooManyConversations(Refused):
    """There are as many conversations as one may keep: delete some first."""

    code = "too_many_conversations"


class TooManySaved(Refused):
    """There are as many of its kind as one may have: delete some first."""

    code = "too_many_saved"


class ConversationTooLarge(Refused):
    """The conversation is too large to be kept: begin a new one."""

    code = "conversation_too_large"


class RevisionInRollout(Refused):
    """A rollout moves tenants to this revision: pause or end that instead."""

    code = "revision_in_rollout"


class RolloutUnderWay(Refused):
    """A rollout of this base model is under way: end it first."""

    code = "rollout_under_way"


class NotRollable(Refused):
    """This revision cannot be rolled out."""

    code = "not_rollable"


class IllegalRolloutStep(Refused):
    """The rollout's state does not allow this."""

    code = "illegal_rollout_step"
