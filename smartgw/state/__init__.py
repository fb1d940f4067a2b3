"""What outlives a restart of the gateway: the last good snapshot, and the recording."""
