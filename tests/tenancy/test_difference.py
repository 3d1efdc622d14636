"""Differences between tenancies: kept, laid over, and never more than what differs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.tenancy.classes import CLASS_NAMES, ClassConfig, ClassesConfig
from core.tenancy.difference import (
    Difference,
    changed_paths,
    difference,
    from_json,
    laid_over,
    to_json,
)
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig

NAMES = st.sampled_from(["acme", "beta", "gamma", "zeta"])
CONFIGURED = Tenancy(tenants=(TenantConfig(name="acme"), TenantConfig(name="zeta", weight=2.0)))


@st.composite
def tenancies(draw: st.DrawFn) -> Tenancy:
    """Draw a tenancy of few tenants and few values, so that two have much in common."""
    weights = st.sampled_from([1.0, 2.0, 3.0])
    names = draw(st.lists(NAMES, min_size=1, unique=True))
    tenants = tuple(
        TenantConfig(
            name=name,
            weight=draw(weights),
            key_sha256=draw(st.sampled_from([(), ("a" * 64,), ("b" * 64, "c" * 64)])),
            classes=draw(st.sampled_from([CLASS_NAMES, ("batch",)])),
        )
        for name in names
    )
    classes = {name: ClassConfig(weight=draw(weights)) for name in ("batch", "standard")}
    return Tenancy(classes=ClassesConfig(**classes), tenants=tenants)


def by_name(tenancy: Tenancy) -> dict[str, TenantConfig]:
    """Return the tenants without their order."""
    return {tenant.name: tenant for tenant in tenancy.tenants}


@given(old=tenancies(), new=tenancies(), data=st.data())
def test_a_difference_laid_over_the_old_is_the_new(
    old: Tenancy, new: Tenancy, data: st.DataObject
) -> None:
    """Through text and back; pauses are there too, and tenants that are gone."""
    paused = data.draw(st.frozensets(st.sampled_from([t.name for t in new.tenants])))
    new = replace(new, paused_tenants=paused, paused_classes=frozenset({"batch"}))
    again = laid_over(old, from_json(to_json(difference(old, new))))
    assert by_name(again) == by_name(new)
    assert again.classes == new.classes
    assert again.paused_tenants == paused
    assert again.paused_classes == {"batch"}


@given(tenancy=tenancies())
def test_two_equal_tenancies_differ_in_nothing(tenancy: Tenancy) -> None:
    """Nothing is kept of an engine in which nothing was changed."""
    assert difference(tenancy, tenancy) == Difference()
    assert to_json(Difference()) == "{}"


def test_what_nobody_changed_follows_the_file() -> None:
    """A run-time weight stays, a new quota comes, and a tenant that is gone takes no change."""
    running = replace(CONFIGURED, tenants=(replace(CONFIGURED.tenants[0], weight=5.0),))
    changes = difference(CONFIGURED, running)
    assert changed_paths(changes) == ["tenants[zeta]", "tenants[acme].weight"]
    file = Tenancy(tenants=(TenantConfig(name="acme", kv_quota_fraction=0.5),))
    assert by_name(laid_over(file, changes))["acme"] == TenantConfig(
        name="acme", kv_quota_fraction=0.5, weight=5.0
    )
    assert laid_over(Tenancy(), changes).tenants == ()


@pytest.mark.parametrize("text", ["", "[]", '{"classes": 3}', '{"tenants": {"acme": 3}}'])
def test_a_text_that_is_no_difference_is_refused(text: str) -> None:
    """Whatever lies in the database is data."""
    with pytest.raises(ConfigError):
        from_json(text)


def test_a_value_of_the_wrong_type_is_refused() -> None:
    """It names the key."""
    with pytest.raises(ConfigError, match="weight"):
        laid_over(CONFIGURED, from_json('{"tenants": {"acme": {"weight": "heavy"}}}'))
