"""The data path: from a downstream connection to a proven upstream one."""
