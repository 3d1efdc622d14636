"""The scheduler's process: `python -P -m core.runtime.scheduler FD`."""
