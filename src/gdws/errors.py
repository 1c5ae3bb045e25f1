"""The exceptions that a user's mistake raises."""


class GdwsError(ValueError):
    """Bad input. The message is one sentence that names what was given and what was expected."""


class OutOfReach(GdwsError):
    """A budget that nothing meets. least: what the smallest choices cost, in the unit of whoever raises it."""

    def __init__(self, message: str, least: float) -> None:
        super().__init__(message)
        self.least = least


def first_line(error: Exception) -> str:
    """What another library's exception says, short enough for a sentence of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
