"""What is kept in a cache folder."""

import os

from gdws.core.files import limit_cache


def test_the_oldest_of_a_cache_go_first_and_others_files_stay(tmp_path):
    for age, name in enumerate(["statistics-c.safetensors", "latency-b.json", "statistics-a.safetensors", "notes.txt"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    left = lambda: sorted(path.name for path in tmp_path.iterdir())  # noqa: E731
    limit_cache(tmp_path, 300)
    assert len(left()) == 4
    limit_cache(tmp_path, 299)
    assert left() == ["latency-b.json", "notes.txt", "statistics-c.safetensors"]
    limit_cache(tmp_path, 1)  # what has just been written is not deleted
    assert left() == ["notes.txt", "statistics-c.safetensors"]
