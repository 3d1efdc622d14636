"""Who has KV memory, and who gives it back; pure."""
