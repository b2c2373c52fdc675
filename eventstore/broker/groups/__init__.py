"""Consumer groups: members, queue assignment, committed offsets. Independent of the message log."""
