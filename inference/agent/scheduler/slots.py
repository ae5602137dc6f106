"""Which adapters are on the engine, and which of them are in use. No engine, no loop: bookkeeping.

An engine computes at most `active` distinct adapters in one batch and keeps at most `resident`
loaded. Asking it for more of either stalls or ends all streams, so this class decides both before
the engine is asked:

- A request of an adapter that is in use joins it; one of an adapter that is not in use needs a
  free active slot. `slot_scheduler` decides which adapter gets the next.
- An adapter stays resident after its last request; to make room for another, the least recently
  used resident one is evicted, but never one in use.
- Pinned adapters are loaded before they are requested and never evicted, as far as `active` others
  have room: the first `resident - active` of the operator's pins hold, the rest count as any
  adapter.
- A retired adapter (archived by its tenant) is unloaded as soon as it is unused, pinned or not.

Adapters are named by their digest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Slots:
    """The adapter slots of one engine."""

    def __init__(self, *, active: int, resident: int) -> None:
        """`active` distinct adapters in one batch; `resident` loaded at once, at least as many."""
        if not 0 <= active <= resident:
            raise ValueError(f"active={active} must be from 0 to resident={resident}")
        self._max_active, self._max_resident = active, resident
        self._in_use: dict[str, int] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._retired: set[str] = set()
        self._pinned: dict[str, None] = {}

    @property
    def resident(self) -> list[str]:
        """Loaded adapters, least recently used first."""
        return list(self._resident)

    @property
    def in_use(self) -> dict[str, int]:
        """Running requests by adapter."""
        return dict(self._in_use)

    @property
    def unused(self) -> int:
        """Active slots that no adapter has."""
        return self._max_active - len(self._in_use)

    @property
    def spare(self) -> int:
        """How many more adapters could be loaded without evicting one."""
        return self._max_resident - len(self._resident)

    def uses(self, adapter: str) -> int:
        """Running requests of this adapter."""
        return self._in_use.get(adapter, 0)

    def fits(self, adapter: str | None) -> bool:
        """Whether a request of this adapter (None: the base model) may start now."""
        return adapter is None or adapter in self._in_use or self.unused > 0

    def start(self, adapter: str | None) -> None:
        """A request starts; call `fits` first."""
        if not self.fits(adapter):
            raise ValueError(f"no active slot for {adapter}")
        if adapter is not None:
            self._in_use[adapter] = self._in_use.get(adapter, 0) + 1

    def finish(self, adapter: str | None) -> None:
        """A request that started has ended."""
        if adapter is None:
            return
        self._in_use[adapter] -= 1
        if not self._in_use[adapter]:
            del self._in_use[adapter]

    def to_evict(self, adapter: str) -> list[str]:
        """What must be unloaded before this adapter is loaded, in order; usually none or one.

        There is always enough: with the adapter itself in use or pinned, fewer than `resident`
        others are, because at most `active` are in use and `resident - active` pins hold.
        """
        if adapter in self._resident:
            return []
        surplus = len(self._resident) + 1 - self._max_resident
        kept = self._in_use.keys() | self._pinned.keys()
        idle = [one for one in self._resident if one not in kept]
        return idle[: max(0, surplus)]

    def loaded(self, adapter: str) -> None:
        """The adapter is on the engine, or was just used there."""
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)

    def unloaded(self, adapter: str) -> None:
        """The adapter is off the engine."""
        self._resident.pop(adapter, None)
        self._retired.discard(adapter)

    def retire(self, adapter: str) -> None:
        """The adapter is to be unloaded as soon as it is unused. Its pin stays until `pin` removes
        it, because another tenant's adapter may have the same content."""
        if adapter in self._resident or adapter in self._in_use:
            self._retired.add(adapter)

    def to_retire(self) -> list[str]:
        """Retired adapters that nothing uses any more: unload them now."""
        return [one for one in self._retired if one not in self._in_use]

    def pin(self, adapters: Iterable[str]) -> list[str]:
        """Keep these loaded, the most important first; replaces the previous pins.

        Returns those for which there is no room.
        """
        wanted = list(dict.fromkeys(adapters))
        room = self._max_resident - self._max_active
        self._pinned = dict.fromkeys(wanted[:room])
        return wanted[room:]

    def missing_pins(self) -> list[str]:
        """Pinned adapters to load now; `to_evict` says what to unload for them."""
        return [one for one in self._pinned if one not in self._resident]
