"""The one exception that a user's mistake raises."""


class GdwsError(ValueError):
    """Bad input. The message is one sentence that names what was given and what was expected."""
