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

# with --json among the options the annotations go to the standard error
errors="$RUNNER_TEMP/compatkit-errors.txt"
compatkit compare "${arguments[@]}" -- "$OLD" "$NEW" 2>"$errors" | tee "$RUNNER_TEMP/compatkit.txt"
status=${PIPESTATUS[0]}
cat "$errors" >&2
# without a policy no condition can fail: the verdict decides, which stands before the report and its text from data
# (no grep -q: it stops at the first line, and what writes to it then fails)
if [ "$status" = 0 ] && [ -z "${POLICY:-}" ] &&
    { cat "$errors"; sed '/^::stop-commands::/,$d' "$RUNNER_TEMP/compatkit.txt"; } | grep '^::error ' >/dev/null; then
    status=1
fi
echo "status=$status" >>"$GITHUB_OUTPUT"
if [ "${ADVISORY:-false}" = true ] && [ "$status" != 2 ]; then
    exit 0
fi
exit "$status"
