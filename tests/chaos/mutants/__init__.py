"""Files of every kind that gdws reads, spoiled: each is refused in a sentence, or read as what its bytes mean.

kinds.py       the kinds, with their whole files
bytewise.py    what spoils bytes      networks.py    what checks manifests, plans, weights and ONNX files
jsonwise.py    JSON                   datasets.py    arrays, images and archives
binary.py      binary formats         runs.py        checkpoints, logs and caches
graphs.py      ONNX graphs            sources.py     what the checks share
"""
