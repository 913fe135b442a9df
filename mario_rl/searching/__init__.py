"""Search: random play from an archive of places, which finds the flag and draws the map. Needs no network."""
