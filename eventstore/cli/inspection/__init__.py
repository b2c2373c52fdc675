"""Takes any file of a store apart and says what it is, what it holds, and what is damaged. Changes nothing, takes no lock.

facts        what is told of a file
kinds        which kind of file it is
event_file   event files: ongoing, completed, sorted; copies of torn tails
index_file   event indexes
documents    store.json, chunks.json, the preload file
folders      a data folder, its folder of event files, the LMDB directory
"""

from eventstore.cli.inspection.facts import Facts, Table
from eventstore.cli.inspection.kinds import describe

__all__ = ["Facts", "Table", "describe"]
