"""Who was served for its weight, and what it was charged; pure."""
