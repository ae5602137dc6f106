"""Who may do what, what they own, and what it cost. The rules are here and in the database."""

from tenants.models.accounts import Membership, Role, Tenant, User
from tenants.models.adapters import Adapter, AdapterVersion, Alias, BaseModel, State
from tenants.models.answers import IdempotentAnswer
from tenants.models.audit import AuditActor, AuditEntry
from tenants.models.content import ContentKey, StoredContent
from tenants.models.conversations import Conversation
from tenants.models.fleet.engines import EngineCredential
from tenants.models.fleet.isolation import IsolationCheck
from tenants.models.fleet.pools import PoolRevision, RevisionMinute, Standing, Trial
from tenants.models.fleet.processes import GatewayProcess
from tenants.models.fleet.quarantine import QuarantinedEntry
from tenants.models.fleet.rollouts import Rollout, RolloutState, RolloutTenant, Turn
from tenants.models.invitations import Invitation
from tenants.models.keys import ApiKey, Lane, Scope
from tenants.models.limits import LimitScope, LimitSet
from tenants.models.notifications import Delivery, Muted, Notification, Target
from tenants.models.outcomes import (
    RefusedRequest,
    RequestHour,
    RequestMinute,
    TotalHour,
    TotalMinute,
)
from tenants.models.uploads import UploadSession
from tenants.models.usage import (
    EngineJournal,
    Price,
    SupersededAttempt,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageSum,
)
from tenants.naming import LIVE

__all__ = [
    "LIVE",
    "Adapter",
    "AdapterVersion",
    "Alias",
    "ApiKey",
    "AuditActor",
    "AuditEntry",
    "BaseModel",
    "ContentKey",
    "Conversation",
    "Delivery",
    "EngineCredential",
    "EngineJournal",
    "GatewayProcess",
    "IdempotentAnswer",
    "Invitation",
    "IsolationCheck",
    "Lane",
    "LimitScope",
    "LimitSet",
    "Membership",
    "Muted",
    "Notification",
    "PoolRevision",
    "Price",
    "QuarantinedEntry",
    "RefusedRequest",
    "RequestHour",
    "RequestMinute",
    "RevisionMinute",
    "Role",
    "Rollout",
    "RolloutState",
    "RolloutTenant",
    "Scope",
    "Standing",
    "State",
    "StoredContent",
    "SupersededAttempt",
    "Target",
    "Tenant",
    "TotalHour",
    "TotalMinute",
    "Trial",
    "Turn",
    "UploadSession",
    "UsageEvent",
    "UsageMonth",
    "UsageRollup",
    "UsageSum",
    "User",
]
