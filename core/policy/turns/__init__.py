"""Whose turn it is in a step; pure."""
