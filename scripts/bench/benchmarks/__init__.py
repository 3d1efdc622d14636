"""A module or a package for each command of `scripts/bench`, by its name."""
