"""Projections: folds over events into the rows of a table."""
