"""Adapters: this store behind the interfaces of other libraries. Nothing else in the package imports them."""
