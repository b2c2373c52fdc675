"""Processes: what happens over several aggregates and over time, as an aggregate whose events come from reactions."""
