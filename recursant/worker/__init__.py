"""What runs beside or inside a worker, or looks at it from outside: reporting and scraping."""
