"""Resolving models' names, without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from inference.errors import UnknownModel
from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.link.engine_info import AdapterRef
from inference.pools import Pool, PoolRollout
from tenants.directory.catalogue import (
    BaseRow,
    Catalogue,
    PinRow,
    PoolRow,
    Prices,
    RouteRow,
    VersionRow,
    cards,
    defaults_of,
    pins,
    pools,
    price_at,
    tried,
)
from tenants.directory.catalogue import resolve as resolve_at
from tenants.naming import ISOLATION_TENANTS, tuned_name

pytestmark = pytest.mark.pure

OLD, NEW, TWIN = "ab" * 32, "cd" * 32, "cdcdcdcd" + "0" * 56
BASES = {
    "org/base": BaseRow("org/base", 1, 4096, [(50.0, 10, 5, 20), (150.0, 30, 15, 60)]),
    "shadow": BaseRow("shadow", 1, 512),
}
ADAPTER_IDS = {"support": 70, "digits": 71, "sleeping": 72, "shadow": 73}


def version(
    number: int,
    digest: str,
    *aliases: str,
    adapter: str = "support",
    prices: Prices = (),
    limits: dict[str, dict[str, int | None]] | None = None,
) -> VersionRow:
    adapter_id = ADAPTER_IDS[adapter]
    row = VersionRow(adapter_id, adapter, "org/base", 2, number, number, digest, list(aliases))
    return replace(row, prices=prices, limits=limits)


def resolve(
    grant: Grant, name: str, bases: Mapping[str, BaseRow], own: Catalogue
) -> ResolvedTarget:
    return resolve_at(grant, name, bases, own, now=100.0)


OWN = Catalogue(
    [
        version(3, OLD, "stable"),
        version(4, NEW, "live", "canary"),
        version(5, TWIN),
        version(7, "12345678" * 8, "live", adapter="digits"),
        version(9, "ee" * 32, adapter="sleeping"),
        version(8, "ff" * 32, "live", adapter="shadow"),
    ]
)


def grant(*models: str) -> Grant:
    allowed = frozenset(models) if models else None
    return Grant(1, 1, "acme", frozenset({"inference"}), allowed, 1.0, "salt")


@pytest.mark.parametrize(
    ("name", "version_id"),
    [
        ("support", 4),
        ("support@live", 4),
        ("support@canary", 4),
        ("support@stable", 3),
        ("support@3", 3),
        ("support@5", 5),
        ("support@" + OLD[:8], 3),
        ("support@" + OLD, 3),
        ("support@cdcdcdcdc", 4),
        ("sleeping@9", 9),
        ("digits@12345678", 7),  # no version has this number, so it may be a digest
    ],
)
def test_a_name_means_a_version(name: str, version_id: int) -> None:
    target = resolve(grant(), name, BASES, OWN)
    assert (target.model, target.base_model, target.version_id) == (name, "org/base", version_id)


def test_the_lora_name_has_tenant_adapter_and_digest() -> None:
    assert resolve(grant(), "support@3", BASES, OWN).adapter == AdapterRef(
        f"acme/support@{OLD}", OLD
    )


def test_an_engine_is_told_what_an_adapter_needs() -> None:
    row = replace(version(4, NEW, "live"), rank=32, modules=["k_proj", "q_proj"])
    own = Catalogue([row])
    wanted = resolve(grant(), "support", BASES, own).adapter
    assert wanted == AdapterRef(f"acme/support@{NEW}", NEW, 32, ("k_proj", "q_proj"))
    pinned = pins([PinRow("acme", "support", "org/base", NEW, 32, ["k_proj", "q_proj"])])
    assert pinned == {"org/base": [wanted]}


@pytest.mark.parametrize(
    ("name", "version_id"),
    [("", 1), ("@1", 1), ("@2", 2), ("@live", 1), ("@3", None), (":x", None), ("x", None)],
)
def test_a_fine_tuned_model_has_a_name_in_openais_form(name: str, version_id: int | None) -> None:
    of_job = VersionRow(9, "tea-1a2b", "org/base", 2, 1, 1, NEW, ["live"])
    own = Catalogue([of_job, replace(of_job, id=2, number=2, digest=OLD, aliases=[])])
    whole = tuned_name("org/base", "acme", "tea-1a2b")
    assert whole == "ft:org/base:acme:tea:1a2b"
    for allowed in (grant(), grant("tea-1a2b")):
        if version_id is not None:
            target = resolve(allowed, whole + name, BASES, own)
            assert (target.model, target.version_id) == (whole + name, version_id)
            assert resolve(allowed, f"tea-1a2b{name}", BASES, own).version_id == version_id
        else:
            with pytest.raises(UnknownModel, match="ft:org/base:acme:tea:1a2b"):
                resolve(allowed, whole + name, BASES, own)
    with pytest.raises(UnknownModel):
        resolve(grant("tea"), whole, BASES, own)
    for other in ("ft:org/base:umbrella:tea:1a2b", "ft:shadow:acme:tea:1a2b", "ft:tea:1a2b", "ft:"):
        with pytest.raises(UnknownModel):
            resolve(grant(), other, BASES, own)


@pytest.mark.parametrize("name", ["org/base", "shadow"])
def test_a_base_model_comes_before_an_adapter(name: str) -> None:
    target = resolve(grant(), name, BASES, OWN)
    assert (target.base_model, target.adapter, target.version_id) == (name, None, None)


@pytest.mark.parametrize(
    "name",
    "|@|nobody|support@|support@9|support@03|support@abababa|support@beta|sleeping"
    f"|support@{OLD.upper()}|support@{OLD}ab|support@live@3|org/base@3".split("|"),
)
def test_a_name_that_means_nothing(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve(grant(), name, BASES, OWN)
    expected = f"The model `{name}` does not exist or you do not have access to it."
    assert caught.value.message == expected


def test_an_ambiguous_digest_says_so() -> None:
    with pytest.raises(UnknownModel, match="matches the beginning of 2 digests"):
        resolve(grant(), "support@cdcdcdcd", BASES, OWN)


def test_the_allow_list_names_models_without_a_version() -> None:
    assert resolve(grant("support"), "support@3", BASES, OWN).version_id == 3
    assert resolve(grant("org/base"), "org/base", BASES, OWN).version_id is None
    for name in ("digits", "org/base"):
        with pytest.raises(UnknownModel, match="does not exist or you do not have access"):
            resolve(grant("support"), name, BASES, OWN)
    with pytest.raises(UnknownModel):
        resolve(grant("support@3"), "support@3", BASES, OWN)


def test_cards_are_what_a_key_may_use() -> None:
    found = cards(grant(), BASES, OWN, now=100.0)
    assert [card.id for card in found] == ["digits", "org/base", "shadow", "support"]
    assert [card.owned_by for card in found] == ["acme", "lorikeet", "lorikeet", "acme"]
    assert [card.id for card in cards(grant("support", "gone"), BASES, OWN, now=1)] == ["support"]


def test_a_card_has_what_a_request_would_resolve_to() -> None:
    for card in cards(grant(), BASES, OWN, now=100.0):
        target = resolve(grant(), card.id, BASES, OWN)
        assert (card.root, card.price) == (target.base_model, target.price)
        assert (card.created, card.max_model_len) == (target.created, target.max_model_len)


# --- Prices and limits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "figures"), [(49.9, ()), (50.0, (10, 5, 20)), (149.9, (10, 5, 20)), (150, (30, 15, 60))]
)
def test_a_price_holds_from_its_date_on(now: float, figures: tuple[int, ...]) -> None:
    target = resolve_at(grant(), "org/base", BASES, OWN, now=now)
    price = TokenPrice(*figures)
    assert target == ResolvedTarget(
        "org/base", "org/base", price=price, max_model_len=4096, created=1
    )


def test_an_adapters_price_goes_before_its_base_models() -> None:
    own = Catalogue([version(1, OLD, "live", prices=[(120.0, 7, 7, 7)])])
    found = [resolve_at(grant(), "support", BASES, own, now=now).price for now in (100, 120, 200)]
    assert found == [TokenPrice(10, 5, 20), TokenPrice(7, 7, 7), TokenPrice(7, 7, 7)]


def test_a_price_of_batches_is_that_of_whoever_says_most() -> None:
    bases = {"org/base": replace(BASES["org/base"], batch_prices=[(50.0, 4, 2, 8)])}
    own = Catalogue([version(1, OLD, "live", prices=[(120.0, 7, 7, 7)])])

    def batch_price(name: str, now: float, own: Catalogue = own) -> TokenPrice | None:
        return resolve_at(grant(), name, bases, own, now=now).batch_price

    assert batch_price("org/base", 40) == TokenPrice(), "none has begun"
    assert batch_price("org/base", 60) == batch_price("support", 60) == TokenPrice(4, 2, 8)
    assert batch_price("support", 130) == TokenPrice(7, 7, 7), "the adapter's own goes before"
    cheaper = replace(version(1, OLD, "live", prices=[(0.0, 7, 7, 7)]), batch_prices=[(0, 3, 3, 3)])
    assert batch_price("support", 130, Catalogue([cheaper])) == TokenPrice(3, 3, 3)
    assert resolve(grant(), "org/base", BASES, OWN).batch_price is None


def test_a_price_of_overflow_is_for_tenants_whose_prompts_may_leave() -> None:
    bases = {"org/base": replace(BASES["org/base"], overflow_prices=[(150.0, 40, 40, 80)])}
    consents = replace(grant(), overflows=True)

    def overflow_price(name: str, caller: Grant = consents, now: float = 200) -> TokenPrice | None:
        return resolve_at(caller, name, bases, OWN, now=now).overflow_price

    assert overflow_price("org/base") == TokenPrice(40, 40, 80)
    assert overflow_price("org/base", now=120) == TokenPrice(10, 5, 20), "the standard price"
    assert overflow_price("org/base", grant()) is None
    assert overflow_price("support") is None, "adapters never leave"
    assert resolve(consents, "org/base", BASES, OWN).overflow_price is None


def test_without_a_price_it_is_free() -> None:
    assert price_at(100.0) == price_at(100.0, (), [(101.0, 1, 1, 1)]) == TokenPrice()


def test_an_adapter_has_its_limits_at_whatever_version() -> None:
    limits: dict[str, dict[str, int | None]] = {
        "operator": {"tokens_per_day": 100},
        "tenant": {"tokens_per_day": 50},
    }
    versions = [version(1, OLD, limits=limits), version(2, NEW, "live", limits=limits)]
    expected = (Limits("a70", "adapter `support`", {"tokens_per_day": 50}),)
    for name, number, digest in (("support@1", 1, OLD), ("support", 2, NEW)):
        assert resolve(grant(), name, BASES, Catalogue(versions)) == ResolvedTarget(
            model=name,
            base_model="org/base",
            adapter=AdapterRef(f"acme/support@{digest}", digest),
            version_id=number,
            adapter_id=70,
            limits=expected,
            price=TokenPrice(10, 5, 20),
            max_model_len=4096,
            created=2,
        )
    assert resolve(grant(), "digits", BASES, OWN).limits == ()
    assert resolve(grant(), "org/base", BASES, OWN).limits == ()


def test_a_base_model_that_is_not_known_yet_is_no_error() -> None:
    target = resolve(grant(), "support", {}, OWN)
    assert (target.base_model, target.price, target.max_model_len) == ("org/base", TokenPrice(), 0)


def test_pins_are_told_by_base_model() -> None:
    rows = [
        PinRow("acme", "support", "org/base", OLD),
        PinRow("other", "support", "org/base", NEW),
        PinRow("other", "json", "shadow", TWIN),
    ]
    assert pins(rows) == {
        "org/base": [
            AdapterRef(f"acme/support@{OLD}", OLD),
            AdapterRef(f"other/support@{NEW}", NEW),
        ],
        "shadow": [AdapterRef(f"other/json@{TWIN}", TWIN)],
    }
    assert pins([]) == {}


def test_pins_are_loaded_where_they_were_tried() -> None:
    rows = [
        PinRow("acme", "support", "org/base", OLD, tried=["r1", "r2"]),
        PinRow("acme", "digits", "org/base", NEW),
    ]
    assert tried(rows) == {OLD: frozenset(["r1", "r2"])}


def test_pools_have_their_revisions_and_rollouts() -> None:
    rows = [
        PoolRow("org/base", ["r1"], ["r2"]),
        PoolRow("shadow", ["r1"], [], 7, "r2", 30, ["acme"], ["globex"]),
        PoolRow("nobody has seen an engine of it", [], []),
    ]
    found = pools(rows)
    assert found["org/base"] == Pool(frozenset(["r1"]), frozenset(["r2"]))
    rollout = found["shadow"].rollout
    assert isinstance(rollout, PoolRollout)
    assert (rollout.id, rollout.to, rollout.weight) == (7, "r2", 30)
    assert rollout.first == {"acme", *ISOLATION_TENANTS} and rollout.last == {"globex"}
    assert found.keys() == {"org/base", "shadow"}


def test_defaults_stand_before_what_a_client_sends() -> None:
    assert defaults_of({}) == b""
    assert b"{" + defaults_of({"top_k": 5}) + b'"model":"m"}' == b'{"top_k":5,"model":"m"}'


def test_a_name_that_means_an_alias_has_its_split() -> None:
    split = {
        "id": 5,
        "alias": "live",
        "weight": 10,
        "sticky": "header",
        "header": "x-team",
        "copies_to": 8,
    }
    candidate = replace(version(5, TWIN), splits=[split])
    own = Catalogue([version(4, NEW, "live", "canary"), candidate])
    for name in ("support", "support@live"):
        found = resolve(grant(), name, BASES, own)
        assert found.version_id == 4 and found.split is not None
        assert (found.split.id, found.split.weight) == (5, 10)
        assert (found.split.sticky, found.split.header) == ("header", "x-team")
        assert found.split.copies_to == 8
        assert (found.split.candidate.version_id, found.split.candidate.model) == (5, name)
    for name in ("support@canary", "support@4", "support@5"):
        assert resolve(grant(), name, BASES, own).split is None


# --- Routes --------------------------------------------------------------------------------------

ROUTE = RouteRow(1, "auto", ["org/base", "support@3", "gone"], 1, 7)
WITH_ROUTES = Catalogue(
    [version(3, OLD, "live"), version(7, "12345678" * 8, "live", adapter="digits")],
    [
        ROUTE,
        replace(ROUTE, name="digits"),
        replace(ROUTE, name="shadow"),
        replace(ROUTE, name="broken", options=["gone", "away"]),
    ],
)


def test_a_route_resolves_to_its_options_that_exist() -> None:
    found = resolve(grant(), "auto", BASES, WITH_ROUTES)
    assert found.route is not None
    assert [option and option.model for option in found.route.options] == [
        "org/base", "support@3", None,
    ]  # fmt: skip
    assert (found.model, found.version_id, found.created) == ("auto", 3, 7)
    assert found.route.choose("", 0).version_id == 3


def test_a_key_gets_the_options_that_it_may_use_and_no_others() -> None:
    found = resolve(grant("org/base"), "auto", BASES, WITH_ROUTES)
    assert found.route is not None and found.route.options[1:] == [None, None]
    assert found.route.choose("", 0).model == "org/base"
    with pytest.raises(UnknownModel):
        resolve(grant("digits"), "auto", BASES, WITH_ROUTES)
    with pytest.raises(UnknownModel):
        resolve(grant("auto"), "auto", BASES, WITH_ROUTES)


def test_a_cascade_has_its_threshold() -> None:
    row = RouteRow(5, "careful", ["org/base", "support"], 1, 1, sure_from=-0.5)
    route = resolve(grant(), "careful", BASES, Catalogue([], [row])).route
    assert route is not None and route.sure_from == -0.5


def test_names_of_base_models_and_adapters_are_not_those_of_routes() -> None:
    for name in ("digits", "shadow"):
        assert resolve(grant(), name, BASES, WITH_ROUTES).route is None
    with pytest.raises(UnknownModel, match="`broken` does not exist"):
        resolve(grant(), "broken", BASES, WITH_ROUTES)


def test_routes_are_listed_with_what_answers_if_nothing_is_chosen() -> None:
    listed = {card.id: card for card in cards(grant(), BASES, WITH_ROUTES, now=100.0)}
    assert listed.keys() == {"org/base", "shadow", "support", "digits", "auto"}
    assert (listed["auto"].owned_by, listed["auto"].root) == ("acme", "org/base")
    allowed = cards(grant("digits"), BASES, WITH_ROUTES, now=100.0)
    assert [card.id for card in allowed] == ["digits"]
