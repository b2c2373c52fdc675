"""Settings of the store, the broker, the mailboxes and the server: each is declared once, as a field of its class.

The flags of `eventstore serve`, the environment variables, the keys of the TOML file and docs/REFERENCE.md follow from
the declarations.
"""
