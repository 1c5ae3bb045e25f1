"""Read untrusted files: limited in size, checked against a schema, and never executed."""
