"""Smart Gateway: routes browser traffic by hostname to verified hosts."""
