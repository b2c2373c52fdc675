"""The alarms of a server: on which figures, how they are reported, and the answers to requests about them."""
