"""`python -m bench.gateway`."""

import argparse

import bench.gateway
from bench.gateway.run import run

parser = argparse.ArgumentParser(
    prog="python -m bench.gateway",
    description=bench.gateway.__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--quick", action="store_true", help="two short rounds: to see that it works, not to quote")
run(quick=parser.parse_args().quick)
