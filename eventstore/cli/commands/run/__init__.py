"""Commands that run servers, workers and projections."""
