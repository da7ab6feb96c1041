#!/usr/bin/env bash
# Seconds from the command `cohort train` to the end of its first step, 2 workers, the quickstart's model and data: five runs, one number a line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for run in 1 2 3 4 5; do
  build/release/bin/cohort train --model cnn --data fashion-mnist --workers 2 --steps 1 --val-samples 250 --run "$folder/$run" --quiet --json 2>/dev/null |
    sed -n 's/.*"event":"done".*"first_step_seconds":\([0-9.]*\).*/\1/p'
done
