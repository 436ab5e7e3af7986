#!/usr/bin/env bash
# The comparison of action.yml. Its inputs are variables of the environment: OLD, NEW, POLICY, OPTIONS, ADVISORY.
set -uo pipefail

# --force: the action may run more than once in a job, and these two files are its own
arguments=(--github --force --comment "$RUNNER_TEMP/compatkit-comment.md" --junit "$RUNNER_TEMP/compatkit-junit.xml")
[ -z "${POLICY:-}" ] || arguments+=(--policy "$POLICY")
while IFS= read -r option; do
    [ -z "$option" ] || arguments+=("$option")
done <<<"${OPTIONS:-}"

compatkit compare "${arguments[@]}" -- "$OLD" "$NEW" | tee "$RUNNER_TEMP/compatkit.txt"
status=${PIPESTATUS[0]}
# without a policy no condition can fail: the verdict decides
if [ "$status" = 0 ] && [ -z "${POLICY:-}" ] && grep -q '^::error ' "$RUNNER_TEMP/compatkit.txt"; then
    status=1
fi
echo "status=$status" >>"$GITHUB_OUTPUT"
if [ "${ADVISORY:-false}" = true ] && [ "$status" != 2 ]; then
    exit 0
fi
exit "$status"
