"""Who sends a request and what it needs: policies, request descriptions, priority classes."""
