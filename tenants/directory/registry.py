"""What a gateway process writes of itself and of its engines: that it lives, what they serve."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from inference.link.wire import ModelInfo
from tenants.database import ANSWER_S, Database

ALIVE_S = 10
"""How long after its last heartbeat a gateway counts as alive; the database's clock counts."""
FORGOTTEN_DAYS = 1

BEAT = """
WITH forgotten AS (
    DELETE FROM tenants_gatewayprocess
    WHERE heartbeat_at < now() - make_interval(days => %(forgotten_days)s)
)
INSERT INTO tenants_gatewayprocess (url, heartbeat_at) VALUES (%(url)s, now())
ON CONFLICT (url) DO UPDATE SET heartbeat_at = excluded.heartbeat_at
"""
ALIVE = """
SELECT url FROM tenants_gatewayprocess
WHERE heartbeat_at > now() - make_interval(secs => %s) ORDER BY url
"""
FORGET = "DELETE FROM tenants_gatewayprocess WHERE url = %s"
# Writes only what is new: each change is told to every gateway.
NOTE_MODEL = """
INSERT INTO tenants_basemodel AS known
    (name, max_model_len, max_lora_rank, modules, engine, created_at, updated_at)
VALUES (%(name)s, %(max_model_len)s, %(max_lora_rank)s, %(modules)s, %(engine)s, now(), now())
ON CONFLICT (name) DO UPDATE
SET max_model_len = excluded.max_model_len, max_lora_rank = excluded.max_lora_rank,
    modules = excluded.modules, engine = excluded.engine, updated_at = now()
WHERE (known.max_model_len, known.max_lora_rank, known.modules, known.engine)
   IS DISTINCT FROM
      (excluded.max_model_len, excluded.max_lora_rank, excluded.modules, excluded.engine)
"""


@dataclass(frozen=True, slots=True)
class _Gateway:
    url: str


class Registry(Database):
    """Each query raises `Unavailable` where the database does not answer in time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        super().__init__("registry", answer_s)

    async def beat(self, url: str) -> list[str]:
        """Say that the gateway at this base URL lives; the URLs of all that do."""
        await self.execute(BEAT, {"url": url, "forgotten_days": FORGOTTEN_DAYS})
        return [row.url for row in await self.rows(_Gateway, ALIVE, [ALIVE_S])]

    async def forget(self, url: str) -> None:
        """The gateway at this base URL has stopped."""
        await self.execute(FORGET, [url])

    async def note_model(self, info: ModelInfo) -> None:
        """Keep what an engine said of its base model."""
        values = {
            "name": info.name,
            "max_model_len": info.max_model_len,
            "max_lora_rank": info.max_lora_rank,
            "modules": Jsonb({path: list(shape) for path, shape in info.modules.items()}),
            "engine": info.engine,
        }
        await self.execute(NOTE_MODEL, values)
