"""The command line: `eventstore serve`, `import`, `read`, and so on. One module per command; `main` puts them together.

Modules of commands import nothing heavy at their top: `eventstore --help` imports all of them.
"""
