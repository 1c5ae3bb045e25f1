#!/usr/bin/env bash
# paper_rows.py on a machine that is reached by short commands: the queue goes on between them. In the repository:
#
#   benchmarks/paper_rows.sh start [OPTION ...]  copy the code to $ROWS and start the queue there, with options of paper_rows.py
#   benchmarks/paper_rows.sh add FOLDER ...      copy data (cifar10/, svhn/, weights) to $ROWS: tasks that wait for it begin
#   benchmarks/paper_rows.sh wait SECONDS        until the queue ends, at most so long
#   benchmarks/paper_rows.sh status              what is done, what runs, what failed
#   benchmarks/paper_rows.sh collect FOLDER      records.tgz, and the weights that no earlier call has packed, as weights.tar.NN
#
# ROWS (/tmp/rows), PYTHON (python3), COMMIT of the code (git's), ROOM (58) and PART (15): MiB of weights in one collection and
# in one of its files.
set -eu
ROWS=${ROWS:-/tmp/rows} PYTHON=${PYTHON:-python3} ROOM=${ROOM:-58} PART=${PART:-15}
command=${1:-}; shift || true
export PYTHONPATH="$ROWS/code/src" PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-3}"
running() { [ -f "$ROWS/pid" ] && kill -0 "$(cat "$ROWS/pid")" 2>/dev/null; }

case $command in
start)
    if running; then echo "the queue runs already"; exit 0; fi
    mkdir -p "$ROWS/data" "$ROWS/out/logs" "$ROWS/out/weights"
    here=$(cd "$(dirname "$0")" && pwd)
    commit=${COMMIT:-$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)}
    rm -rf "$ROWS/code" && mkdir "$ROWS/code" && cp -r "$here/../src" "$here" "$ROWS/code"
    cd "$ROWS"
    setsid nohup "$PYTHON" code/benchmarks/paper_rows.py --data data --out out --commit "$commit" "$@" \
        > out/logs/queue.log 2>&1 < /dev/null &
    echo $! > pid
    ;;
add)
    for folder in "$@"; do  # whole files only: each is copied under another name, then renamed
        (cd "$folder" && find . -type f) | while read -r file; do
            mkdir -p "$(dirname "$ROWS/data/$file")"
            cp "$folder/$file" "$ROWS/data/$file.part" && mv "$ROWS/data/$file.part" "$ROWS/data/$file"
        done
    done
    ;;
wait)
    end=$(($(date +%s) + $1))
    while running && [ "$(date +%s)" -lt "$end" ]; do sleep 1; done
    ;;
status)
    "$PYTHON" "$(dirname "$0")/unattended.py" "$ROWS/out"
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
    ;;
collect)
    mkdir -p "$1" && to=$(cd "$1" && pwd) && cd "$ROWS/out"
    (ls -d ./*.json ./*.error.txt ./work/*/log.jsonl ./logs/* 2>/dev/null || true) | tar czf "$to/records.tgz" -T -
    touch ../packed; left=$((ROOM << 20)); chosen=()
    for file in $(cd weights && ls -tr); do
        size=$(stat -c %s "weights/$file")
        if grep -qx "$file" ../packed || [ "$size" -gt "$left" ]; then continue; fi
        chosen+=("$file"); left=$((left - size - 2048))
    done
    if [ ${#chosen[@]} -gt 0 ]; then
        tar cf - -C weights "${chosen[@]}" | split -b "${PART}M" -d - "$to/weights.tar."
        printf '%s\n' "${chosen[@]}" >> ../packed
    fi
    echo "weights: ${chosen[*]:-none that are new}"
    ;;
*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
