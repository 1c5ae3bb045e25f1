"""What is shown of long work where there is no terminal."""

import io

from gdws.cli import progress_bar
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import Terminal
from gdws.core.progress import note, shown, track


def said(monkeypatch, seconds, **settings):
    """What a bar prints of two nested loops whose steps take so many seconds."""
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with shown(Bar(Terminal(file=stream, width=80, **settings))):
        for _ in track(range(2), "outer"):
            for _ in track(range(3), "inner"):
                now[0] += seconds
                note("so far")
    return stream.getvalue().splitlines()


def test_a_pipe_gets_a_line_now_and_then(monkeypatch):
    """Bug: minutes of silence."""
    assert said(monkeypatch, 1) == []
    places = ["outer 0/2 | inner 2/3", "outer 1/2 | inner 1/3", "outer 1/2 | inner 3/3"]
    assert said(monkeypatch, 11) == [f"{place} so far" for place in places]
    assert len(said(monkeypatch, 60)) == 6


def test_a_terminal_gets_a_bar_alone(monkeypatch):
    assert not any("outer 0/2 |" in line for line in said(monkeypatch, 11, force_terminal=True))
