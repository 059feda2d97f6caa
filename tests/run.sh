#!/usr/bin/env bash
# What `make test` runs after `make check`: tests/pipeline, tests/differential and tests/slurm, with a list of what is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
join() { # of its arguments, by " and "
  local joined=${1:-}
  shift || true
  for word in "$@"; do joined+=" and $word"; done
  echo "$joined"
}
left_out=()
marks=()
folders=(tests/pipeline tests/differential)
if [ "$(id -u)" != 0 ]; then
  left_out+=("SLURM tests: the sandbox cluster needs root")
elif ! command -v slurmctld >/dev/null || ! command -v mariadbd >/dev/null; then
  left_out+=("SLURM tests: no SLURM here (.ci/run says which packages)")
else
  folders+=(tests/slurm)
fi
if ! command -v chromium >/dev/null; then
  left_out+=("browser tests: no chromium here (apt-get install chromium)")
  marks+=("not browser")
fi
if ! command -v bwrap >/dev/null; then
  left_out+=("code sandbox tests: no bwrap here (apt-get install bubblewrap)")
  marks+=("not sandbox")
fi
if [ ${#left_out[@]} -gt 0 ] && [ -n "${CI:-}" ]; then
  printf 'missing in CI: %s\n' "${left_out[@]}" >&2
  exit 1
fi
if [ "${1:-}" != full ]; then
  marks+=("not full")
fi
python -m pytest --durations=15 -m "$(join "${marks[@]}")" "${folders[@]}"
if [ ${#left_out[@]} -gt 0 ]; then
  printf 'left out: %s\n' "${left_out[@]}"
fi
