"""The engine's metrics as Prometheus text, for whichever port is scraped."""
