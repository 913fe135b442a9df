"""Emulators behind one protocol: batches of games of one level, with the rules of the game after every frame."""
