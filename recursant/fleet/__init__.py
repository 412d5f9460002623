"""What the fleet looks like right now: worker records, their liveness, and the table that a pick reads."""
