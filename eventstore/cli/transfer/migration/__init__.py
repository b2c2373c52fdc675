"""Moving in: copies the events of another store, in their order, and what is new there with each further run.

A source yields rows in order of their place there. A run appends them by the ids that they have there, so that what was stored
before is found again, and notes in the target how far it came.
"""
