"""How much later than its deadline a call may end before a test calls it late."""

SLACK_S = 5.0
