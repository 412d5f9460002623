"""Ways of routing that the simulation compares: ours, and those of others by their public descriptions."""
