"""A fuzzer that knows the protocol: `python -m tests.fuzz --rounds 1000 --seed 7`."""
