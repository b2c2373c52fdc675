"""The event store proper: commits of aggregates in event files, their uniqueness, their order, their replay.

Import the module that is needed; readers (`commit`, `page`, `index`) import neither trio nor lmdb.
"""
