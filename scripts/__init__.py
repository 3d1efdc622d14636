"""The repository's commands; only `scripts.bench` is Python. Not part of the installed package."""
