"""From a configuration to files: find or make the shards, assemble the federation, play, record, examine."""
