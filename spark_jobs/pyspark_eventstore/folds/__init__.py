"""Projections as folds that Spark distributes over its tasks."""
