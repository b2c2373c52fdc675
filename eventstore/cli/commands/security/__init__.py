"""Commands about who may connect and do what."""
