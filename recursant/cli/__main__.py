"""`python -m recursant.cli`, for where `recursant` itself is not on the path."""

from recursant.cli import main

if __name__ == "__main__":
    main()
