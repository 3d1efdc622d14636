"""Benchmarks and gates from outside: plain names are commands, `_names` are their modules."""
