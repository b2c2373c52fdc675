"""Targets: tables in SQLite or PostgreSQL that hold the rows of a projection."""
