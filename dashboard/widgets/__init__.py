"""Widgets, one a file; all of them draw lines that pure functions made."""
