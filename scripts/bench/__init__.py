"""Benchmarks and gates from outside: plain names are commands, `benchmarks` holds their code."""
