"""Steps of a reproduction: each makes, evaluates or times a network (gdws.reproduce.place.Step)."""
