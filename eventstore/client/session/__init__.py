"""The state of a client, sans-io: requests, batches, answers, subscriptions."""
