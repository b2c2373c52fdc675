"""Sockets and flow control: the gate, its connections, and the budgets and timeouts that bound them."""
