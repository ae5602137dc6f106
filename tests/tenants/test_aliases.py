"""Aliases: one at a time, and many at once on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import IntegrityError, connection, transaction

from tenants.errors import LastOwner, NothingToRollBackTo, Refused, VersionInUse, VersionNotReady
from tenants.models import Adapter, AdapterVersion, Alias, Membership, State, Tenant
from tests.tenants.making import make_adapter, make_member, make_tenant, make_version


def together(*actions: Callable[[], object]) -> list[Refused | None]:
    """Run each in a thread and connection of its own, all at once. Returns each one's refusal."""
    barrier = Barrier(len(actions))

    def run(action: Callable[[], object]) -> Refused | None:
        try:
            barrier.wait(timeout=30)
            action()
        except Refused as error:
            return error
        finally:
            connection.close()
        return None

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(run, actions))


@pytest.mark.django_db
class TestOneAtATime:
    def test_promote_and_roll_back(self, live: AdapterVersion) -> None:
        second = make_version(live.adapter)
        alias = live.adapter.promote(second)
        assert (alias.version, alias.previous) == (second, live)
        alias.roll_back()
        assert (alias.version, alias.previous) == (live, None)

    def test_a_second_roll_back_is_refused(self, live: AdapterVersion) -> None:
        alias = live.adapter.promote(make_version(live.adapter))
        alias.roll_back()
        with pytest.raises(NothingToRollBackTo):
            alias.roll_back()
        assert Alias.objects.get().version == live

    def test_promoting_what_is_live_changes_nothing(self, live: AdapterVersion) -> None:
        second = make_version(live.adapter)
        live.adapter.promote(second)
        alias = live.adapter.promote(second)
        assert (alias.version, alias.previous) == (second, live)

    def test_no_roll_back_to_an_archived_version(self, live: AdapterVersion) -> None:
        alias = live.adapter.promote(make_version(live.adapter))
        live.archive()
        with pytest.raises(NothingToRollBackTo):
            alias.roll_back()
        alias.refresh_from_db()
        assert alias.version != live

    @pytest.mark.parametrize("state", [state for state in State if state != State.READY])
    def test_only_ready_versions_can_be_promoted(self, live: AdapterVersion, state: State) -> None:
        other = make_version(live.adapter, state=state)
        for name in ("live", "new"):
            with pytest.raises(VersionNotReady):
                live.adapter.promote(other, name)
        assert Alias.objects.get().version == live

    def test_never_another_adapters_version(self, live: AdapterVersion) -> None:
        same_tenant = make_version(make_adapter(live.adapter.tenant, "other"))
        foreign = make_version(make_adapter(make_tenant()))
        for other in (same_tenant, foreign):
            for name in ("live", "new"):
                with pytest.raises(VersionNotReady):
                    live.adapter.promote(other, name)
            with pytest.raises(IntegrityError), transaction.atomic():
                Alias.objects.update(version=other)

    @pytest.mark.parametrize("name", ["3", "0123", "deadbeef", "a" * 63, "a@b", "", "Live"])
    def test_an_alias_is_told_from_a_version(self, live: AdapterVersion, name: str) -> None:
        with pytest.raises((IntegrityError, VersionNotReady)), transaction.atomic():
            Alias.objects.create(adapter=live.adapter, version=live, name=name)

    @pytest.mark.parametrize("name", ["beta", "deadbee", "v3", "canary-2", "facade00x"])
    def test_other_names_are_aliases(self, live: AdapterVersion, name: str) -> None:
        assert live.adapter.promote(live, name).name == name


@pytest.mark.django_db(transaction=True)
class TestManyAtOnce:
    def test_promotions_and_roll_backs(self, live: AdapterVersion) -> None:
        """Whatever the order, the alias points at a version that was promoted or displaced."""
        versions = [make_version(live.adapter) for _ in range(3)]
        alias = live.adapter.promote(versions[0])

        def promote(version: AdapterVersion) -> Callable[[], object]:
            return lambda: [Alias.objects.get().promote(version) for _ in range(10)]

        def roll_back() -> None:
            for _ in range(10):
                try:
                    Alias.objects.get().roll_back()
                except NothingToRollBackTo:
                    continue

        results = together(*map(promote, versions), roll_back)
        assert results == [None] * 4
        alias.refresh_from_db()
        assert alias.version in [live, *versions] and alias.previous != alias.version

    def test_two_roll_backs_do_not_undo_each_other(self, live: AdapterVersion) -> None:
        alias = live.adapter.promote(make_version(live.adapter))
        results = together(*[Alias.objects.get(pk=alias.pk).roll_back for _ in range(4)])
        assert sum(isinstance(result, NothingToRollBackTo) for result in results) == 3
        assert Alias.objects.get().version == live

    @pytest.mark.parametrize("end", ["archive", "remove"] * 5)
    def test_the_end_of_a_version_against_its_promotion(
        self, live: AdapterVersion, end: str
    ) -> None:
        """One of them wins; an alias never points at a version that is not ready."""
        other = make_version(live.adapter)
        ending = getattr(AdapterVersion.objects.get(pk=other.pk), end)
        results = together(ending, lambda: Alias.objects.get().promote(other))
        kinds = [type(result) for result in results]
        assert kinds in ([VersionInUse, type(None)], [type(None), VersionNotReady])
        assert Alias.objects.get().version.state == State.READY

    def test_uploads_get_numbers_of_their_own(self, adapter: Adapter) -> None:
        def upload(digit: str) -> Callable[[], object]:
            return lambda: Adapter.objects.get().add_version(digit * 64)

        assert together(*map(upload, "aabbcc")) == [None] * 6
        assert sorted(AdapterVersion.objects.values_list("number", flat=True)) == [1, 2, 3]

    def test_two_owners_cannot_demote_each_other(self, tenant: Tenant) -> None:
        owners = [Membership.objects.get(user=make_member(tenant, "owner")) for _ in range(2)]
        results = together(*[lambda o=owner: o.change_role("viewer") for owner in owners])
        assert [type(result) for result in results if result] == [LastOwner]
        assert Membership.objects.owners().count() == 1
