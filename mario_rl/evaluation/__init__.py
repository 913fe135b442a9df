"""How good a policy is: greedy episodes, in a process of their own while a run trains."""
