"""The columns of every table, one table a file."""
