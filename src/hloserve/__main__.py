"""`python -m hloserve` is the `hloserve` command."""

from hloserve.cli.main import main

if __name__ == "__main__":
    main()
