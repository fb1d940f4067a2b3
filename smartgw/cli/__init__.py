"""The smartgw command."""
