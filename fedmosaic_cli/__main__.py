"""`python -m fedmosaic_cli` is `fedmosaic`."""

from fedmosaic_cli.cli import main

if __name__ == "__main__":
    main()
