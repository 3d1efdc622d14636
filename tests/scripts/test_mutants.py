"""Planting faults: each has its place, and what happens to it is told rightly."""

from pathlib import Path

import pytest

from scripts._faults import FAULTS, Fault
from scripts._mutants import Fate, Tree
from tests.architecture.repository import ROOT

DOUBLED = Fault("doubled", "P1", "test_it.py", "it.py", "x + x", "x + x + x")


def make_tree(root: Path, test: str) -> Tree:
    """Return a project of one function and one test."""
    (root / "it.py").write_text("def double(x: int) -> int:\n    return x + x\n")
    (root / "test_it.py").write_text(f"from it import double\n\n\ndef test_it():\n    {test}\n")
    return Tree(root)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_its_place_and_its_test(fault: Fault) -> None:
    """The text to change occurs once, the change is one, and the test is in its file."""
    source = (ROOT / fault.path).read_text()
    assert fault.planted(source) != source
    file, _, test = fault.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_names_of_faults_are_unique() -> None:
    """`--only` means one fault a name."""
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_a_fault_without_a_unique_place_is_refused() -> None:
    """A change of the source cannot turn a fault into none."""
    with pytest.raises(ValueError, match="has 2"):
        DOUBLED.planted("x + x; x + x")
    with pytest.raises(ValueError, match="has 0"):
        DOUBLED.planted("2 * x")


@pytest.mark.parametrize(
    ("test", "fate"),
    [
        ("assert double(2) == 4", Fate.KILLED),
        ("assert double(0) == 0", Fate.SURVIVED),
        ("\t syntax error", Fate.BROKEN),
    ],
)
def test_the_fate_of_a_fault(tmp_path: Path, test: str, fate: Fate) -> None:
    """A test that fails kills, one that passes does not, one that cannot run proves nothing."""
    tree = make_tree(tmp_path, test)
    before = (tmp_path / "it.py").read_text()
    assert tree.fate(DOUBLED) is fate
    assert (tmp_path / "it.py").read_text() == before
