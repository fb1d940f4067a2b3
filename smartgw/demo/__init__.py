"""The demo: a cluster or several on loopback, with hosts that run a small app."""
