#!/usr/bin/env bash
# Are all modules exported from the notebooks, and the notebooks clean? Tried in a copy ($1), from no
# modules at all, so that a module without a notebook is noticed as well. Written by hand are the
# wings' __init__.py, compatkit/fisher.py, papers.csv and the page's template, style and script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

copy=${1:?a folder for the copy}
mkdir -p "$copy/jupyter"
cp settings.ini pyproject.toml "$copy"
cp -r nbs "$copy/nbs"
export JUPYTER_DATA_DIR="$copy/jupyter"  # nbdev_clean signs notebooks there
(cd "$copy" && nbdev_export && nbdev_clean)
by_hand=(-x __init__.py -x _modidx.py -x fisher.py -x papers.csv -x page.html -x page.css -x page.js)
modules() { diff "$@" -x __pycache__ "${by_hand[@]}" compatkit "$copy/compatkit"; }
problems=$(modules -rq; diff -rq -x .ipynb_checkpoints -x .last_checked -x runs nbs "$copy/nbs") || true
if [ -n "$problems" ]; then
    echo "not exported or not clean; run nbdev_export && nbdev_clean, and remove modules without a notebook:"
    echo "$problems"
    modules -ru | head -40 || true
    exit 1
fi
echo "exported and clean"
