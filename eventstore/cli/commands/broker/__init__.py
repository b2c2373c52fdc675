"""Commands that administer topics, groups and messages."""
