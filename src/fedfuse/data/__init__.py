"""Who has which data: federations, and where they come from."""
