"""Which host may serve a request: hostnames and the routing table."""
