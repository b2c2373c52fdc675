"""Who may do what, and bytes that others cannot read."""
