"""The server: store behind a TCP listener, on trio.

settings       what can be set, where it comes from
gate           all sockets in one task: accept, receive, send
connection     one client: what it sent, what it is owed
dispatch       one request → its answer
incoming       what all connections together may have on its way
intake         all appends of one turn as one batch; the seam where command mailboxes will sit
reads          pages, on the event loop when they are warm, on threads when they are not
subscriptions  pushes with credit
metrics, http  figures and health for operators
serve          puts it together; signals, graceful stop
"""
