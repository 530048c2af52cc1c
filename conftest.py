"""The type checks of the tests take an int for a float, as PEP 484 does and beartype by itself does not."""

import beartype

beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
