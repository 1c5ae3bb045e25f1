"""Every table and figure of the paper by one command: rows as data, steps that make them, a runner, records and pages.

>>> from gdws.reproduce.paper import chosen_tables, paper
>>> paper().table["table6"].label
'tab:msd-results'
>>> chosen_tables(["figure1", "table3"])
('table3', 'figure1')
"""
