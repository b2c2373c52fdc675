"""How commands talk to the terminal: options, output, usage errors."""
