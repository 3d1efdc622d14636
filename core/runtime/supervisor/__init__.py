"""The supervisor's own loop and what it acts with; its `main` is `core.runtime.serve`."""
