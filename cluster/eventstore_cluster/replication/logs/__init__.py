"""The logs and documents of a replica: written as a follower, read for followers, cut back."""
