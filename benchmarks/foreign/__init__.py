"""Networks and pictures that nobody of this project made, fetched by the ordinary package clients into a cache folder."""
