"""Sharing labels of the public set: wire format, validation, voting, attacks, defences and privacy."""
