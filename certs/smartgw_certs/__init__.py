"""Certificates by ACME (to come): orders, schedule, vault."""
