"""The settings: made of the parts' own rules, checked, chosen by precedence; and what follows for this machine."""
