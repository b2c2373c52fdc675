"""Writes chunks: one writer per folder, zeros ahead of it, and group commit on top."""
