"""How programs talk to a node's broker: the messages, and a client that is standard library only."""
