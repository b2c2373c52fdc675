"""Backups of stores, whole or one that others write to meanwhile, and what is restored from them."""
