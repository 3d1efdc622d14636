"""Screens and dialogs, one a file."""
