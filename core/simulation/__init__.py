"""The engine in virtual time: a clock that is moved, executors that are modelled."""
