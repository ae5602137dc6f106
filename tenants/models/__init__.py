"""Who may do what, what they own, and what it cost. The rules are here and in the database."""

from tenants.models.accounts import Membership, Role, Tenant, User
from tenants.models.adapters import LIVE, Adapter, AdapterVersion, Alias, BaseModel, State
from tenants.models.keys import ApiKey, Scope
from tenants.models.processes import GatewayProcess
from tenants.models.usage import UsageEvent

__all__ = [
    "LIVE",
    "Adapter",
    "AdapterVersion",
    "Alias",
    "ApiKey",
    "BaseModel",
    "GatewayProcess",
    "Membership",
    "Role",
    "Scope",
    "State",
    "Tenant",
    "UsageEvent",
    "User",
]
