"""The folder of a shard that is split off: a clone of its parent's, made of hard links."""
