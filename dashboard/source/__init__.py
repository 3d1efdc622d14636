"""Where frames come from: a running engine, a recording, or a demonstration."""
