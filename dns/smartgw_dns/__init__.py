"""Authoritative zones (to come): lookup, catalog and wire server."""
