"""The keys of subjects: where a store keeps them, and how they end."""
