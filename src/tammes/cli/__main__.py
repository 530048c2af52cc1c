"""`python -m tammes.cli`, which `torchrun -m tammes.cli train ...` needs."""

import sys

from tammes.cli import main

if __name__ == "__main__":
    sys.exit(main())
