"""Authoritative zones: how they are kept, changed, looked up, and answered from on the wire."""
