"""Steps of a reproduction: each makes a network, judges one or times one (gdws.reproduce.place.Step)."""
