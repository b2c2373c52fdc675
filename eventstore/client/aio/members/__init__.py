"""What a consumer's member does in the background: pulls, commits, reports, and looks whether its messages are still there."""
