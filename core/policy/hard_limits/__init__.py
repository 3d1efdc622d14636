"""What tenants and classes may never exceed; pure."""
