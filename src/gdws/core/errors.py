"""The exceptions that a user's mistake raises."""


class GdwsError(ValueError):
    """Bad input, reported in one sentence: what was given and what was expected.

    It is a ValueError. Every function of gdws raises it for arguments that it refuses.

    >>> import gdws
    >>> try:
    ...     gdws.Macs(2)
    ... except gdws.GdwsError as error:
    ...     print(error)
    Macs(2): expected a fraction above 0 and at most 1
    """


class OutOfReach(GdwsError):
    """A budget that nothing meets.

    least  what the smallest choices cost, in the unit of whoever raises it.
    """

    def __init__(self, message: str, least: float) -> None:
        super().__init__(message)
        self.least = least


def first_line(error: BaseException) -> str:
    """What another library's exception says, short enough for a sentence of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
