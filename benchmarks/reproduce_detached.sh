#!/usr/bin/env bash
# gdws reproduce on a machine that is reached by short commands: it goes on between them. In the repository:
#
#   benchmarks/reproduce_detached.sh add FOLDER ...      copy data (cifar10/, svhn/) and files of weights to $ROWS/data
#   benchmarks/reproduce_detached.sh start [WORD ...]    copy the code to $ROWS and start the command there, with words such as
#                                                        "table1 --minutes 60"; it resumes what is in $ROWS/out
#   benchmarks/reproduce_detached.sh wait SECONDS        until it ends, at most so long
#   benchmarks/reproduce_detached.sh status              what is done, what runs, what failed
#   benchmarks/reproduce_detached.sh collect FOLDER      records, pages and logs as records.tgz, and the weights of bases and pruned
#                                                        networks that no earlier call has packed, as weights.tar.NN
#   benchmarks/reproduce_detached.sh give FILE ...       unpack such files into $ROWS/out again, on a fresh machine
#
# ROWS (/tmp/rows), PYTHON (python3), SCALE (fast), DEVICE (cuda), COMMIT of the code (git's), ROOM (58) and PART (15): MiB of weights
# in one collection and in one of its files.
set -eu
ROWS=${ROWS:-/tmp/rows} PYTHON=${PYTHON:-python3} SCALE=${SCALE:-fast} DEVICE=${DEVICE:-cuda} ROOM=${ROOM:-58} PART=${PART:-15}
command=${1:-}; shift || true
export PYTHONPATH="$ROWS/code/src" PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-3}"
running() { [ -f "$ROWS/pid" ] && kill -0 "$(cat "$ROWS/pid")" 2>/dev/null; }

case $command in
add)
    for folder in "$@"; do  # whole files only: each is copied under another name, then renamed
        (cd "$folder" && find . -type f) | while read -r file; do
            mkdir -p "$(dirname "$ROWS/data/$file")"
            cp "$folder/$file" "$ROWS/data/$file.part" && mv "$ROWS/data/$file.part" "$ROWS/data/$file"
        done
    done
    ;;
start)
    if running; then echo "it runs already"; exit 0; fi
    here=$(cd "$(dirname "$0")" && pwd)
    GDWS_COMMIT=${COMMIT:-$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)}
    export GDWS_COMMIT
    mkdir -p "$ROWS/data" && rm -rf "$ROWS/code" && mkdir "$ROWS/code" && cp -r "$here/../src" "$ROWS/code"
    cd "$ROWS"
    data=(); for name in cifar10 svhn; do [ ! -d "data/$name" ] || data+=(--data "$name:data/$name"); done
    setsid nohup "$PYTHON" -m gdws reproduce "$@" --scale "$SCALE" --device "$DEVICE" "${data[@]}" --weights data --out out --resume \
        > command.log 2>&1 < /dev/null &
    echo $! > pid
    ;;
wait)
    end=$(($(date +%s) + $1))
    while running && [ "$(date +%s)" -lt "$end" ]; do sleep 1; done
    ;;
status)
    cd "$ROWS"
    echo "$(find out/steps -name record.json | wc -l) steps are done, $(running && echo "it runs" || echo "it does not run")"
    tail -n 3 command.log; for log in out/logs/*.log; do echo "$log: $(tail -n 1 "$log")"; done
    for error in $(find out/steps -name error.txt); do echo "failed: $error: $(tail -n 1 "$error")"; done
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
    ;;
collect)
    mkdir -p "$1" && to=$(cd "$1" && pwd) && cd "$ROWS/out"
    files() { find . \( -name '*.json' -o -name error.txt -o -name decisions.jsonl \) -path './steps/*' -not -path '*/model/*'; }
    { files; find rows logs index.md index.html ./*.svg reproduction.json -type f 2>/dev/null || true; } | tar czf "$to/records.tgz" -T -
    touch ../packed; left=$((ROOM << 20)); chosen=()
    for file in $(ls -tr steps/base-*/model.safetensors steps/pruned-*/model.safetensors 2>/dev/null || true); do
        [ -f "$(dirname "$file")/record.json" ] || continue
        size=$(stat -c %s "$file")
        if grep -qx "$file" ../packed || [ "$size" -gt "$left" ]; then continue; fi
        chosen+=("$file"); left=$((left - size - 2048))
    done
    if [ ${#chosen[@]} -gt 0 ]; then
        tar cf - "${chosen[@]}" | split -b "${PART}M" -d - "$to/weights.tar."
        printf '%s\n' "${chosen[@]}" >> ../packed
    fi
    echo "weights: ${chosen[*]:-none that are new}"
    ;;
give)
    mkdir -p "$ROWS/out" && cd "$ROWS/out"
    for file in "$@"; do case $file in *.tgz) tar xzf "$file" ;; *.tar.00) cat "${file%00}"* | tar xf - ;; esac; done
    ;;
*) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
