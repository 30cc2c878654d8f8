"""Mathematics without devices."""
