"""Both ends of the bus: the wire, the pool of hosts, and the SDK for backends."""
