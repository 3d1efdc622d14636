"""Policies that know no promises: one order, or none, decides; pure."""
