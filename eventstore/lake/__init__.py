"""Exports the events of a domain into the tables of a lake: one for each class of events, incremental, each event exactly
once.
"""
