"""What visitors of a node see and do: in its console."""
