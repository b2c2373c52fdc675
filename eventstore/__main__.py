"""Runs the command line as `python -m eventstore`."""

from eventstore.cli.start import main

if __name__ == "__main__":
    main()
