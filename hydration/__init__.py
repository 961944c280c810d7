"""Archive to reader: chunks, cache, and one log out of two tiers. Import from the modules; nothing is loaded here."""
