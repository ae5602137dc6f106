"""Tenants, users, and what they own and use. Rules are enforced here and in the database."""

from tenants.models.accounts import Membership, Role, Tenant, User
from tenants.models.adapters import Adapter, AdapterVersion, Alias, BaseModel, State
from tenants.models.alerts import AlertRule
from tenants.models.annotations import RequestScore, RequestTag
from tenants.models.answers import IdempotentAnswer
from tenants.models.audit import AuditActor, AuditEntry
from tenants.models.background import BackgroundResponse
from tenants.models.batches import Batch, BatchLine
from tenants.models.content import ContentKey, StoredContent
from tenants.models.evals import Eval, EvalItem, EvalRun
from tenants.models.files import Purpose, StoredFile, Upload, UploadPart
from tenants.models.fleet.engine_hours import EngineHour
from tenants.models.fleet.engines import EngineCredential
from tenants.models.fleet.isolation import IsolationCheck
from tenants.models.fleet.pools import PoolRevision, RevisionMinute, Standing, Trial
from tenants.models.fleet.processes import GatewayProcess
from tenants.models.fleet.quarantine import QuarantinedEntry
from tenants.models.fleet.rollouts import Rollout, RolloutState, RolloutTenant, Turn
from tenants.models.gates import PromotionGate
from tenants.models.invitations import Invitation
from tenants.models.keys import ApiKey, Lane, Scope
from tenants.models.limits import LimitScope, LimitSet
from tenants.models.notifications import Delivery, Muted, Notification, ReadMark, Target
from tenants.models.offboarding import TenantDeletion, TenantExport
from tenants.models.routes import Route
from tenants.models.saved.conversations import Conversation
from tenants.models.saved.prompts import PromptSet, SavedPrompt
from tenants.models.saved.views import SavedView
from tenants.models.saved.votes import SetRun
from tenants.models.splits import Split, SplitRequest, SplitState
from tenants.models.tuning import FineTuningJob, TuningCheckpoint, TuningEvent
from tenants.models.uploads import UploadChunk, UploadSession
from tenants.models.usage.ledger import EngineJournal, SupersededAttempt, UsageEvent
from tenants.models.usage.outcomes import (
    RefusedRequest,
    RequestHour,
    RequestMinute,
    TotalHour,
    TotalMinute,
)
from tenants.models.usage.prices import Price, Tier
from tenants.models.usage.sums import UsageMonth, UsageRollup, UsageSum
from tenants.models.usage.totals import TenantSum, UsageTotal
from tenants.naming import LIVE

__all__ = [
    "LIVE",
    "Adapter",
    "AdapterVersion",
    "AlertRule",
    "Alias",
    "ApiKey",
    "AuditActor",
    "AuditEntry",
    "BackgroundResponse",
    "BaseModel",
    "Batch",
    "BatchLine",
    "ContentKey",
    "Conversation",
    "Delivery",
    "EngineCredential",
    "EngineHour",
    "EngineJournal",
    "Eval",
    "EvalItem",
    "EvalRun",
    "FineTuningJob",
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
    "PromotionGate",
    "PromptSet",
    "Purpose",
    "QuarantinedEntry",
    "ReadMark",
    "RefusedRequest",
    "RequestHour",
    "RequestMinute",
    "RequestScore",
    "RequestTag",
    "RevisionMinute",
    "Role",
    "Rollout",
    "RolloutState",
    "RolloutTenant",
    "Route",
    "SavedPrompt",
    "SavedView",
    "Scope",
    "SetRun",
    "Split",
    "SplitRequest",
    "SplitState",
    "Standing",
    "State",
    "StoredContent",
    "StoredFile",
    "SupersededAttempt",
    "Target",
    "Tenant",
    "TenantDeletion",
    "TenantExport",
    "TenantSum",
    "Tier",
    "TotalHour",
    "TotalMinute",
    "Trial",
    "TuningCheckpoint",
    "TuningEvent",
    "Turn",
    "Upload",
    "UploadChunk",
    "UploadPart",
    "UploadSession",
    "UsageEvent",
    "UsageMonth",
    "UsageRollup",
    "UsageSum",
    "UsageTotal",
    "User",
]
