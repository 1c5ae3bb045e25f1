"""Bad inputs by table: values times where they go, in Python and on the command line.

values.py      what functions are given                lines.py    whole command lines
calls.py       the functions, and what may be taken    options.py  their options, and what these are given
code.py        FILE.py:FACTORY that gives no network   place.py    the folder in which a line is run
large.py       small files with large contents
"""
