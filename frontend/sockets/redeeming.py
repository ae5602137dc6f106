"""Accepts each ticket once over all gateways: one statement in PostgreSQL, without the ORM."""

from __future__ import annotations

from frontend.sockets.tickets import BadTicket, Ticket
from tenants.database import Database

# Permissions are checked in the same statement: no further notice would come for a change between
# the ticket's issue and its use.
REDEEM = """
INSERT INTO tenants_usedticket (id)
SELECT %(id)s FROM tenants_user u
LEFT JOIN tenants_membership m ON m.user_id = u.id AND m.tenant_id = %(tenant_id)s
LEFT JOIN tenants_tenant t ON t.id = %(tenant_id)s
WHERE u.id = %(user_id)s AND u.is_active AND u.is_staff = %(staff)s
  AND coalesce(m.role, '') = %(role)s
  AND (%(second_factor)s OR NOT coalesce(t.second_factor_required, false))
ON CONFLICT DO NOTHING
"""


class PostgresRedeemer:
    """`frontend.sockets.tickets.Redeemer`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def redeem(self, ticket: Ticket) -> None:
        """See `frontend.sockets.tickets.Redeemer`."""
        values = {
            "id": ticket.id,
            "user_id": ticket.user_id,
            "tenant_id": ticket.tenant_id,
            "staff": ticket.staff,
            "role": ticket.role,
            "second_factor": ticket.second_factor,
        }
        if not await self._database.execute(REDEEM, values):
            raise BadTicket("it was taken before, or the rights of its holder have changed")
