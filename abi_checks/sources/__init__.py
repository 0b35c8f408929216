"""Where shared objects come from: each kind of target yields the same stream of files and distributions."""
