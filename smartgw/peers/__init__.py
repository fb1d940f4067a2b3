"""Other clusters: which there are, and how they are reached."""
