"""Who may have how much of the gateway."""
