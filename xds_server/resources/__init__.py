"""The resources that we push to Envoy: listener, routes, clusters, endpoints."""
