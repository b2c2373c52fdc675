"""The stories that `make demo` tells, each with a real server on a folder of its own."""
