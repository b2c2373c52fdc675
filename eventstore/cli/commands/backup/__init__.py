"""Commands that make backups, and restore them."""
