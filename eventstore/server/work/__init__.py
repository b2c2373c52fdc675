"""Workers: a domain's command mailboxes in a process of their own, on a remote store."""
