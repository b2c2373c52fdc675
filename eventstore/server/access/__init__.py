"""The door of a server: who is let in, over what, and to do what."""
