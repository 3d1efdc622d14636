"""Pure functions from a view to lines: what the parts of a screen that are no tables look like."""
