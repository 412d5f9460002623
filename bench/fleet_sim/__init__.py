"""`make bench-fleet`: policies of routing on the same traces, in virtual time."""
