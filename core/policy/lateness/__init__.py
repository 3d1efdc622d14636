"""Who would be late, who is protected, and who is refused early; pure."""
