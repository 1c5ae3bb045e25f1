"""The campaign against gdws: bad inputs by table, mutated files, kills, contention, full disks and extreme numbers.

    make chaos                                                full length
    PYTHONPATH=tests python -m chaos --share 0.01 mutants     a hundredth of one part
    PYTHONPATH=tests python -m chaos --case mutants/plan/17   one case alone, as it failed

Everything follows from the seed. A case is right where gdws refuses in one sentence, or succeeds with what an independent
reader, count or computation says; everything else is a failure: a traceback, a wrong result without a word, a hang, memory
beyond the limit, a crash, or a file that is half written.
"""
