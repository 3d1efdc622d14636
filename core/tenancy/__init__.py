"""Classes of traffic and tenants: what is promised, what they may use, how it changes; pure."""
