"""Tenants take turns, whatever they have queued."""

from hypothesis import given
from hypothesis import strategies as st

from core.tokenizer.rotation import Rotation


def drained(rotation: Rotation[str]) -> list[str]:
    """Take everything."""
    items = []
    while (item := rotation.take()) is not None:
        items.append(item)
    return items


def test_tenants_take_turns() -> None:
    """A tenant with many items waits for the others between two of them."""
    rotation: Rotation[str] = Rotation()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        rotation.add(item[0], item)
    assert drained(rotation) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_unfinished_item_is_next_of_its_tenant_but_after_all_others() -> None:
    """What is put back stays before the tenant's own later items and behind other tenants."""
    rotation: Rotation[str] = Rotation()
    for item in ("a1", "a2", "b1"):
        rotation.add(item[0], item)
    first = rotation.take()
    assert first == "a1"
    rotation.put_back("a", first)
    assert drained(rotation) == ["b1", "a1", "a2"]


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_everything_comes_out_once_in_order_of_its_tenant(tenants: list[str]) -> None:
    """Nothing is lost, doubled, or passed by a later item of the same tenant."""
    rotation: Rotation[str] = Rotation()
    items = [f"{tenant}{index:03}" for index, tenant in enumerate(tenants)]
    for item in items:
        rotation.add(item[0], item)
    assert len(rotation) == len(items)
    taken = drained(rotation)
    assert sorted(taken) == sorted(items)
    for tenant in set(tenants):
        mine = [item for item in taken if item.startswith(tenant)]
        assert mine == sorted(mine)
    assert len(rotation) == 0
