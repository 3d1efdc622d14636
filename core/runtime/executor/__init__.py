"""The process of one executor: `python -P -m core.runtime.executor FD`."""
