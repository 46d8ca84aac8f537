"""What happens when something fails: nothing is lost, nothing is silently wrong."""
