"""Put the comment of action.yml into its pull request, over the one that the action wrote before.

RUNNER_TEMP, GITHUB_REPOSITORY and NUMBER are variables of the environment, GH_TOKEN is read by gh.
The comparison alone decides whether a run passes: the token of a pull request from a fork may only
read, so a comment that cannot be written is a warning.
"""

import json
import os
import subprocess
from pathlib import Path

from compatkit.support.outputs import COMMENT_MARK


def gh(*arguments: str) -> str:
    """What GitHub's command line prints."""
    return subprocess.run(["gh", *arguments], check=True, capture_output=True, text=True).stdout


def own_comments(repository: str, number: str) -> list[str]:
    """The numbers of the comments that this action wrote, the earliest first."""
    found = json.loads(gh("pr", "view", number, "--repo", repository, "--json", "comments"))
    return [
        one["url"].rpartition("#issuecomment-")[2]
        for one in found["comments"]
        # its line by itself: a reply that quotes the comment has `> ` before it
        if one["viewerDidAuthor"] and COMMENT_MARK in one["body"].splitlines()
    ]


def write(text: Path, repository: str, number: str) -> None:
    """Write the comment, over the last one of this action if there is one."""
    if own := own_comments(repository, number):
        address = f"repos/{repository}/issues/comments/{own[-1]}"
        gh("api", "--method", "PATCH", address, "--field", f"body=@{text}")
    else:
        gh("pr", "comment", number, "--repo", repository, "--body-file", str(text))


def main() -> None:
    """Write the comment if the comparison left one."""
    text = Path(os.environ["RUNNER_TEMP"]) / "compatkit-comment.md"
    if not text.exists():
        return
    try:
        write(text, os.environ["GITHUB_REPOSITORY"], os.environ["NUMBER"])
    except (OSError, subprocess.CalledProcessError) as error:
        reason = " ".join(str(getattr(error, "stderr", None) or error).split()).replace("%", "%25")
        print(
            "::warning title=compatkit::The comment is not in the pull request, it stands in the "
            f"summary of the job. Writing it needs the permission pull-requests: write. {reason}"
        )


main()
