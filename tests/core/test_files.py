"""What is kept in a cache folder."""

import os

from gdws.core.files import limit_cache


def name(letter):
    return f"latency-{16 * letter}.json" if letter == "b" else f"statistics-{32 * letter}.safetensors"


def test_the_oldest_of_a_cache_go_first_and_others_files_stay(tmp_path):
    """Bugs: a file that was dated in the future stayed for ever, and what had just been written went; so did files of others,
    called statistics-2026.safetensors."""
    mine = ["statistics-2026.safetensors", "latency-of-doors.json", "notes.txt"]
    for age, each in enumerate([name("c"), name("b"), name("a"), *mine]):
        (tmp_path / each).write_bytes(bytes(100))
        os.utime(tmp_path / each, (1000 - age, 1000 - age))
    (tmp_path / name("d")).mkdir()
    (tmp_path / name("e")).symlink_to(tmp_path / "notes.txt")
    mine += [name("d"), name("e")]
    left = lambda: sorted({path.name for path in tmp_path.iterdir()} - set(mine))  # noqa: E731
    limit_cache(tmp_path, 300)
    assert len(left()) == 3
    limit_cache(tmp_path, 299)
    assert left() == [name("b"), name("c")]
    os.utime(tmp_path / name("b"), (4e9, 4e9))
    limit_cache(tmp_path, 1)  # what has just been written is not deleted
    assert left() == [name("c")]
    assert {path.name for path in tmp_path.iterdir()} == {name("c"), *mine}
    limit_cache(tmp_path / "none", 1)
