"""The methods, one file each. `methods.registry` lists them."""
