"""The mailboxes without an event loop: a state machine that does no I/O and reads no clock of its own."""
