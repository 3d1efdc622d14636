"""No key without a test: what the keymap and the dialogs bind is pressed somewhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.dom import DOMNode

from dashboard.keymap import APP_KEYS, REPLAY_KEYS, TABLE_KEYS
from dashboard.screens.base import TableScreen
from dashboard.screens.confirmation import Confirmation
from dashboard.screens.lines_dialog import LinesDialog
from dashboard.screens.palette import Palette
from dashboard.screens.request_dialog import RequestDialog
from dashboard.screens.requests import RequestsScreen
from dashboard.widgets.table_view import TableView

PLAYS = ("test_keys.py", "test_dialogs.py")
BOUND = (TableScreen, RequestsScreen, TableView, LinesDialog, RequestDialog, Palette, Confirmation)


def test_every_key_of_the_keymap_is_bound() -> None:
    """What the help says can be pressed."""
    bound = {name for kind in BOUND for name in keys_of(kind)}
    wanted = {
        name for key in (*APP_KEYS, *TABLE_KEYS, *REPLAY_KEYS) for name in key.keys.split(",")
    }
    assert wanted <= bound


@pytest.mark.parametrize("kind", BOUND, ids=lambda kind: kind.__name__)
def test_every_key_is_pressed_by_a_test(kind: type[DOMNode]) -> None:
    """A key that no play presses fails here; of several names for one act, one is enough."""
    pressed = set(keys_pressed())
    untried = [names for names in bindings_of(kind) if not pressed & set(names.split(","))]
    assert not untried


def keys_pressed() -> Iterator[str]:
    """Yield the keys that plays name in calls of `press`."""
    texts = [Path(__file__).with_name(name).read_text() for name in PLAYS]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "press":
            constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
            yield from (each.value for each in constants if isinstance(each.value, str))


def keys_of(kind: type[DOMNode]) -> Iterator[str]:
    """Yield the keys that a screen or widget takes."""
    for names in bindings_of(kind):
        yield from names.split(",")


def bindings_of(kind: type[DOMNode]) -> Iterator[str]:
    """Yield the bindings of our own, each as its keys by comma."""
    for each in kind.__mro__:
        if each.__module__.startswith("dashboard."):
            yield from (binding.key for binding in vars(each).get("BINDINGS", []))
