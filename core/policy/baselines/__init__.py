"""Published and classic policies, for comparison behind the same interface."""
