"""Reproduce every table and figure of the paper: rows as data, steps that make them, a runner, records and pages.

>>> from gdws.reproduce.paper import chosen_tables, paper
>>> paper().table["table6"].label
'tab:msd-results'
>>> chosen_tables(["figure1", "table3"])
('table3', 'figure1')
"""
