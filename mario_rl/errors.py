"""Mistakes that a user can mend. Their message is shown as it is, without a traceback, and the exit code is 2."""


class UserError(Exception):
    """The base of all such mistakes: each line of the message is one sentence that names the remedy."""
