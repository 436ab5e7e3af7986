#!/usr/bin/env bash
# The comparison of action.yml. Its inputs are variables of the environment: OLD, NEW, POLICY, OPTIONS, ADVISORY.
set -uo pipefail

# the action may run more than once in a job: what an earlier step left must not be taken for this one's
rm -f "$RUNNER_TEMP"/compatkit-comment.md "$RUNNER_TEMP"/compatkit-junit.xml "$RUNNER_TEMP"/compatkit.html
arguments=(--github --comment "$RUNNER_TEMP/compatkit-comment.md" --junit "$RUNNER_TEMP/compatkit-junit.xml")
# two folders are suites of tasks, which have no page
[ -d "$OLD" ] && [ -d "$NEW" ] || arguments+=(--html "$RUNNER_TEMP/compatkit.html")
[ -z "${POLICY:-}" ] || arguments+=(--policy "$POLICY")
while IFS= read -r option; do
    [ -z "$option" ] || arguments+=("$option")
done <<<"${OPTIONS:-}"

compatkit compare "${arguments[@]}" -- "$OLD" "$NEW" | tee "$RUNNER_TEMP/compatkit.txt"
status=${PIPESTATUS[0]}
# without a policy no condition can fail: the verdict decides, which stands before the report and its text from data
if [ "$status" = 0 ] && [ -z "${POLICY:-}" ] &&
    sed '/^::stop-commands::/,$d' "$RUNNER_TEMP/compatkit.txt" | grep -q '^::error '; then
    status=1
fi
echo "status=$status" >>"$GITHUB_OUTPUT"
if [ "${ADVISORY:-false}" = true ] && [ "$status" != 2 ]; then
    exit 0
fi
exit "$status"
