"""KV memory as decisions: which block holds what, for whom, until when; no tensor is touched."""
