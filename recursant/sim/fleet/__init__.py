"""The fleet in virtual time: many engines, the routing code that runs in production, and the policies of others."""
