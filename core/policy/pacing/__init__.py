"""How long a step may last, and what it still takes; pure."""
