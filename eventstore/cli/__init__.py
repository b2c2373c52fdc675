"""The command line: `eventstore serve`, `import`, `read`, and so on. One module per command.

Modules of commands import nothing heavy at their top: `eventstore --help` imports all of them.
"""
