"""The control API: workers report here, people and the command line ask here, Prometheus scrapes here."""
