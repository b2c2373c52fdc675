"""Followers of a log: where each stands, how it continues, and what it sets aside."""
