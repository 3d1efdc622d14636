"""What every setting is made of, whoever has it: checks, and the way from text; pure."""
