"""One gateway as one process or several, and its generations (contract 11.1)."""
