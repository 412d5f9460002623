"""What is sent to a simulated fleet: traces as they were recorded, and generators."""
