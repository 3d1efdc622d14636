"""Every setting of the engine: its meaning, its checks, and how it is read; pure but for `file`."""
