"""Commits and messages as bytes: encoding, decoding, filters, cursors. No files, threads or sockets."""
