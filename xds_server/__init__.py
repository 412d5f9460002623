"""The xDS service: subscriptions and sessions (sans-IO), snapshots, and the resources that it serves."""
