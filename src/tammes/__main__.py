"""`python -m tammes`, which `torchrun -m tammes train ...` needs."""

import sys

from tammes.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
