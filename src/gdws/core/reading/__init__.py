"""Reading what may come from a stranger: bounded in size, checked against a schema, and never run."""
