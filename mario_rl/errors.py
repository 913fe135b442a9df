"""Mistakes that a user can mend. Their message is shown as it is, without a traceback, and the exit code is 2."""


class UserError(Exception):
    """The base of all such mistakes: each line of the message is one sentence that names the remedy."""


def shown(value: object) -> str:
    """A value in a message: short, whatever a user may have typed."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a very long number"
    except RecursionError:
        return "lists within lists"
    return text if len(text) <= 80 else f"{text[:77]}..."
