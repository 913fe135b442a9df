"""Maps of levels: which cells Mario can get to from which, and how far each is from the flag."""
