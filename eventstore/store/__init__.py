"""The event store: appends commits, keeps versions and command ids unique, sorts event files and reads them.

Import the module you need: modules that only read files import neither trio nor lmdb.
"""
