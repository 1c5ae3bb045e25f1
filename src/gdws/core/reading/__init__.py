"""Reading untrusted files: bounded in size, checked against a schema, and never run."""
