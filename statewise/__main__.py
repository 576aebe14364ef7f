"""``python -m statewise`` is the command line."""

from statewise.cli import main

if __name__ == "__main__":
    main()
